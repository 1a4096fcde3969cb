"""The named streams: data sets -> ordered tasks."""

import hashlib
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from codecl.data import embedded, files, store
from codecl.data.catalogue import CATALOGUE
from codecl.data.images import Images
from codecl.data.labels import LABELS
from codecl.data.task import DataConfig, Task
from codecl.errors import ConfigError, DataError
from codecl.registry import lookup

Stream = Callable[..., list[Task]]  # no arguments; `at` for those of data set files
Place = Path | None  # where data set files are: a folder, one file, or the data folder


def quickstart() -> list[Task]:
    """Five ten-class tasks from the images inside the package."""
    digits, clothes = embedded.load("digits"), embedded.load("clothes")

    def turned(name: str, pair: tuple[Images, Images], turn: Callable[[Tensor], Tensor], of: str) -> Task:
        (train, truth), (test, test_truth) = pair
        return Task((turn(train), truth), (turn(test), test_truth), 10, name, labels=LABELS[of])

    return [
        turned("digits", digits, lambda x: x, "mnist"),
        turned("clothes", clothes, lambda x: x, "fashion-mnist"),
        turned("transposed digits", digits, lambda x: x.mT, "mnist"),
        turned("upside-down clothes", clothes, lambda x: x.flip(-2), "fashion-mnist"),
        turned("inverted mirrored digits", digits, lambda x: 255 - x.flip(-1), "mnist"),
    ]


