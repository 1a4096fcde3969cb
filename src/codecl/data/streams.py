"""The named streams: data sets -> ordered tasks."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from codecl.data import store
from codecl.data.catalogue import CATALOGUE
from codecl.data.config import DataConfig
from codecl.data.images import Images
from codecl.data.split import SPLITS, ImageData, Scale, SplitOf, from_file
from codecl.data.task import Task
from codecl.errors import ConfigError
from codecl.registry import lookup

Stream = Callable[..., list[Task]]  # no arguments; `path` for those of data set files
PLUS = " + "  # between streams that come one after another


def embedded(name: str) -> ImageData:
    """`digits` or `clothes`, the images inside the package (NOTICE.md beside them says whose they are)."""
    with (resources.files("codecl.data") / "quickstart.npz").open("rb") as file, np.load(file) as pack:

        def split(part: str) -> Images:
            images = torch.from_numpy(pack[f"{name}_{part}_images"])[:, None]
            return images, torch.from_numpy(pack[f"{name}_{part}_labels"]).long()

        of = {"digits": "mnist", "clothes": "fashion-mnist"}[name]
        return ImageData(split("train"), split("test"), CATALOGUE[of].class_names)


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
    **{name: split.tasks for name, split in SPLITS.items()},
    "five-datasets": five_datasets,
}
FORMS = ("split(NAME, K)", "whole(NAME)", "shuffled(STREAM, SEED)")  # that SplitOf.parse knows
CUT_FROM = {"five-datasets": tuple(FIVE)}  # the data set files behind a stream of several


def load(stream: str, path: Path | None = None) -> list[Task]:
    """The tasks of a stream of the table, of what SplitOf.parse knows, or of a user's own; or of several, one after
    another, with + between. `path`: of its files."""
    parts = stream.split(PLUS)
    if len(parts) > 1:
        return [task for part in parts for task in load(part, path)]
    split = SplitOf.parse(stream)
    if split:
        return split.tasks(path)
    function: Stream = lookup("data.stream", STREAMS, stream, FORMS)
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
                f"data.local_path: data.stream {part!r} is not made of data set files; use"
                f" {', '.join([*SPLITS, *CUT_FROM])}, split(NAME, K, N) or whole(NAME, N)"
            )
        if split and not split.known_total():
            wanted = f"split({split.name}, {split.classes}, N)" if split.classes else f"whole({split.name}, N)"
            raise ConfigError(
                f"data.local_path: data.stream {part!r} leaves open how many classes there are; use {wanted}"
            )
        if split and not (config.mean or split.scale):
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
