"""Data set files, and their classes cut into tasks."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from codecl.data import store
from codecl.data.catalogue import CATALOGUE
from codecl.data.images import Images, check_range
from codecl.data.task import Task
from codecl.errors import ConfigError, DataError


class ImageData(NamedTuple):
    """A data set as tensors; images uint8 [n, channels, height, width]."""

    train: Images
    test: Images
    class_names: tuple[str, ...]  # empty where they are not known


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


def in_order(data: ImageData, order: Sequence[int]) -> ImageData:
    """With classes numbered by their place in this order: class `order[k]` becomes class `k`."""
    place = torch.empty(len(order), dtype=torch.long)
    place[torch.tensor(order)] = torch.arange(len(order))
    train, test = ((images, place[labels]) for images, labels in (data.train, data.test))
    return ImageData(train, test, tuple(data.class_names[label] for label in order))


def random_order(classes: int, seed: int) -> list[int]:
    return torch.randperm(classes, generator=torch.Generator().manual_seed(seed)).tolist()


class Scale(NamedTuple):
    """Mean and standard deviation by channel, of values from 0 to 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def measured(images: Tensor) -> Scale:
    """Of these images; some at a time, since as numbers they take eight times the room."""
    parts = (part.double() / 255 for part in images.split(1000))
    sums = [torch.stack([part.sum((0, 2, 3)), part.square().sum((0, 2, 3))]) for part in parts]
    mean, square = torch.stack(sums).sum(0) / (images.numel() / images.shape[1])
    return Scale(tuple(mean.tolist()), tuple((square - mean**2).clamp(min=1e-6).sqrt().tolist()))


class SplitOf(NamedTuple):
    """A data set file as tasks of so many classes, in the order of their labels or in another."""

    name: str
    classes: int | None = None  # a task; None: all of them in one
    total: int | None = None  # classes in all; None: those that the training labels show
    scale: Scale | None = None  # None: measured on the training images
    order: int | None = None  # the seed of a random order of the classes; None: that of their labels

    @classmethod
    def parse(cls, stream: str) -> "SplitOf | None":
        """What a name in SPLITS, `split(name, classes)`, `split(name, classes, in all)`, `whole(name)`, `whole(name,
        in all)` and `shuffled(stream, seed)` say."""
        stream = stream.strip()
        if stream in SPLITS:
            return SPLITS[stream]
        if match := re.fullmatch(r"shuffled\((.*),\s*(\d+)\s*\)", stream):
            return cls._shuffled(match[1].strip(), int(match[2]))
        name, number = r"\s*([\w-]+)\s*", r",\s*([1-9]\d*)\s*"
        if match := re.fullmatch(rf"split\({name}{number}(?:{number})?\)", stream):
            return cls(match[1], int(match[2]), int(match[3]) if match[3] else None)
        if match := re.fullmatch(rf"whole\({name}(?:{number})?\)", stream):
            return cls(match[1], None, int(match[2]) if match[2] else None)
        return None

    @classmethod
    def _shuffled(cls, stream: str, seed: int) -> "SplitOf":
        split = cls.parse(stream)
        if split is None or split.classes is None or split.order is not None:
            raise ConfigError(
                f"data.stream: shuffled({stream}, {seed}): {stream!r} is not a data set cut into tasks by the order of"
                f" its classes; use {', '.join(SPLITS)} or split(NAME, K)"
            )
        if seed >= 2**63:
            raise ConfigError(f"data.stream: shuffled({stream}, {seed}): a seed is less than 2^63")
        return split._replace(order=seed)

    def known_total(self) -> int | None:
        """Classes in all, without a look at the images."""
        return self.total or (CATALOGUE[self.name].classes if self.name in CATALOGUE else None)

    def tasks(self, path: Path | None = None) -> list[Task]:
        """Own images, at another `path`, need not show every class."""
        data = from_file(self.name, path)
        labels = data.train[1]
        total = (self.known_total() if path else self.total) or int(labels.max()) + 1
        if not (path or self.total) and total > len(labels):
            raise DataError(
                f"data set {self.name!r}: a label is {total - 1}, but there are {len(labels)} training images; labels"
                " should be the classes, from 0 on"
            )
        if path or self.total or self.order is not None:
            check_range(f"{store.path_of(self.name, path)}:", torch.cat([labels, data.test[1]]), total)
        if total % (self.classes or total):
            raise ConfigError(
                f"data.stream: the {total} classes of {self.name!r} cannot be cut into tasks of {self.classes}"
            )
        names = data.class_names if len(data.class_names) >= total else tuple(map(str, range(total)))
        data = data._replace(class_names=names[:total])
        if self.order is None:
            return self.cut(data, range(total))
        order = random_order(total, self.order)
        return self.cut(in_order(data, order), order)

    def cut(self, data: ImageData, order: Sequence[int]) -> list[Task]:
        """Tasks of classes that follow one another; `order`: the labels that they had."""
        total = len(order)
        classes = self.classes or total
        mean, std = self.scale or measured(data.train[0])
        tasks = []
        for first in range(0, total, classes):
            after = first + classes
            train, test = (_of_classes(split, first, after) for split in (data.train, data.test))
            title = f"classes {_listed(order[first:after])}" if classes < total else self.name
            tasks.append(Task(train, test, classes, title, mean, std, data.class_names[first:after]))
        return tasks


def _of_classes(split: Images, first: int, after: int) -> Images:
    images, labels = split
    inside = (labels >= first) & (labels < after)
    return images[inside], labels[inside] - first


def _listed(labels: Sequence[int]) -> str:
    """`0-4` of labels in a row, otherwise each, or the first of more than ten."""
    if list(labels) == list(range(labels[0], labels[0] + len(labels))):
        return f"{labels[0]}-{labels[-1]}"
    return " ".join(map(str, labels[:10])) + (" ..." if len(labels) > 10 else "")


SPLITS = {  # with published numbers
    "split-cifar100": SplitOf("cifar100", 10, scale=Scale((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))),
    "split-miniimagenet": SplitOf("miniimagenet", 5, scale=Scale((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))),
}
