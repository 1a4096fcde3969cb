"""A call that multiplies by a weight: how the stored weight is a matrix, and the inputs of the call as columns.

Shapes: G groups, O outputs of a group, N inputs, P patches or rows.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Form(NamedTuple):
    """How a stored weight is a matrix [G, O, N]: viewed, its dimensions put in this order, then joined."""

    groups: int
    outputs: int  # of a group
    inputs: int  # the bias not counted
    view: tuple[int, ...] = ()  # empty: it is stored in that order
    order: tuple[int, ...] = ()


class Call(NamedTuple):
    """One use of a weight as a matrix."""

    kind: str
    inputs: tuple[Tensor, ...]  # what it multiplies
    weight: Tensor  # the parameter
    bias: Tensor | None
    form: Form
    rows: int  # rows or patches that it multiplies
    images_in: tuple[int, ...]  # dimensions of the inputs in which images may lie
    options: Any = None  # what `columns` needs besides
    padding: int | None = None  # of tokens: the one that never trains
    refusal: str = ""  # why it cannot be followed


class Window(NamedTuple):
    """What a convolution looks at."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    margins: tuple[tuple[int, int], ...]


def form_of(root: Tensor, operand: Tensor, roles: str, groups: int = 1) -> Form | None:
    """The form of a parameter that is used as `operand`, a view of it whose dimensions are groups, outputs or inputs
    (g, o, n). `groups`: so many in the first dimension, which stands for two. None: it is no such view."""
    sizes, strides = _layout(root, operand)
    if groups > 1:
        sizes = (groups, sizes[0] // groups, *sizes[1:])
        strides = (strides[0] * sizes[1], *strides)
        roles = "g" + roles
    real = [d for d, size in enumerate(sizes) if size != 1 and strides[d]]
    stored = sorted(real, key=lambda d: -strides[d])
    dense = [math.prod(sizes[d] for d in stored[place + 1 :]) for place in range(len(stored))]
    if [strides[d] for d in stored] != dense or math.prod(sizes[d] for d in real) != root.numel():
        return None
    order = tuple(stored.index(d) for role in "gon" for d in real if roles[d] == role)
    groups, outputs, inputs = (math.prod(sizes[d] for d in real if roles[d] == role) for role in "gon")
    if order == tuple(sorted(order)):
        return Form(groups, outputs, inputs)
    return Form(groups, outputs, inputs, tuple(sizes[d] for d in stored), order)


def _layout(root: Tensor, operand: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and strides of a view, as if its parameter were stored in one piece."""
    sizes = tuple(operand.shape)
    if operand is not root:
        return sizes, operand.stride() if root.is_contiguous() else (0,) * len(sizes)
    return sizes, tuple(math.prod(sizes[d + 1 :]) for d in range(len(sizes)))


def is_view(root: Tensor, result: Any) -> bool:
    """Whether a tensor has the values of a parameter, all of them and nothing else, in whatever order."""
    if not isinstance(result, Tensor) or result.dtype != root.dtype or root.numel() == 0:
        return False
    if result.layout != torch.strided or result.is_nested or not has_storage(result):
        return False
    spread = math.prod(size for size, stride in zip(result.shape, result.stride(), strict=True) if stride or size == 1)
    return result.data_ptr() == root.data_ptr() and spread == root.numel()


def has_storage(tensor: Tensor) -> bool:
    """Whether a tensor has values of its own; inside torch.vmap it has none."""
    try:
        tensor.data_ptr()
    except RuntimeError:
        return False
    return True


def columns(call: Call) -> Tensor | list[Tensor]:
    """A call's inputs as columns [N, P] of each group, padding included, the bias not."""
    inputs = call.inputs[0]
    if call.kind == "linear":
        return inputs.reshape(-1, inputs.shape[-1]).mT[None]
    if call.kind == "linears":
        return [each.reshape(-1, each.shape[-1]).mT for each in call.inputs]
    if call.kind == "product":
        return inputs.permute(call.options).reshape(call.form.groups, call.form.inputs, -1)
    dimensions = len(call.options.size) if call.kind == "conv" else call.options
    inputs = inputs if inputs.ndim == dimensions + 2 else inputs[None]  # one image without a batch
    patches_BNP = _patches(inputs, call.options) if call.kind == "conv" else inputs.flatten(2)
    batch, _, patches = patches_BNP.shape
    return patches_BNP.reshape(batch, call.form.groups, -1, patches).permute(1, 2, 0, 3).flatten(2)


def _patches(inputs: Tensor, window: Window) -> Tensor:
    """What a convolution looks at, place by place [B, channels · size, P]."""
    size, stride, dilation, margins = window
    inputs = functional.pad(inputs, [side for margin in reversed(margins) for side in margin])
    if len(size) == 1:  # a 1-d convolution is a 2-d one of height 1
        inputs, size, stride, dilation = inputs.unsqueeze(-2), (1, *size), (1, *stride), (1, *dilation)
    if len(size) == 2:
        return functional.unfold(inputs, size, dilation=dilation, stride=stride)
    for d, (k, step, apart) in enumerate(zip(size, stride, dilation, strict=True), 2):
        inputs = inputs.unfold(d, apart * (k - 1) + 1, step)[..., ::apart]  # its window becomes the last dimension
    places = inputs.ndim - len(size)
    return inputs.permute(0, 1, *range(places, inputs.ndim), *range(2, places)).flatten(places).flatten(1, places - 1)
