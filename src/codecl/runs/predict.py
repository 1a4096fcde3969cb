"""Image files -> classes, by the model in a run folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from codecl.data.images import prepared, scale_of
from codecl.data.readers.pictures import CHANNELS, decode, pixels
from codecl.data.streams import shaped
from codecl.data.task import TaskInfo
from codecl.errors import ConfigError, DataError
from codecl.registry import near
from codecl.runs.model import load
from codecl.runs.reader import find_runs, read_tasks
from codecl.space import norms


class Prediction(NamedTuple):
    image: str
    classes: list[tuple[str, float]]  # what it is called and how probable it is, the most probable first


def predict(run: Path, task: str, images: Sequence[Path], resize: bool = False, top: int = 1) -> list[Prediction]:
    """What these images are, among the classes of a task (its name, or its number from 1).

    Each is classified by itself: the others do not change what comes out."""
    folder = one_run(run)
    number, about = _task(folder, task)
    model = load(folder, number)
    _check_norms(folder, model)
    known = next(model.parameters())
    names = about.labels or [str(label) for label in range(about.classes)]
    out = []
    for path in images:
        batch = _read(path, about, resize)
        scale = scale_of(about.name, (about.mean, about.std), batch, known.dtype)
        with torch.no_grad():
            odds = model(prepared(batch, scale, known.dtype))[0, : len(names)].softmax(0)
        best = odds.topk(min(top, len(names)))
        ranked = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        out.append(Prediction(str(path), [(names[label], value) for label, value in ranked]))
    return out


def one_run(path: Path) -> Path:
    """The run folder at this path, or the only one under it."""
    folders = find_runs([path])
    if len(folders) > 1:
        raise ConfigError(f"{path}: holds {len(folders)} runs; name one of them, such as {folders[0]}")
    return folders[0]


def _task(folder: Path, task: str) -> tuple[int, TaskInfo]:
    """A task's number from 0 and what is known of it."""
    tasks = read_tasks(folder)
    names = [about.name for about in tasks]
    if task.isdecimal() and 1 <= int(task) <= len(tasks):
        return int(task) - 1, tasks[int(task) - 1]
    if task not in names:
        known = ", ".join(f"{number} ({name})" for number, name in enumerate(names, 1))
        hint = near(task, dict.fromkeys(names))
        raise ConfigError(f"--task: {task!r} is not a task of {folder}{hint}; there are {known}")
    if names.count(task) > 1:
        which = " and ".join(str(number) for number, name in enumerate(names, 1) if name == task)
        raise ConfigError(f"--task: {task!r} is the name of tasks {which} of {folder}; give the number")
    return names.index(task), tasks[names.index(task)]


def _check_norms(folder: Path, model: nn.Module) -> None:
    if any(norm.running_mean is None for norm in norms.batch_norms(model).values()):
        raise ConfigError(
            f"{folder}: its norms use the statistics of their batch, so one image alone cannot be classified; train it"
            " with --set train.norm_statistics=task"
        )


def _read(path: Path, about: TaskInfo, resize: bool) -> Tensor:
    """An image file as the task's images are stored [1, channels, height, width]."""
    if about.stored != "uint8" or len(about.shape) != 3 or about.original[0] not in CHANNELS:
        raise ConfigError(
            f"task {about.name!r} was not trained on pictures; use codecl.load(run, task) on tensors of your own"
        )
    try:
        image = decode(path.read_bytes(), str(path))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    if image is None:
        raise DataError(f"{path}: is not an image that can be read")
    channels, height, width = about.original
    if image.size != (width, height) and not resize:
        raise ConfigError(
            f"{path}: is {image.width}×{image.height}, task {about.name!r} takes {width}×{height}; --resize scales"
        )
    values = torch.from_numpy(pixels(image, (width, height), CHANNELS[channels]).copy())
    return shaped(values[None], about.shape)