class Scale(NamedTuple):
    """Mean and standard deviation by channel, of values from 0 to 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class Cut(NamedTuple):
    """A data set file cut into tasks of so many classes, in the order of their labels."""

    name: str
    classes: int | None = None  # a task; None: all of them in one
    total: int | None = None  # classes in all; None: those that the training labels show

    def known(self) -> int | None:
        """Classes in all, without a look at the images."""
        return self.total or (CATALOGUE[self.name].classes if self.name in CATALOGUE else None)


def split(cut: Cut, scale: Scale | None = None, at: Place = None) -> list[Task]:
    """The tasks of a cut. Own images, `at` another place, need not show every class."""
    name, (train, test) = cut.name, files.load(cut.name, at)
    count = (cut.known() if at else cut.total) or int(train[1].max()) + 1
    if at or cut.total:
        _check_labels(store.path_of(name, at), torch.cat([train[1], test[1]]), count)
    classes = cut.classes or count
    if count % classes:
        raise ConfigError(f"data.stream: the {count} classes of {name!r} cannot be cut into tasks of {classes}")
    mean, std = scale or measured(train[0])
    known, tasks = LABELS.get(name) or store.class_names(name, at), []
    names = known if len(known) >= count else tuple(map(str, range(count)))
    for first in range(0, count, classes):
        after = first + classes

        def part(images: Tensor, labels: Tensor, first: int = first, after: int = after) -> Images:
            inside = (labels >= first) & (labels < after)
            return images[inside], labels[inside] - first

        title = f"classes {first}-{after - 1}" if classes < count else name
        tasks.append(Task(part(*train), part(*test), classes, title, mean, std, names[first:after]))
    return tasks


def _check_labels(path: Path, labels: Tensor, classes: int) -> None:
    outside = labels[(labels < 0) | (labels >= classes)]
    if len(outside):
        raise DataError(f"{path}: label {int(outside[0])} is outside 0 to {classes - 1} ({classes} classes)")


def measured(images: Tensor) -> Scale:
    """Of these images; some at a time, since as numbers they take eight times the room."""
    parts = (part.double() / 255 for part in images.split(1000))
    sums = [torch.stack([part.sum((0, 2, 3)), part.square().sum((0, 2, 3))]) for part in parts]
    mean, square = torch.stack(sums).sum(0) / (images.numel() / images.shape[1])
    return Scale(tuple(mean.tolist()), tuple((square - mean**2).clamp(min=1e-6).sqrt().tolist()))


def split_cifar100(at: Place = None) -> list[Task]:
    """Ten tasks of ten classes."""
    return split(Cut("cifar100", 10), Scale((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)), at)


def split_miniimagenet(at: Place = None) -> list[Task]:
    """Twenty tasks of five classes, 84×84."""
    return split(Cut("miniimagenet", 5), Scale((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), at)


FIVE = {  # in this order
    "cifar10": Scale((125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)),
    "mnist": Scale((0.1,), (0.2752,)),
    "svhn": Scale((0.4377, 0.4438, 0.4728), (0.198, 0.201, 0.197)),
    "fashion-mnist": Scale((0.2190,), (0.3318,)),
    "notmnist": Scale((0.4254,), (0.4501,)),
}


def five_datasets(at: Place = None) -> list[Task]:
    """Five data sets of ten classes, a task each, all as 3×32×32."""
    tasks = []
    for name, (mean, std) in FIVE.items():
        (images, labels), (held, truth) = files.load(name, at)
        original = tuple(images.shape[1:])
        train, test = (shaped(part, (3, 32, 32)) for part in (images, held))
        tasks.append(Task((train, labels), (test, truth), 10, name, mean, std, LABELS[name], original))
    return tasks


def shaped(images: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Images padded by 0 on all sides, and a single channel repeated, to reach a larger shape."""
    channels, height, width = images.shape[1:]
    down, right = shape[1] - height, shape[2] - width
    if channels not in (1, shape[0]) or min(down, right) < 0:
        raise ConfigError(f"images: {list(images.shape[1:])} cannot be padded and repeated to {list(shape)}")
    sides = (right // 2, right - right // 2, down // 2, down - down // 2)
    return functional.pad(images, sides).expand(-1, shape[0], -1, -1).contiguous()


STREAMS: dict[str, Stream] = {
    "quickstart": quickstart,
    "split-cifar100": split_cifar100,
    "split-miniimagenet": split_miniimagenet,
    "five-datasets": five_datasets,
}
CUT_FROM = {  # the data set files behind a stream
    "split-cifar100": ("cifar100",),
    "split-miniimagenet": ("miniimagenet",),
    "five-datasets": tuple(FIVE),
}


PLUS = " + "  # between streams that come one after another


def named(stream: str, at: Place = None) -> Stream:
    """A stream of the table, `split(name, classes)` or `whole(name)` of any data set file (classes in all may stand
    behind), a user's own; or several of them, one after another, with + between. `at`: where its files are."""
    parts = stream.split(PLUS)
    if len(parts) > 1:
        return lambda: [task for part in parts for task in named(part, at)()]
    cut = _cut_from(stream)
    if cut:
        return partial(split, cut, at=at)
    found: Stream = lookup("data.stream", STREAMS, stream)
    return partial(found, at=at) if stream in CUT_FROM else found


def data_sets(stream: str) -> list[str]:
    """The names of the data set files that a stream is cut from."""
    names: list[str] = []
    for part in stream.split(PLUS):
        cut = _cut_from(part)
        names += [cut.name] if cut else CUT_FROM.get(part, ())
    return names


def digest(stream: str) -> str | None:
    """Of the data set files that a stream is cut from: another file is another run. None where one is missing."""
    found = [files.digest(name) for name in data_sets(stream)]
    known = [part for part in found if part]
    if not found or len(known) != len(found):
        return None
    return known[0] if len(known) == 1 else hashlib.sha256(" ".join(known).encode()).hexdigest()[:16]


def check_own(config: DataConfig) -> None:
    """Refuse `data.local_path` where agents that see their own images only would not have the same tasks and scale."""
    if config.local_path is None:
        return
    stream, names = config.stream, sorted(set(data_sets(config.stream)))
    for part in stream.split(PLUS):
        cut = _cut_from(part)
        if not cut and part not in CUT_FROM:
            raise ConfigError(
                f"data.local_path: data.stream {part!r} is not made of data set files; use {', '.join(CUT_FROM)},"
                " split(NAME, K, N) or whole(NAME, N)"
            )
        if cut and not cut.known():
            wanted = f"split({cut.name}, {cut.classes}, N)" if cut.classes else f"whole({cut.name}, N)"
            raise ConfigError(
                f"data.local_path: data.stream {part!r} leaves open how many classes there are; use {wanted}"
            )
        if cut and not config.mean:
            raise ConfigError(
                f"data.local_path: the scale of {part!r} would be measured on this agent's images; state data.mean and"
                " data.std, the same for every agent"
            )
    if len(names) > 1 and Path(config.local_path).suffix == store.SUFFIX:
        raise ConfigError(
            f"data.local_path: {config.local_path!r} is one file, but data.stream needs {', '.join(names)}; give a"
            " folder of them"
        )


def _cut_from(stream: str) -> Cut | None:
    """What `split(name, classes)`, `split(name, classes, in all)`, `whole(name)` and `whole(name, in all)` say."""
    name, number = r"\s*([\w-]+)\s*", r",\s*([1-9]\d*)\s*"
    if found := re.fullmatch(rf"split\({name}{number}(?:{number})?\)", stream.strip()):
        return Cut(found[1], int(found[2]), int(found[3]) if found[3] else None)
    if found := re.fullmatch(rf"whole\({name}(?:{number})?\)", stream.strip()):
        return Cut(found[1], None, int(found[2]) if found[2] else None)
    return None
