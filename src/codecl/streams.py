"""The named streams: data sets -> ordered tasks."""

import hashlib
import re
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from codecl.data import embedded, files, store
from codecl.data.labels import LABELS
from codecl.errors import ConfigError
from codecl.registry import lookup
from codecl.stream import Images, Task

Stream = Callable[[], list[Task]]


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


def split(name: str, classes: int | None, scale: Scale | None = None) -> list[Task]:
    """A data set file cut into tasks of so many classes, in the order of their labels; None: one task of all."""
    train, test = files.load(name)
    count = int(train[1].max()) + 1
    classes = classes or count
    if count % classes:
        raise ConfigError(f"data.stream: the {count} classes of {name!r} cannot be cut into tasks of {classes}")
    mean, std = scale or measured(train[0])
    known, tasks = LABELS.get(name) or store.class_names(name), []
    names = known if len(known) >= count else tuple(map(str, range(count)))
    for first in range(0, count, classes):
        after = first + classes

        def part(images: Tensor, labels: Tensor, first: int = first, after: int = after) -> Images:
            inside = (labels >= first) & (labels < after)
            return images[inside], labels[inside] - first

        title = f"classes {first}-{after - 1}" if classes < count else name
        tasks.append(Task(part(*train), part(*test), classes, title, mean, std, names[first:after]))
    return tasks


def measured(images: Tensor) -> Scale:
    """Of these images; some at a time, since as numbers they take eight times the room."""
    parts = (part.double() / 255 for part in images.split(1000))
    sums = [torch.stack([part.sum((0, 2, 3)), part.square().sum((0, 2, 3))]) for part in parts]
    mean, square = torch.stack(sums).sum(0) / (images.numel() / images.shape[1])
    return Scale(tuple(mean.tolist()), tuple((square - mean**2).clamp(min=1e-6).sqrt().tolist()))


def split_cifar100() -> list[Task]:
    """Ten tasks of ten classes."""
    return split("cifar100", 10, Scale((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)))


def split_miniimagenet() -> list[Task]:
    """Twenty tasks of five classes, 84×84."""
    return split("miniimagenet", 5, Scale((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


FIVE = {  # in this order
    "cifar10": Scale((125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)),
    "mnist": Scale((0.1,), (0.2752,)),
    "svhn": Scale((0.4377, 0.4438, 0.4728), (0.198, 0.201, 0.197)),
    "fashion-mnist": Scale((0.2190,), (0.3318,)),
    "notmnist": Scale((0.4254,), (0.4501,)),
}


def five_datasets() -> list[Task]:
    """Five data sets of ten classes, a task each, all as 3×32×32."""
    tasks = []
    for name, (mean, std) in FIVE.items():
        (images, labels), (held, truth) = files.load(name)
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


def named(stream: str) -> Stream:
    """A stream of the table, `split(name, classes)` or `whole(name)` of any data set file, a user's own; or several of
    them, one after another, with + between."""
    parts = stream.split(PLUS)
    if len(parts) > 1:
        return lambda: [task for part in parts for task in named(part)()]
    name, classes = _cut_from(stream)
    if name:
        return lambda: split(name, classes)
    found: Stream = lookup("data.stream", STREAMS, stream)
    return found


def digest(stream: str) -> str | None:
    """Of the data set files that a stream is cut from: another file is another run. None where one is missing."""
    names: list[str] = []
    for part in stream.split(PLUS):
        own, _ = _cut_from(part)
        names += [own] if own else CUT_FROM.get(part, ())
    found = [files.digest(name) for name in names]
    known = [part for part in found if part]
    if not found or len(known) != len(found):
        return None
    return known[0] if len(known) == 1 else hashlib.sha256(" ".join(known).encode()).hexdigest()[:16]


def _cut_from(stream: str) -> tuple[str, int | None]:
    """The data set and the classes a task (None: all of them in one) of `split(…)` and `whole(…)`; else no name."""
    found = re.fullmatch(r"(?:split\(\s*([\w-]+)\s*,\s*([1-9]\d*)\s*\)|whole\(\s*([\w-]+)\s*\))", stream.strip())
    if not found:
        return "", None
    return (found[1], int(found[2])) if found[1] else (found[3], None)
