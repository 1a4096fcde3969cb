"""How large the model of a run folder may be: as large as the weights in it, and not as its config says."""

from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_module_registration_hook

from codecl.errors import DataError
from codecl.models import MODELS
from codecl.runs.build import build_model
from codecl.runs.config import RunConfig
from codecl.runs.reader import read_tasks

ROOM, LEAST = 1 << 20, 512  # bytes of weights that any folder may lack, and that a part of a model has


def check_size(path: Path, config: RunConfig) -> None:
    """Refuse a model of ours that is larger than the weights in its folder, before memory is taken for it: it is built
    without numbers first."""
    if config.model.name not in MODELS:
        return
    first, weights = read_tasks(path)[0], [*(path / "model").glob("*.safetensors")]
    held = ROOM + 2 * sum(file.stat().st_size for file in weights)
    left = count(held // LEAST, -1)

    def registered(*_: Any) -> None:
        if next(left) < 0:
            raise RuntimeError("it has more parts than there are weights in the folder")

    hook = register_module_module_registration_hook(registered)
    try:
        with torch.device("meta"):
            model = build_model(config, first.shape, first.classes)
    finally:
        hook.remove()
    if sum(value.nbytes for value in model.parameters()) > held:
        raise DataError(f"its model, {config.model.name}, is larger than the weights in the folder")
