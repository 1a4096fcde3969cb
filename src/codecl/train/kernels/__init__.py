"""Kernels for stacked agents on a GPU: a layer of all agents in one launch, where PyTorch's own pay for stacking."""

from importlib.util import find_spec

import torch
from torch import nn

from codecl.train.execution import Precision


def available(device: torch.device, dtype: torch.dtype) -> bool:
    """Triton comes with PyTorch's builds for CUDA. float64 stays with PyTorch."""
    return device.type == "cuda" and dtype == torch.float32 and find_spec("triton") is not None


def install(module: nn.Module, precision: Precision) -> list[nn.Module]:
    """Let the convolutions and batch norms of this module run all agents that vmap stacks in one launch each.

    Gives the layers that were changed (`del layer.forward` changes them back). Those that the kernels do not know
    (groups, dilation, other paddings, subclasses) stay as they are."""
    from codecl.train.kernels.stacked import convolution, normalisation

    changed: list[nn.Module] = []
    for layer in module.modules():
        if "forward" in vars(layer):
            continue
        forward = None
        if isinstance(layer, nn.Conv2d) and type(layer) is nn.Conv2d:
            plain = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
            forward = convolution(layer, precision) if plain and isinstance(layer.padding, tuple) else None
        elif isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d) and type(layer) in (nn.BatchNorm1d, nn.BatchNorm2d):
            forward = normalisation(layer) if layer.affine and layer.running_mean is None else None
        if forward:
            layer.forward = forward
            changed.append(layer)
    return changed
