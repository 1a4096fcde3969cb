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
    one_hot: bool = False  # its inputs are tokens, and a basis is a row of token ids
    padding: int | None = None  # the token that never trains

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
    def direction_size(self) -> int:
        """Numbers that say what a direction is."""
        return 1 if self.one_hot else self.inputs

    def direction_bytes(self, itemsize: int) -> int:
        """In a message, where other numbers have so many bytes."""
        return torch.int64.itemsize if self.one_hot else self.inputs * itemsize

    def moment_size(self, side: int) -> int:
        """Numbers of a group's second moment in so many directions, and its energy."""
        return (side if self.one_hot else side * (side + 1) // 2) + 1

    def everything(self, device: torch.device) -> Tensor:
        """A group's basis before anything was grown: the identity in float64, or every token that trains."""
        if not self.one_hot:
            return torch.eye(self.inputs, dtype=torch.float64, device=device)
        tokens = torch.arange(self.inputs, device=device)
        return tokens if self.padding is None else tokens[tokens != self.padding]

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


def token_counts(layer: Layer, call: Call, images: int, wanted: int) -> Tensor:
    """How much each token came in for `wanted` of the images: the sum of its squared weights [V]; none for padding."""
    tokens, weights = of_images(call, images, wanted).inputs
    counts_V = torch.zeros(layer.inputs, dtype=torch.float64, device=tokens.device)
    counts_V.index_add_(0, tokens.flatten(), weights.flatten().double().square())
    if layer.padding is not None:
        counts_V[layer.padding] = 0
    return counts_V
