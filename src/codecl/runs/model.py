"""The model in a run folder: saved by task, and loaded as a user's module again, ready for inference."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from codecl.errors import CodeclError, ConfigError, DataError
from codecl.files import replacing
from codecl.models import MODELS
from codecl.registry import source_digest
from codecl.runs.build import build_model, own_copy
from codecl.runs.config import RunConfig
from codecl.runs.reader import read_config, read_tasks
from codecl.space import norms
from codecl.train.state import State


def save_model(state: State, folder: Path) -> None:
    """body.safetensors, and head and norm statistics of each task in task-<t>.safetensors (tasks from 1)."""
    _save(state.parameters, folder / "body.safetensors")
    for number, (head, statistics) in enumerate(zip(state.heads, state.norms, strict=True), 1):
        _save({**head, **statistics}, folder / f"task-{number}.safetensors")


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    with replacing(path) as unfinished:
        save_file({k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}, unfinished)


def load(folder: str | Path, task: int, model: nn.Module | None = None) -> nn.Module:
    """The module of a run with the head of `task` (from 0), ready for inference. `model`: yours, if the run's was."""
    path = Path(folder)
    config = read_config(path)
    if model is None:
        model = _recorded_model(path, config)
    body, own = path / "model" / "body.safetensors", path / "model" / f"task-{task + 1}.safetensors"
    if not body.is_file() or not own.is_file():
        raise DataError(f"{path}: holds no model for task {task} (tasks are counted from 0)")
    module = own_copy(model).to(getattr(torch, config.dtype))
    known, of_task = dict(module.named_parameters()), load_file(own)
    statistics = {name: of_task.pop(name) for name in list(of_task) if norms.is_statistic(name)}
    for name, value in {**load_file(body), **of_task}.items():
        compared = slice(1, None) if name in of_task else slice(None)  # a head may have another number of classes
        if name not in known or known[name].shape[compared] != value.shape[compared]:
            raise ConfigError(
                f"{path}: the model does not fit this run at {name!r}; pass the one that it was made with"
            )
        known[name].data = value  # in place: layers that share a parameter go on sharing it
        layer = module.get_submodule(name.rpartition(".")[0])
        if isinstance(layer, nn.Linear):
            layer.out_features = layer.weight.shape[0]
    norms.put(module, statistics)
    return module.eval()


def _recorded_model(path: Path, config: RunConfig) -> nn.Module:
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
