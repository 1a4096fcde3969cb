"""A weight that carries coordinates: as a matrix, and its inputs as columns.

Shapes: G groups, O outputs of a group, N inputs (the bias is one more input that is always 1), P patches or rows.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from codecl.space import tracing
from codecl.space.tracing import Call, CallTracer


class Layer(NamedTuple):
    """A weight (and bias) that carries coordinates."""

    name: str
    weight: str
    bias: str | None
    shape: torch.Size  # of the weight
    groups: int
    rows: int  # how many rows or patches an image gives it
    owned: bool  # used by calling the plain Linear or convolution that it belongs to, and in no other way

    @property
    def linear(self) -> bool:
        """Whether it may take the factored form."""
        return self.owned and len(self.shape) == 2

    @property
    def inputs(self) -> int:
        """N: of a group, a bias's constant 1 counted."""
        return self.shape[1:].numel() + (self.bias is not None)

    @property
    def outputs(self) -> int:
        """O: of a group."""
        return self.shape[0] // self.groups

    @property
    def owner(self) -> str:
        """The path of the module that the weight belongs to."""
        return self.weight.rpartition(".")[0]

    def join(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Parameters -> W [G, O, N]. Law: split undoes it."""
        weight = parameters[self.weight].reshape(self.groups, self.shape[0] // self.groups, -1)
        if self.bias is None:
            return weight
        return torch.cat([weight, parameters[self.bias].reshape(self.groups, -1, 1)], -1)

    def split(self, weight_GON: Tensor) -> dict[str, Tensor]:
        """W [G, O, N] -> parameters; any dimensions in front stay in front."""
        front = weight_GON.shape[:-3]
        if self.bias is None:
            return {self.weight: weight_GON.reshape(*front, *self.shape)}
        return {
            self.weight: weight_GON[..., :-1].reshape(*front, *self.shape),
            self.bias: weight_GON[..., -1].reshape(*front, self.shape[0]),
        }


def record(
    run: Callable[[], Any], layers: Collection[Layer], parameters: Mapping[str, Tensor]
) -> list[tuple[Layer, Call]]:
    """Each call with these layers' weights while `run` uses `parameters`. A weight used twice shows up twice."""
    by_weight = {id(parameters[layer.weight]): layer for layer in layers}
    calls: list[Call] = []
    with torch.no_grad(), CallTracer(calls.append, lambda *_: None):
        run()
    return [(by_weight[id(call.weight)], call) for call in calls if id(call.weight) in by_weight]


def columns(layer: Layer, call: Call, images: int, wanted: int) -> Tensor:
    """The inputs of a call as columns [G, N, P] for `wanted` of the `images` that went in; a bias's constant 1 last."""
    inputs = call.inputs
    if wanted < images:
        lengths = list(inputs.shape[:-1])
        exact = [d for d, length in enumerate(lengths) if length == images]
        where = exact or [d for d, length in enumerate(lengths) if length and length % images == 0]
        if where:  # images lie in the first dimension of their number, or of a multiple of it
            inputs = inputs.narrow(where[0], 0, lengths[where[0]] // images * wanted)
    columns_GNP = tracing.columns(call._replace(inputs=inputs))
    if layer.bias is None:
        return columns_GNP
    return torch.cat([columns_GNP, torch.ones_like(columns_GNP[:, :1])], 1)
