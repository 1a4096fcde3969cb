"""Batch norms by statistics that agents gossip: mean and mean square of each channel are coordinates like others, drawn
to what an agent's batches have and mixed with its neighbours'. An agent that has few classes then normalises as all do.

A norm gives what it gives with these statistics; its gradient is that of a norm by its batch, as in batch
renormalisation (Ioffe 2017), since a gradient that takes statistics as constants is unstable.
Shapes: A agents of this process, D coordinates of an agent, B images of a batch, C channels of a norm.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from codecl.methods.base import LR
from codecl.space.layout import Layout
from codecl.space.norms import MOMENTS

RATE = 0.05  # of the way to its batch's statistics that an agent's go in a step
SCALES, SHIFTS = 4.0, 4.0  # at most, between a batch's statistics and the shared ones
Settle = Callable[[Tensor, Tensor, LR], Tensor]  # direction, gradient, lr -> direction


def follow(norm: nn.Module, note: Callable[[Tensor], None]) -> None:
    """Let a batch norm work by its shared statistics. `note` gets half the squared distance of these to its batch's:
    what draws them there, when its gradient is descended at `RATE`."""
    features, eps = int(getattr(norm, "num_features", 0)), float(getattr(norm, "eps", 1e-5))
    norm.register_parameter(MOMENTS, nn.Parameter(torch.empty(2, features)))

    def forward(images_B: Tensor) -> Tensor:
        shared_2C: Tensor = getattr(norm, MOMENTS)
        values_B = images_B.to(shared_2C.dtype)
        dims = [0, *range(2, values_B.ndim)]
        mean_C, square_C = values_B.mean(dims), values_B.square().mean(dims)
        note((shared_2C - torch.stack([mean_C, square_C]).detach()).square().sum() / 2)
        root_C = ((square_C - mean_C.square()).clamp(min=0) + eps).sqrt()
        shared_C, shared_square_C = shared_2C.detach()
        shared_root_C = ((shared_square_C - shared_C.square()).clamp(min=0) + eps).sqrt()
        scale_C = (root_C.detach() / shared_root_C).clamp(1 / SCALES, SCALES)
        shift_C = ((mean_C.detach() - shared_C) / shared_root_C).clamp(-SHIFTS, SHIFTS)
        shape = [1, features] + [1] * (values_B.ndim - 2)
        out_B = (values_B - mean_C.view(shape)) * (scale_C / root_C).view(shape) + shift_C.view(shape)
        if getattr(norm, "affine", False):
            weight_C, bias_C = cast(Tensor, norm.weight), cast(Tensor, norm.bias)
            out_B = out_B * weight_C.view(shape) + bias_C.view(shape)
        return out_B.to(images_B.dtype)

    norm.forward = forward


def make_settle(layout: Layout) -> tuple[Tensor | None, Settle]:
    """(which coordinates an optimizer moves [D], None: all; how the others move: `RATE` of the way, whatever η is)."""
    if not any(slot.kind == "statistics" for slot in layout.slots):
        return None, lambda direction_AD, grad_AD, lr: direction_AD
    start_D = layout.start()
    parts = [torch.full((slot.size,), float(slot.kind != "statistics")) for slot in layout.slots]
    optimized_D = torch.cat(parts).to(start_D)

    def settle(direction_AD: Tensor, grad_AD: Tensor, lr: Any) -> Tensor:
        return torch.where(optimized_D > 0, direction_AD, grad_AD * RATE / lr)

    return optimized_D, settle
