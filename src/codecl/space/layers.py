"""A weight that carries coordinates: as a matrix, and its inputs as columns.

Shapes: G groups, O outputs of a group, N inputs (the bias is one more input that is always 1), P patches or rows.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from codecl.space import calls
from codecl.space.calls import Call, Form
from codecl.space.tracing import CallTracer


class Layer(NamedTuple):
    """A weight (and bias) that carries coordinates."""

    name: str
    weight: str
    bias: str | None
    shape: torch.Size  # of the weight
    groups: int
    rows: int  # how many rows or patches an image gives it
    owned: bool  # used by calling the plain Linear or convolution that it belongs to, and in no other way
    form: Form | None = None  # how the weight is a matrix; None: [groups · outputs, inputs...]

    @property
    def linear(self) -> bool:
        """Whether it may take the factored form."""
        return self.owned and len(self.shape) == 2

    @property
    def inputs(self) -> int:
        """N: of a group, a bias's constant 1 counted."""
        inputs = self.shape[1:].numel() if self.form is None else self.form.inputs
        return inputs + (self.bias is not None)

    @property
    def outputs(self) -> int:
        """O: of a group."""
        return self.shape[0] // self.groups if self.form is None else self.form.outputs

    @property
    def owner(self) -> str:
        """The path of the module that the weight belongs to."""
        return self.weight.rpartition(".")[0]

    def join(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Parameters -> W [G, O, N]. Law: split undoes it."""
        weight = parameters[self.weight]
        if self.form and self.form.order:
            weight = weight.reshape(self.form.view).permute(self.form.order)
        weight = weight.reshape(self.groups, self.outputs, -1)
        if self.bias is None:
            return weight
        return torch.cat([weight, parameters[self.bias].reshape(self.groups, -1, 1)], -1)

    def split(self, weight_GON: Tensor) -> dict[str, Tensor]:
        """W [G, O, N] -> parameters; any dimensions in front stay in front."""
        front = weight_GON.shape[:-3]
        if self.bias is None:
            return {self.weight: self._stored(weight_GON)}
        return {
            self.weight: self._stored(weight_GON[..., :-1]),
            self.bias: weight_GON[..., -1].reshape(*front, self.groups * self.outputs),
        }

    def _stored(self, weight_GON: Tensor) -> Tensor:
        """The weight as the module has it."""
        front = weight_GON.shape[:-3]
        if self.form and self.form.order:
            view, order = self.form.view, self.form.order
            places = [len(front) + order.index(d) for d in range(len(order))]
            weight_GON = weight_GON.reshape(*front, *(view[d] for d in order)).permute(*range(len(front)), *places)
        return weight_GON.reshape(*front, *self.shape)


def record(
    run: Callable[[], Any], layers: Collection[Layer], parameters: Mapping[str, Tensor]
) -> list[tuple[Layer, Call]]:
    """Each call with these layers' weights while `run` uses `parameters`. A weight used twice shows up twice."""
    by_weight = {id(parameters[layer.weight]): layer for layer in layers}
    found: list[Call] = []
    with torch.no_grad(), CallTracer(parameters.values(), found.append):
        run()
    return [(by_weight[id(call.weight)], call) for call in found if id(call.weight) in by_weight]


def columns(layer: Layer, call: Call, images: int, wanted: int) -> Tensor | list[Tensor]:
    """The inputs of a call as columns [N, P] of each group for `wanted` of the `images` that went in; a bias's constant
    1 last."""
    columns_GNP = calls.columns(of_images(call, images, wanted))
    if layer.bias is None:
        return columns_GNP
    if isinstance(columns_GNP, Tensor):
        return torch.cat([columns_GNP, torch.ones_like(columns_GNP[:, :1])], 1)
    return [torch.cat([columns_NP, torch.ones_like(columns_NP[:1])]) for columns_NP in columns_GNP]


def of_images(call: Call, images: int, wanted: int) -> Call:
    """The call for `wanted` of its images, which lie in the first dimension of their number, or of a multiple of it."""
    if wanted >= images:
        return call

    def narrowed(inputs: Tensor) -> Tensor:
        lengths = {d: inputs.shape[d] for d in call.images_in if d < inputs.ndim}
        exact = [d for d, length in lengths.items() if length == images]
        where = exact or [d for d, length in lengths.items() if length and length % images == 0]
        return inputs.narrow(where[0], 0, lengths[where[0]] // images * wanted) if where else inputs

    return call._replace(inputs=tuple(map(narrowed, call.inputs)))
