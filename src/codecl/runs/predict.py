"""What image files show, by what a run has learned; each by itself."""

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
from codecl.registry import near, reason
from codecl.runs.model import load
from codecl.runs.reader import one_run, read_config, read_tasks
from codecl.space import norms
from codecl.space.calling import output_of


class Prediction(NamedTuple):
    image: str
    classes: list[tuple[str, float]]  # what it is called and how probable it is, the most probable first


class TaskModel(NamedTuple):
    """What one task has learned, and the names of its classes."""

    about: TaskInfo
    module: nn.Module
    names: Sequence[str]

    def outputs(self, path: Path, resize: bool) -> Tensor:
        """A number for each class."""
        batch = _read(path, self.about, resize)
        dtype = next(self.module.parameters()).dtype
        scale = scale_of(self.about.name, (self.about.mean, self.about.std), batch, dtype)
        try:
            with torch.no_grad():
                return output_of(self.module(prepared(batch, scale, dtype)))[0, : len(self.names)]
        except RuntimeError as error:
            shape = list(self.about.shape)
            raise DataError(
                f"{path}: the model of task {self.about.name!r} does not take images of {shape} ({reason(error)})"
            ) from error


def predict(
    run: Path,
    task: str | None,
    images: Sequence[Path],
    resize: bool = False,
    top: int = 1,
    allow_code: bool = False,
) -> list[Prediction]:
    """What each of these images is, among the classes of a task (its name, or its number from 1), or among those of all
    tasks: then a class is called `task: class`."""
    folder = one_run(run)
    learned, abouts = read_config(folder).train, read_tasks(folder)
    if learned.score != "accuracy":
        raise ConfigError(
            f"{folder}: its images have no classes (train.loss is {learned.loss}); use codecl.load(run, task) and the"
            " numbers that it gives"
        )
    numbers = range(len(abouts)) if task is None else [_number(folder, abouts, task)]
    loaded = {number: load(folder, number, warn=False, allow_code=allow_code) for number in numbers}
    models = [_model(folder, module, abouts[number], task is not None) for number, module in loaded.items()]
    names = [name for model in models for name in model.names]
    out = []
    for path in images:
        odds = torch.cat([model.outputs(path, resize) for model in models]).softmax(0)
        best = odds.topk(min(top, len(names)))
        ranked = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        out.append(Prediction(str(path), [(names[label], value) for label, value in ranked]))
    return out


def _model(folder: Path, module: nn.Module, about: TaskInfo, told: bool) -> TaskModel:
    if norms.depends_on_batch(module):
        raise ConfigError(
            f"{folder}: its norms use the statistics of their batch, so one image alone cannot be classified; train it"
            " with --set train.norm_statistics=task"
        )
    names = about.labels or tuple(map(str, range(about.classes)))
    return TaskModel(about, module, names if told else [f"{about.name}: {name}" for name in names])


def _number(folder: Path, tasks: Sequence[TaskInfo], task: str) -> int:
    """A task's number, from 0."""
    names = [about.name for about in tasks]
    if task.isdecimal() and 1 <= int(task) <= len(tasks):
        return int(task) - 1
    if task not in names:
        known = ", ".join(f"{number} ({name})" for number, name in enumerate(names, 1))
        hint = near(task, dict.fromkeys(names))
        raise ConfigError(f"--task: {task!r} is not a task of {folder}{hint}; there are {known}")
    if names.count(task) > 1:
        which = " and ".join(str(number) for number, name in enumerate(names, 1) if name == task)
        raise ConfigError(f"--task: {task!r} is the name of tasks {which} of {folder}; give the number")
    return names.index(task)


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
