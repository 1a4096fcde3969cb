"""The named streams: data sets -> ordered tasks."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from codecl.data import store
from codecl.data.catalogue import CATALOGUE
from codecl.data.config import DataConfig
from codecl.data.images import Images, check_range
from codecl.data.task import Task
from codecl.errors import ConfigError, DataError
from codecl.registry import lookup

Stream = Callable[..., list[Task]]  # no arguments; `path` for those of data set files
PLUS = " + "  # between streams that come one after another


class ImageData(NamedTuple):
    """A data set as tensors; images uint8 [n, channels, height, width]."""

    train: Images
    test: Images
    class_names: tuple[str, ...]  # empty where they are not known


def embedded(name: str) -> ImageData:
    """`digits` or `clothes`, the images inside the package (NOTICE.md beside them says whose they are)."""
    with (resources.files("codecl.data") / "quickstart.npz").open("rb") as file, np.load(file) as pack:

        def split(part: str) -> Images:
            images = torch.from_numpy(pack[f"{name}_{part}_images"])[:, None]
            return images, torch.from_numpy(pack[f"{name}_{part}_labels"]).long()

        of = {"digits": "mnist", "clothes": "fashion-mnist"}[name]
        return ImageData(split("train"), split("test"), CATALOGUE[of].class_names)


def from_file(name: str, path: Path | None = None) -> ImageData:
    """A data set file; `path`: see store.path_of."""
    data = store.read(name, path)
    splits = {}
    for split, arrays in data.splits().items():
        images, labels = map(torch.from_numpy, arrays)
        if images.ndim != 4 or images.dtype != torch.uint8 or labels.shape != images.shape[:1] or not len(labels):
            raise DataError(
                f"data set {name!r}: {split}_images of {store.path_of(name, path)} are {images.dtype}"
                f" {list(images.shape)} with labels {list(labels.shape)}; they should be uint8 [n, channels, height,"
                " width] with n labels"
            )
        splits[split] = (images, labels)
    known = CATALOGUE[name].class_names if name in CATALOGUE else ()
    return ImageData(splits["train"], splits["test"], known or data.names)


def quickstart() -> list[Task]:
    """Five ten-class tasks from the images inside the package."""
    digits, clothes = embedded("digits"), embedded("clothes")

    def turned(name: str, data: ImageData, turn: Callable[[Tensor], Tensor]) -> Task:
        train, test = ((turn(images), labels) for images, labels in (data.train, data.test))
        return Task(train, test, 10, name, labels=data.class_names)

    return [
        turned("digits", digits, lambda x: x),
        turned("clothes", clothes, lambda x: x),
        turned("transposed digits", digits, lambda x: x.mT),
        turned("upside-down clothes", clothes, lambda x: x.flip(-2)),
        turned("inverted mirrored digits", digits, lambda x: 255 - x.flip(-1)),
    ]


class Scale(NamedTuple):
    """Mean and standard deviation by channel, of values from 0 to 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class SplitOf(NamedTuple):
    """A data set file as tasks of so many classes, in the order of their labels."""

    name: str
    classes: int | None = None  # a task; None: all of them in one
    total: int | None = None  # classes in all; None: those that the training labels show

    @classmethod
    def parse(cls, stream: str) -> "SplitOf | None":
        """What `split(name, classes)`, `split(name, classes, in all)`, `whole(name)` and `whole(name, in all)` say."""
        name, number = r"\s*([\w-]+)\s*", r",\s*([1-9]\d*)\s*"
        if match := re.fullmatch(rf"split\({name}{number}(?:{number})?\)", stream.strip()):
            return cls(match[1], int(match[2]), int(match[3]) if match[3] else None)
        if match := re.fullmatch(rf"whole\({name}(?:{number})?\)", stream.strip()):
            return cls(match[1], None, int(match[2]) if match[2] else None)
        return None

    def known_total(self) -> int | None:
        """Classes in all, without a look at the images."""
        return self.total or (CATALOGUE[self.name].classes if self.name in CATALOGUE else None)

    def tasks(self, scale: Scale | None = None, path: Path | None = None) -> list[Task]:
        """Own images, at another `path`, need not show every class."""
        data = from_file(self.name, path)
        images, labels = data.train
        total = (self.known_total() if path else self.total) or int(labels.max()) + 1
        if not (path or self.total) and total > len(labels):
            raise DataError(
                f"data set {self.name!r}: a label is {total - 1}, but there are {len(labels)} training images; labels"
                " should be the classes, from 0 on"
            )
        if path or self.total:
            check_range(f"{store.path_of(self.name, path)}:", torch.cat([labels, data.test[1]]), total)
        classes = self.classes or total
        if total % classes:
            raise ConfigError(
                f"data.stream: the {total} classes of {self.name!r} cannot be cut into tasks of {classes}"
            )
        mean, std = scale or measured(images)
        names = data.class_names if len(data.class_names) >= total else tuple(map(str, range(total)))
        tasks = []
        for first in range(0, total, classes):
            after = first + classes
            train, test = (_of_classes(split, first, after) for split in (data.train, data.test))
            title = f"classes {first}-{after - 1}" if classes < total else self.name
            tasks.append(Task(train, test, classes, title, mean, std, names[first:after]))
        return tasks


