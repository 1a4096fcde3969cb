"""A pretrained start: weights from a file, by name, where they fit."""

import hashlib
import warnings
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from codecl.errors import ConfigError, ConfigWarning, DataError
from codecl.registry import reason

WRAPPERS = ("module.", "_orig_mod.")  # what DataParallel and torch.compile put before names
SHOWN = 3  # names of a kind that a notice tells


def file_digest(path: str) -> str:
    """Of the file's bytes: a run from other weights is another run."""
    try:
        with Path(path).expanduser().open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError as error:
        raise DataError(f"init: {path} cannot be read ({error.strerror}); give a .safetensors file") from error


def put_weights(module: nn.Module, path: str) -> None:
    """Give the module's parameters and buffers the values that the file has under their names, where shapes fit.

    What does not match is told in one warning; a file of which nothing fits is refused."""
    try:
        found = load_file(Path(path).expanduser())
    except (OSError, SafetensorError) as error:
        raise DataError(f"init: {path} is not a .safetensors file that can be read ({reason(error)})") from error
    values = {_plain(name): value for name, value in found.items()}
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    fits = [name for name in own if name in values and values[name].shape == own[name].shape]
    if not fits:
        raise ConfigError(
            f"init: no tensor of {path} fits the model; it has {_some(values)}, and the model has {_some(own)}"
        )
    with torch.no_grad():
        for name in fits:
            own[name].copy_(values[name])
    other_shape = [f"{name} {list(values[name].shape)}" for name in own if name in values and name not in fits]
    kinds = {
        "not in the file": [name for name in own if name not in values],
        "of another shape there": other_shape,
        "not in the model": [name for name in values if name not in own],
    }
    odd = "; ".join(f"{kind}: {_some(names)}" for kind, names in kinds.items() if names)
    if odd:
        warnings.warn(f"init: {len(fits)} of {len(own)} tensors are from {path}; {odd}", ConfigWarning, stacklevel=2)


def _plain(name: str) -> str:
    for prefix in WRAPPERS:
        name = name.removeprefix(prefix)
    return name


def _some(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(listed[:SHOWN]) + more
