"""The model in a run folder: saved by task, loaded as a user's module again, and asked what image files show."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from codecl.data.images import prepared, scale_of
from codecl.data.readers.pictures import CHANNELS, decode, pixels
from codecl.data.streams import shaped
from codecl.data.task import TaskInfo
from codecl.errors import CodeclError, ConfigError, DataError
from codecl.files import replacing
from codecl.models import MODELS
from codecl.registry import near, source_digest
from codecl.runs.build import build_model, stateless_copy
from codecl.runs.config import RunConfig
from codecl.runs.reader import one_run, read_config, read_layers, read_tasks
from codecl.space import norms
from codecl.space.kept import Kept
from codecl.space.wrapped import weight_norms
from codecl.train.state import State

DIRECTIONS, COORDINATES = "directions/", "coordinates/"  # before the names of layers in a task's file


def save_model(state: State, folder: Path) -> None:
    """body.safetensors, and what each task keeps for itself in task-<t>.safetensors (tasks from 1): its head, own norms
    and norm statistics by their names, own directions D and their coordinates u by layer and group."""
    files: dict[str, Mapping[str, Tensor]] = {"body": state.parameters}
    for number, kept in enumerate(state.kept, 1):
        files[f"task-{number}"] = {
            **kept.parameters,
            **kept.statistics,
            **{DIRECTIONS + name: value for name, value in kept.directions.items()},
            **{COORDINATES + name: value for name, value in kept.coordinates.items()},
        }
    for name, tensors in files.items():
        with replacing(folder / f"{name}.safetensors") as unfinished:
            save_file({k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}, unfinished)


def read_kept(path: Path) -> Kept:
    """What a task keeps, from its file."""
    parts: dict[str, dict[str, Tensor]] = {"": {}, DIRECTIONS: {}, COORDINATES: {}}
    for name, value in load_file(path).items():
        prefix = next((prefix for prefix in (DIRECTIONS, COORDINATES) if name.startswith(prefix)), "")
        parts[prefix][name.removeprefix(prefix)] = value
    parameters = parts[""]
    statistics = {name: parameters.pop(name) for name in list(parameters) if norms.is_statistic(name)}
    return Kept(parameters, statistics, parts[DIRECTIONS], parts[COORDINATES])


def load(folder: str | Path, task: int, model: nn.Module | None = None) -> nn.Module:
    """The module of a run as it is for `task` (from 0), ready for inference. `model`: yours, if the run's was."""
    path = Path(folder)
    config = read_config(path)
    if model is None:
        model = recorded_model(path, config)
    body, own = path / "model" / "body.safetensors", path / "model" / f"task-{task + 1}.safetensors"
    if not body.is_file() or not own.is_file():
        raise DataError(f"{path}: holds no model of task {task + 1} (index {task}: the first task has index 0)")
    module = stateless_copy(model).to(getattr(torch, config.dtype))
    shared, kept, normed = load_file(body), read_kept(own), weight_norms(module)
    known = {**dict(module.named_parameters()), **{name: weight.v for name, weight in normed.items()}}
    for name, value in {**shared, **kept.parameters}.items():
        compared = slice(1, None) if name not in shared else slice(None)  # a head may have another number of classes
        if name not in known or known[name].shape[compared] != value.shape[compared]:
            raise ConfigError(
                f"{path}: the model does not fit this run at {name!r}; pass the one that it was made with"
            )
    layers = read_layers(path, shared) if kept.directions else []
    for name, value in kept.model(layers, shared).items():
        if name in normed:
            normed[name].put(value)
        else:
            known[name].data = value  # in place: layers that share a parameter go on sharing it
        layer = module.get_submodule(name.rpartition(".")[0])
        if isinstance(layer, nn.Linear):
            layer.out_features = known[name].shape[0]
    norms.put(module, kept.statistics)
    return module.eval()


def recorded_model(path: Path, config: RunConfig) -> nn.Module:
    """The model that a config names, if it can still be built and its code is what it was."""
    if config.model.name == "own":
        raise ConfigError(f"{path}: was made with a model of your own: pass it, codecl.load(run, task, model)")
    try:
        code = source_digest("model", MODELS, config.model.name)
        first = read_tasks(path)[0]
        model = build_model(config, first.shape, first.classes)
    except CodeclError as error:
        raise ConfigError(f"{path}: {error}; or pass the model: codecl.load(run, task, model)") from error
    if code != config.sources.get("model"):
        raise ConfigError(
            f"{path}: {config.model.name} has changed since; pass the model: codecl.load(run, task, model)"
        )
    return model


class Prediction(NamedTuple):
    image: str
    classes: list[tuple[str, float]]  # what it is called and how probable it is, the most probable first


def predict(run: Path, task: str, images: Sequence[Path], resize: bool = False, top: int = 1) -> list[Prediction]:
    """What each of these images is, by itself, among the classes of a task (its name, or its number from 1)."""
    folder = one_run(run)
    number, about = _task(folder, task)
    learned = read_config(folder).train
    if learned.score != "accuracy":
        raise ConfigError(
            f"{folder}: its images have no classes (train.loss is {learned.loss}); use codecl.load(run, task) and the"
            " numbers that it gives"
        )
    model = load(folder, number)
    if any(norm.running_mean is None for norm in norms.batch_norms(model).values()):
        raise ConfigError(
            f"{folder}: its norms use the statistics of their batch, so one image alone cannot be classified; train it"
            " with --set train.norm_statistics=task"
        )
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
