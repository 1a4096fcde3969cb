"""What people wrap modules and weights in: data parallelism, compilation, weight norm. Our copy is without; what a user
gets back has the weight norm again."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.utils import parametrize, remove_weight_norm
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.weight_norm import WeightNorm

from codecl.errors import ConfigError


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside DataParallel, DistributedDataParallel and torch.compile."""
    if isinstance(module, DataParallel | DistributedDataParallel):
        return unwrapped(module.module)
    if type(module).__name__ == "OptimizedModule":  # by name: to import it takes seconds
        return unwrapped(module.get_submodule("_orig_mod"))
    return module


class NormedWeight(NamedTuple):
    """A weight with weight norm: g · v / ‖v‖."""

    part: nn.Module
    name: str  # of the weight in it
    g: nn.Parameter
    v: nn.Parameter
    dim: int  # that has a number of g each; -1: there is one
    is_hook: bool  # torch.nn.utils.weight_norm; else parametrizations.weight_norm

    def put(self, weight: Tensor) -> None:
        """Make it this weight."""
        self.g.data, self.v.data = torch.norm_except_dim(weight, 2, self.dim), weight


def weight_norms(module: nn.Module) -> dict[str, NormedWeight]:
    """Every weight with weight norm, by the name that it has without."""
    found = {}
    for prefix, part in module.named_modules():
        for each in (*_hooks(part), *_parametrizations(part)):
            found[f"{prefix}.{each.name}".lstrip(".")] = each
    return found


def _hooks(part: nn.Module) -> list[NormedWeight]:
    hooks = [hook for hook in part._forward_pre_hooks.values() if isinstance(hook, WeightNorm)]
    return [
        NormedWeight(part, h.name, getattr(part, f"{h.name}_g"), getattr(part, f"{h.name}_v"), h.dim, True)
        for h in hooks
    ]


def _parametrizations(part: nn.Module) -> list[NormedWeight]:
    """Of a part with weight norms and no other parametrization."""
    ways: Any = getattr(part, "parametrizations", {}) if parametrize.is_parametrized(part) else {}
    if not all(len(way) == 1 and isinstance(way[0], _WeightNorm) for way in ways.values()):
        return []
    return [NormedWeight(part, name, way.original0, way.original1, way[0].dim, False) for name, way in ways.items()]


def without_weight_norms(module: nn.Module) -> nn.Module:
    """Weights as they are multiplied by, without weight norm. Changes the module in place."""
    found = weight_norms(module)
    weights = {name: getattr(normed.part, normed.name).detach().clone() for name, normed in found.items()}
    for name, normed in found.items():
        trains = normed.g.requires_grad
        if trains != normed.v.requires_grad:
            raise ConfigError(
                f"model: of the weight norm of {name!r} only one part has requires_grad on, which codecl cannot follow;"
                " let both train or none"
            )
        if normed.is_hook:
            remove_weight_norm(normed.part, normed.name)
            del normed.part._parameters[normed.name]
        elif parametrize.is_parametrized(normed.part):  # PyTorch's way out would change a class that copies share
            del normed.part.parametrizations
            normed.part.__class__ = type(normed.part).__bases__[0]
        normed.part.register_parameter(normed.name, nn.Parameter(weights[name], trains))
    return module


def copied(module: nn.Module) -> nn.Module:
    """A copy; weights that are computed before each call, as old weight norms are, may stand in its way."""
    with _computed_weights_detached(module):
        return copy.deepcopy(module)


@contextmanager
def _computed_weights_detached(module: nn.Module) -> Iterator[None]:
    computed = [(each.part, each.name) for each in weight_norms(module).values() if each.is_hook]
    before = [getattr(part, name) for part, name in computed]
    for (part, name), value in zip(computed, before, strict=True):
        setattr(part, name, value.detach())
    try:
        yield
    finally:
        for (part, name), value in zip(computed, before, strict=True):
            setattr(part, name, value)
