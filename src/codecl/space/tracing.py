"""A module at work: by which of its parameters it multiplies, and what else it does with them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from codecl.data.inputs import Inputs, count, shape_of
from codecl.errors import ConfigError
from codecl.registry import reason
from codecl.space import calls, readers
from codecl.space.calling import call
from codecl.space.calls import Call

LIKE = {"new_zeros", "new_ones", "new_empty", "new_full", "new_tensor", "zeros_like", "ones_like", "empty_like"}
LIKE_ITS_ARGUMENT = {"to", "type_as", "view_as", "expand_as", "reshape_as"}  # `x.to(weight)` reads no values of weight


class CallTracer(TorchFunctionMode):
    """Reports each call that multiplies by a weight, and every other function that takes values of a parameter and
    gives a tensor. A view of a parameter is followed to where it is used."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        on_call: Callable[[Call], None],
        on_other: Callable[[str, list[Tensor]], None] = lambda *_: None,
    ) -> None:
        super().__init__()
        self.on_call, self.on_other = on_call, on_other
        self.known = {id(parameter): parameter for parameter in parameters}
        self._views: list[Tensor] = []  # kept, so that their ids stay theirs

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            return result
        name = getattr(func, "__name__", str(func))
        name = getattr(func, "__self__", func).__name__ if name == "__get__" else name
        call = readers.read(func, self.known, result, args, kwargs or {})
        if call is not None:
            self.on_call(call)
            self._report(name, call.inputs)
        elif not self._is_view(name, args, result):
            self._report(name, () if name in LIKE else args[:1] if name in LIKE_ITS_ARGUMENT else (args, kwargs))
        return result

    def _is_view(self, name: str, args: Any, result: Any) -> bool:
        """Whether nothing but a view of a parameter came out, which is then known too."""
        root = self.known.get(id(args[0])) if args else None
        if root is None or (name.endswith("_") and not name.endswith("__")) or not calls.is_view(root, result):
            return False
        self.known[id(result)] = root
        self._views.append(result)
        return True

    def _report(self, name: str, read: Any) -> None:
        used = [self.known[id(leaf)] for leaf in tree_leaves(read) if id(leaf) in self.known]
        if used:
            self.on_other(name, used)


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


def without_running_statistics(module: nn.Module) -> nn.Module:
    """Batch and instance norms use the statistics of their batch and keep none. Changes the module in place."""
    for norm in module.modules():
        if isinstance(norm, nn.modules.batchnorm._NormBase):
            norm.track_running_stats = False
            norm.running_mean = norm.running_var = norm.num_batches_tracked = None
    return module
