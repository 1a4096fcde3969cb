"""Kernels for stacked agents on a GPU: a layer of all agents in one launch, where PyTorch's own pay for stacking."""

from importlib.util import find_spec

import torch
from torch import nn

from codecl.train.precision import Precision


def available(device: torch.device, dtype: torch.dtype) -> bool:
    """Triton comes with PyTorch's builds for CUDA. float64 stays with PyTorch."""
    return device.type == "cuda" and dtype == torch.float32 and find_spec("triton") is not None


def install(module: nn.Module, precision: Precision) -> list[nn.Module]:
    """Let the convolutions and batch norms of this module run all agents that vmap stacks in one launch each.

    Gives the layers that were changed (`del layer.forward` changes them back). Those that the kernels do not know
    (groups, dilation, other paddings, subclasses) stay as they are."""
    from codecl.train.kernels.stacked import convolution, normalisation

    changed: list[nn.Module] = []
    for part in module.modules():
        if "forward" in vars(part):
            continue
        forward = None
        if isinstance(part, nn.Conv2d) and type(part) is nn.Conv2d:
            plain = part.groups == 1 and part.dilation == (1, 1) and part.padding_mode == "zeros"
            forward = convolution(part, precision) if plain and isinstance(part.padding, tuple) else None
        elif isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d) and type(part) in (nn.BatchNorm1d, nn.BatchNorm2d):
            forward = normalisation(part) if part.affine and part.running_mean is None else None
        if forward:
            part.forward = forward
            changed.append(part)
    return changed
