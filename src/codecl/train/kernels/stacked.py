"""Where vmap meets the kernels: a layer's forward for one agent, with a rule for all of them at once.

Shapes: A agents, B images of a batch, C channels.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from codecl.train.execution import Precision
from codecl.train.kernels import conv, norm

Forward = Callable[[Tensor], Tensor]


def convolution(layer: nn.Conv2d, precision: Precision) -> Forward:
    shape = conv.Shape(_pair(layer.kernel_size), _pair(layer.stride), _pair(layer.padding))
    exact = "ieee" if precision == "highest" else "tf32"

    def forward(images: Tensor) -> Tensor:
        out: Tensor = _Convolution.apply(images, layer.weight, shape, exact)
        return out if layer.bias is None else out + layer.bias[:, None, None].to(out.dtype)

    return forward


def _pair(sizes: Any) -> tuple[int, int]:
    rows, columns = sizes
    return rows, columns


def normalisation(layer: nn.BatchNorm1d | nn.BatchNorm2d) -> Forward:
    def forward(images: Tensor) -> Tensor:
        out: Tensor = _Norm.apply(images, layer.weight, layer.bias, layer.eps)
        return out

    return forward


class _Stacked(torch.autograd.Function):
    """Has a rule for vmap alone: agents are always stacked here."""

    @staticmethod
    def forward(*_: Any) -> Tensor:
        raise NotImplementedError("a kernel for agents that vmap stacks was called for one agent")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...


class _Convolution(_Stacked):
    @staticmethod
    def vmap(info: Any, dims: Any, images: Tensor, weight: Tensor, shape: conv.Shape, precision: str) -> Any:
        images_AB, weight_A = _front(images, dims[0], info.batch_size), _front(weight, dims[1], info.batch_size)
        if torch.is_autocast_enabled("cuda"):
            half = torch.get_autocast_dtype("cuda")
            images_AB, weight_A = images_AB.to(half), weight_A.to(half)
        return conv.Stacked.apply(images_AB, weight_A, shape, precision), 0


class _Norm(_Stacked):
    @staticmethod
    def vmap(info: Any, dims: Any, images: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Any:
        images_AB, weight_AC, bias_AC = (
            _front(value, dim, info.batch_size) for value, dim in zip((images, weight, bias), dims[:3], strict=True)
        )
        return norm.Stacked.apply(images_AB, weight_AC, bias_AC, epsilon), 0


def _front(value: Tensor, dim: int | None, agents: int) -> Tensor:
    """Agents in front; what they share is seen by each."""
    return value.expand(agents, *value.shape) if dim is None else value.movedim(dim, 0)