def _of_classes(split: Images, first: int, after: int) -> Images:
    images, labels = split
    inside = (labels >= first) & (labels < after)
    return images[inside], labels[inside] - first


def measured(images: Tensor) -> Scale:
    """Of these images; some at a time, since as numbers they take eight times the room."""
    parts = (part.double() / 255 for part in images.split(1000))
    sums = [torch.stack([part.sum((0, 2, 3)), part.square().sum((0, 2, 3))]) for part in parts]
    mean, square = torch.stack(sums).sum(0) / (images.numel() / images.shape[1])
    return Scale(tuple(mean.tolist()), tuple((square - mean**2).clamp(min=1e-6).sqrt().tolist()))


def split_cifar100(path: Path | None = None) -> list[Task]:
    """Ten tasks of ten classes."""
    return SplitOf("cifar100", 10).tasks(Scale((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)), path)


def split_miniimagenet(path: Path | None = None) -> list[Task]:
    """Twenty tasks of five classes, 84×84."""
    return SplitOf("miniimagenet", 5).tasks(Scale((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), path)


FIVE = {  # in this order
    "cifar10": Scale((125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)),
    "mnist": Scale((0.1,), (0.2752,)),
    "svhn": Scale((0.4377, 0.4438, 0.4728), (0.198, 0.201, 0.197)),
    "fashion-mnist": Scale((0.2190,), (0.3318,)),
    "notmnist": Scale((0.4254,), (0.4501,)),
}


def five_datasets(path: Path | None = None) -> list[Task]:
    """Five data sets of ten classes, a task each, all as 3×32×32."""
    tasks = []
    for name, (mean, std) in FIVE.items():
        data = from_file(name, path)
        train, test = ((shaped(images, (3, 32, 32)), labels) for images, labels in (data.train, data.test))
        original = tuple(data.train[0].shape[1:])
        tasks.append(Task(train, test, 10, name, mean, std, data.class_names, original))
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


def load(stream: str, path: Path | None = None) -> list[Task]:
    """The tasks of a stream of the table, of `split(name, classes)` or `whole(name)` of any data set file (classes in
    all may stand behind), of a user's own; or of several, one after another, with + between. `path`: of its files."""
    parts = stream.split(PLUS)
    if len(parts) > 1:
        return [task for part in parts for task in load(part, path)]
    split = SplitOf.parse(stream)
    if split:
        return split.tasks(path=path)
    function: Stream = lookup("data.stream", STREAMS, stream)
    return function(path=path) if stream in CUT_FROM else function()


def known(stream: str) -> bool:
    """Whether there is a stream of this name, of this form, or of the user's own; not whether its files are there."""
    return all(part in STREAMS or ":" in part or SplitOf.parse(part) is not None for part in stream.split(PLUS))


def data_sets(stream: str) -> list[str]:
    """The names of the data set files that a stream is cut from."""
    names: list[str] = []
    for part in stream.split(PLUS):
        split = SplitOf.parse(part)
        names += [split.name] if split else CUT_FROM.get(part, ())
    return names


def digest(stream: str, known: Mapping[str, str] = MappingProxyType({})) -> str | None:
    """Of the data set files that a stream is cut from: another file is another run. None where one is missing, and not
    `known` from before."""
    digests = [store.digest(name) or known.get(name) for name in data_sets(stream)]
    return None if None in digests else joined(digests)


def joined(digests: Iterable[str | None]) -> str | None:
    """One digest of several; None where there is none."""
    known = [digest for digest in digests if digest]
    if len(known) > 1:
        return hashlib.sha256(" ".join(known).encode()).hexdigest()[:16]
    return known[0] if known else None


def check_local_path(config: DataConfig) -> None:
    """Refuse `data.local_path` where agents that see their own images only would not have the same tasks and scale."""
    if config.local_path is None:
        return
    for part in config.stream.split(PLUS):
        split = SplitOf.parse(part)
        if not split and part not in CUT_FROM:
            raise ConfigError(
                f"data.local_path: data.stream {part!r} is not made of data set files; use {', '.join(CUT_FROM)},"
                " split(NAME, K, N) or whole(NAME, N)"
            )
        if split and not split.known_total():
            wanted = f"split({split.name}, {split.classes}, N)" if split.classes else f"whole({split.name}, N)"
            raise ConfigError(
                f"data.local_path: data.stream {part!r} leaves open how many classes there are; use {wanted}"
            )
        if split and not config.mean:
            raise ConfigError(
                f"data.local_path: the scale of {part!r} would be measured on this agent's images; state data.mean and"
                " data.std, the same for every agent"
            )
    names = sorted(set(data_sets(config.stream)))
    if len(names) > 1 and Path(config.local_path).suffix == store.SUFFIX:
        raise ConfigError(
            f"data.local_path: {config.local_path!r} is one file, but data.stream needs {', '.join(names)}; give a"
            " folder of them"
        )
