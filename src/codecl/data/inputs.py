"""The inputs of many items: one tensor, several (a tuple) or several by name (a dict); items lie along the first axis.

Shapes: A agents of this process, B items of a batch.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]  # what a module takes: an argument, several, or several by name
Some = TypeVar("Some", bound=Inputs)


class Batch(NamedTuple):
    images_AB: Inputs
    labels_AB: Tensor

    def to(self, device: torch.device) -> "Batch":
        return Batch(to(self.images_AB, device), self.labels_AB.to(device, non_blocking=True))


def tensors_of(inputs: Inputs) -> list[Tensor]:
    """All tensors of the inputs, in order."""
    leaves: list[Tensor] = [inputs] if isinstance(inputs, Tensor) else tree_leaves(inputs)
    return leaves


def named_tensors(inputs: Inputs, name: str) -> dict[str, Tensor]:
    """The tensors by name: one is called `name`, several `name/` and their own or their number."""
    if isinstance(inputs, Tensor):
        return {name: inputs}
    parts = inputs.items() if isinstance(inputs, Mapping) else enumerate(inputs)
    return {f"{name}/{key}": value for key, value in parts}


def count(inputs: Inputs) -> int:
    """How many items."""
    return len(tensors_of(inputs)[0])


def take(inputs: Some, which: Any) -> Some:
    """These items: an index of the first axis, whatever PyTorch takes as one."""
    return each(lambda tensor: tensor[which], inputs)


def to(inputs: Some, device: torch.device) -> Some:
    return each(lambda tensor: tensor.to(device, non_blocking=True), inputs)


def each(change: Any, *inputs: Some) -> Some:
    """The same inputs with every tensor changed; of several inputs of one form, their tensors together."""
    changed: Some = change(*inputs) if isinstance(inputs[0], Tensor) else tree_map(change, *inputs)
    return changed


def shape_of(inputs: Inputs) -> Any:
    """Of one item: a list of sizes, or such lists in the form that the inputs have."""
    return tree_map(lambda tensor: list(tensor.shape[1:]), inputs)


def stacked(parts: Sequence[Inputs]) -> Inputs:
    """One beside another, along a new first axis."""
    return each(lambda *tensors: torch.stack(tensors), *parts)


def joined(parts: Sequence[Inputs]) -> Inputs:
    """One after another along the first axis."""
    return parts[0] if len(parts) == 1 else each(lambda *tensors: torch.cat(tensors), *parts)


def in_batches(rows: Some, batch: int) -> tuple[Some, ...]:
    """Rows in batches. A last batch of one joins the one before it: norms need more than one image."""
    size = count(rows)
    batches = max(1, size // batch + (size % batch > 1))
    edges = [number * batch for number in range(1, batches)]
    return tuple(take(rows, slice(*ends)) for ends in zip([0, *edges], [*edges, size], strict=True))
