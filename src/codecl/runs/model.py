"""The model in a run folder: saved by task, and loaded as a user's module again."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from codecl.errors import CodeclError, ConfigError, ConfigWarning, DataError
from codecl.files import replacing
from codecl.models import MODELS
from codecl.registry import reason, source_digest
from codecl.runs import code
from codecl.runs.build import build_model, stateless_copy
from codecl.runs.config import RunConfig
from codecl.runs.reader import read_config, read_layers, read_tasks
from codecl.runs.sizes import check_size
from codecl.space import norms
from codecl.space.calling import output_of
from codecl.space.kept import Kept
from codecl.space.wrapped import copied, unwrapped, weight_norms
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


def load(
    folder: str | Path,
    task: int | None = None,
    model: nn.Module | None = None,
    *,
    warn: bool = True,
    allow_code: bool = False,
) -> nn.Module:
    """The module of a run as it is for `task` (from 0), ready for inference; None: one for all tasks (`AllTasks`).
    `model`: yours, if the run's was. `allow_code`: run the code that the folder's config names to build its model."""
    path = Path(folder)
    config = read_config(path)
    if model is None:
        code.check_model(config, path, allow_code)
        model = recorded_model(path, config)
    if task is None:
        module: nn.Module = _all_tasks(path, config, model)
    else:
        module = _task_model(path, config, model, task)
    if warn and norms.depends_on_batch(module):
        line = "model: its norms use the statistics of their batch, so a prediction depends on the other images there;"
        warnings.warn(f"{line} train with train.norm_statistics=task", ConfigWarning, stacklevel=2)
    return module


def _task_model(path: Path, config: RunConfig, model: nn.Module, task: int) -> nn.Module:
    body, own = path / "model" / "body.safetensors", path / "model" / f"task-{task + 1}.safetensors"
    if not body.is_file() or not own.is_file():
        raise DataError(f"{path}: holds no model of task {task + 1} (index {task}: the first task has index 0)")
    try:
        shared, kept = load_file(body), read_kept(own)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path}: the weights of task {task + 1} cannot be read ({reason(error)})") from error
    module = (_own_copy(model) if kept.statistics else stateless_copy(model, config)).to(getattr(torch, config.dtype))
    normed = weight_norms(module)
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


def _own_copy(model: nn.Module) -> nn.Module:
    """A copy that has all that its class has, running statistics too."""
    return copied(unwrapped(model))


class AllTasks(nn.Module):
    """The models of all tasks, for images of which nobody says the task: it gives the outputs of all heads side by
    side, and the largest says the class, and the task with it (`task_of`)."""

    def __init__(self, models: Sequence[nn.Module], classes: Sequence[int]) -> None:
        super().__init__()
        self.models, self.classes = nn.ModuleList(models), tuple(classes)

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        given = [output_of(model(*inputs, **named)) for model in self.models]
        return torch.cat([some[:, :count] for some, count in zip(given, self.classes, strict=True)], 1)

    def task_of(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """(task, class in it), both from 0, of each row of outputs."""
        ends = torch.tensor(self.classes, device=outputs.device).cumsum(0)
        best = outputs.argmax(1)
        task = torch.searchsorted(ends, best, right=True)
        return task, best - (ends - ends.diff(prepend=ends.new_zeros(1)))[task]


def _all_tasks(path: Path, config: RunConfig, model: nn.Module) -> AllTasks:
    tasks = read_tasks(path)
    scales = {(about.mean, about.std, about.stored) for about in tasks}
    if len(scales) > 1 or config.head is None:
        why = "scale their images differently" if len(scales) > 1 else "share one head"
        raise ConfigError(f"{path}: its tasks {why}: load each with codecl.load(run, task)")
    models = [_task_model(path, config, model, number) for number in range(len(tasks))]
    return AllTasks(models, [about.classes for about in tasks])


def recorded_model(path: Path, config: RunConfig) -> nn.Module:
    """The model that a config names (`code.check_model` comes first), if it can still be built and its code is what it
    was."""
    if config.model.name == "own":
        raise ConfigError(f"{path}: was made with a model of your own: pass it, codecl.load(run, task, model)")
    try:
        check_size(path, config)
        source = source_digest("model", MODELS, config.model.name)
        first = read_tasks(path)[0]
        model = build_model(config, first.shape, first.classes)
    except CodeclError as error:
        raise ConfigError(f"{path}: {error}; or pass the model: codecl.load(run, task, model)") from error
    if source != config.sources.get("model"):
        raise ConfigError(
            f"{path}: {config.model.name} has changed since; pass the model: codecl.load(run, task, model)"
        )
    return model
