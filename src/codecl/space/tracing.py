"""A module at work: which linear and convolution calls it makes, and their inputs as columns.

Shapes: G groups, N inputs, P patches or rows.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from codecl.data.inputs import Inputs, count, shape_of
from codecl.errors import ConfigError
from codecl.registry import reason
from codecl.space.calling import call

CALLS = {functional.linear: "linear", torch.conv1d: "conv1d", torch.conv2d: "conv2d"}
LIKE = {"new_zeros", "new_ones", "new_empty", "new_full", "new_tensor", "zeros_like", "ones_like", "empty_like"}
LIKE_ITS_ARGUMENT = {"to", "type_as", "view_as", "expand_as", "reshape_as"}  # `x.to(weight)` reads no values of weight


class Call(NamedTuple):
    """One call of a linear or convolution, as it was made."""

    kind: str
    inputs: Tensor
    weight: Tensor
    bias: Tensor | None = None
    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1
    rows: int = 0  # rows or patches that came out


class CallTracer(TorchFunctionMode):
    """Reports each linear or convolution, and every other function that takes values of a tensor and gives a tensor."""

    def __init__(self, on_call: Callable[[Call], None], on_other: Callable[[str, list[Tensor]], None]) -> None:
        super().__init__()
        self.on_call, self.on_other = on_call, on_other

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in CALLS:
            call = Call(CALLS[func], *args, **{{"input": "inputs"}.get(k, k): v for k, v in (kwargs or {}).items()})
            self.on_call(call._replace(rows=result.numel() // max(1, len(call.weight))))
        elif any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            name = getattr(func, "__name__", str(func))
            name = getattr(func, "__self__", func).__name__ if name == "__get__" else name
            read = () if name in LIKE else args[:1] if name in LIKE_ITS_ARGUMENT else (args, kwargs)
            self.on_other(name, [leaf for leaf in tree_leaves(read) if isinstance(leaf, Tensor)])
        return result


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """The module in evaluation mode (no dropout), every part put back as it was."""
    modes = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for layer, mode in modes:
            layer.training = mode


def logits(module: nn.Module, images: Inputs, parameters: Mapping[str, Tensor] | None = None) -> Tensor:
    """What the module gives for these images, with these parameters, checked to be a row of numbers an image."""
    shape, many = shape_of(images), count(images)
    try:
        with torch.no_grad():
            out = call(module, parameters or {}, images)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        mode = "training on" if module.training else "taking"
        raise ConfigError(f"model: {mode} {many} images of shape {shape} fails: {reason(error)}") from error
    if out.ndim != 2 or len(out) != many:
        raise ConfigError(f"model: for {many} images it gives {list(out.shape)}; it should give [{many}, classes]")
    return out


@contextmanager
def calling(module: nn.Module) -> Iterator[list[nn.Module]]:
    """The Linear and convolution layers that are being called, innermost last."""
    active: list[nn.Module] = []
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d)]
    handles = [layer.register_forward_pre_hook(lambda layer, _: active.append(layer)) for layer in layers]
    for layer in layers:  # before the user's own hooks, and also when the layer raises
        handles.append(layer.register_forward_hook(lambda *_: active.pop() and None, prepend=True, always_call=True))
    try:
        yield active
    finally:
        for handle in handles:
            handle.remove()


def columns(call: Call) -> Tensor:
    """A call's inputs as columns [G, N, P], padding included, the bias not."""
    if call.kind == "linear":
        return call.inputs.reshape(-1, call.inputs.shape[-1]).mT[None]
    size = tuple(call.weight.shape[2:])
    stride, dilation = _each(call.stride, len(size)), _each(call.dilation, len(size))
    if call.padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, size, strict=True)]
        margins = [(total // 2, total - total // 2) for total in totals]
    else:
        margins = [(p, p) for p in _each(0 if call.padding == "valid" else call.padding, len(size))]
    inputs = call.inputs if call.inputs.ndim == len(size) + 2 else call.inputs[None]  # one image without a batch
    inputs = functional.pad(inputs, [side for margin in reversed(margins) for side in margin])
    if len(size) == 1:  # a 1-d convolution is a 2-d one of height 1
        inputs, size, stride, dilation = inputs.unsqueeze(-2), (1, *size), (1, *stride), (1, *dilation)
    patches_BNP = functional.unfold(inputs, size, dilation=dilation, stride=stride)
    batch, _, patches = patches_BNP.shape
    return patches_BNP.reshape(batch, call.groups, -1, patches).permute(1, 2, 0, 3).flatten(2)


def _each(value: Any, dimensions: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, tuple | list) else (int(value),)
    return values * dimensions if len(values) == 1 else values


def without_running_statistics(module: nn.Module) -> nn.Module:
    """Batch and instance norms use the statistics of their batch and keep none. Changes the module in place."""
    for norm in module.modules():
        if isinstance(norm, nn.modules.batchnorm._NormBase):
            norm.track_running_stats = False
            norm.running_mean = norm.running_var = norm.num_batches_tracked = None
    return module
