"""One item as a data set gives it -> tensors; and what a caller's collate makes of several."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from codecl.data.inputs import Inputs, tensors_of
from codecl.errors import DataError
from codecl.registry import reason

Collate = Callable[[list[Any]], Any]  # a list of items -> (inputs, labels), or a dict with "label" or "labels"
LABELS = ("label", "labels")
MODES = dict.fromkeys(("1", "LA"), "L") | dict.fromkeys(("P", "PA", "CMYK", "YCbCr"), "RGB")  # what pictures become


class Unusable(Exception):
    """What an item is, in plain words."""


def why(error: Exception) -> str:
    """What is wrong with an item, in one line."""
    return str(error) if isinstance(error, Unusable) else reason(error)


def tensors_of_item(item: Any) -> tuple[Inputs, Tensor]:
    """(inputs, label) of an item: a pair, or a dict in which the label is called `label` or `labels`."""
    inputs, label = split_item(item)
    if isinstance(inputs, Mapping):
        return {str(name): as_tensor(value, f"{name!r}") for name, value in inputs.items()}, as_tensor(label, "label")
    if _are_several(inputs):
        parts = tuple(as_tensor(value, f"input {number}") for number, value in enumerate(inputs))
        return parts, as_tensor(label, "label")
    return as_tensor(inputs, "input"), as_tensor(label, "label")


def _are_several(inputs: Any) -> bool:
    """Whether these are inputs beside each other, not the numbers of one: tensors, or in a tuple also arrays."""
    if isinstance(inputs, tuple):
        return any(is_array(value) or is_picture(value) for value in inputs)
    return isinstance(inputs, list) and any(isinstance(value, Tensor) and value.ndim > 0 for value in inputs)


def is_array(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray) and value.ndim > 0


def is_picture(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "PIL"


def split_item(item: Any) -> tuple[Any, Any]:
    """(inputs, label), as they are; of a dict with one key beside the label, what it holds."""
    if isinstance(item, Mapping):
        found = [name for name in LABELS if name in item]
        inputs = {name: value for name, value in item.items() if name not in LABELS}
        if len(found) != 1 or not inputs:
            raise Unusable(f"its keys are {', '.join(map(str, item))}; give inputs and either 'label' or 'labels'")
        return (next(iter(inputs.values())) if len(inputs) == 1 else inputs), item[found[0]]
    if isinstance(item, tuple | list) and len(item) == 2:
        inputs, label = item
        return inputs, label
    kind = type(item).__name__
    what = f"a {kind} of {len(item)}" if isinstance(item, tuple | list) else f"of type {kind}"
    raise Unusable(f"it is {what}; give (inputs, label) or a dict with 'label'")


def as_tensor(value: Any, what: str) -> Tensor:
    """A tensor of what a data set gives: a tensor, an array, a number, a list of numbers, or a picture."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if is_picture(value):
        return picture(value)
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        hint = "; leave it out, or make tensors of it with Task(…, collate=function)"
        raise Unusable(f"its {what} is of type {type(value).__name__}, which is no tensor{hint}") from error


def picture(image: Any) -> Tensor:
    """A PIL image as uint8 [channels, height, width]."""
    values = np.array(image.convert(MODES.get(image.mode, image.mode)))
    return torch.from_numpy(values[None] if values.ndim == 2 else np.ascontiguousarray(values.transpose(2, 0, 1)))


class Form(NamedTuple):
    """What items that are stacked have in common."""

    names: tuple[str, ...]
    inputs: tuple[tuple[torch.Size, torch.dtype], ...]
    label: torch.Size

    @classmethod
    def of(cls, item: tuple[Inputs, Tensor]) -> "Form":
        inputs, label = item
        names = tuple(inputs) if isinstance(inputs, Mapping) else ()
        return cls(names, tuple((tensor.shape, tensor.dtype) for tensor in tensors_of(inputs)), label.shape)

    def __str__(self) -> str:
        parts = [f"{str(dtype).removeprefix('torch.')} {list(shape)}" for shape, dtype in self.inputs]
        if self.names:
            parts = [f"{name} {part}" for name, part in zip(self.names, parts, strict=True)]
        return f"{' and '.join(parts)} with a label {list(self.label)}"


def collated(about: str, collate: Collate, items: list[Any]) -> tuple[Inputs, Tensor]:
    """What the caller's function makes of items, as inputs and labels. `about`: whose they are, for errors."""
    try:
        inputs, labels = tensors_of_item(collate(items))
    except Exception as error:  # a user's function may raise anything
        raise DataError(f"{about} items: collate fails on {len(items)} of them: {why(error)}") from error
    sizes = [list(tensor.shape) for tensor in (*tensors_of(inputs), labels)]
    if any(not shape or shape[0] != len(items) for shape in sizes):
        raise DataError(
            f"{about} items: collate gives shapes {', '.join(map(str, sizes))} for {len(items)} items; the first size"
            " of each should be their number"
        )
    return inputs, labels
