"""The agents of this process on one task: where each coordinate lives, loss and gradient of all agents at once.

Shapes: A agents of this process, D coordinates of an agent, B images of a batch.
"""

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional

from codecl import chart as charts
from codecl.chart import Chart
from codecl.layers import Layer, Survey

Parameters = Mapping[str, Tensor]
Running = Literal["stacked", "loop"]
COORDS = "codecl_coordinates"  # the name under which a factored Linear finds its coordinates


class Slot(NamedTuple):
    """A stretch of an agent's coordinates: a layer in its chart, or one whole parameter."""

    name: str
    kind: Literal["layer", "head", "dense", "first"]
    size: int
    layer: Layer | None
    chart: Chart  # of a whole parameter: its value as [1, 1, n]
    shape: torch.Size


class Layout(NamedTuple):
    """What an agent's coordinates mean while one task trains."""

    slots: tuple[Slot, ...]
    constants: Parameters  # everything that does not train now

    @property
    def size(self) -> int:
        """D: the numbers in a message."""
        return sum(slot.size for slot in self.slots)

    @property
    def whole(self) -> int:
        """The numbers in a message of full communication: all parameters that can change."""
        return sum(slot.chart.anchor_GON.numel() for slot in self.slots)

    @property
    def free(self) -> dict[str, int]:
        """Free directions of each layer (summed over groups)."""
        return {slot.name: sum(slot.chart.dims) for slot in self.slots if slot.layer}

    def start(self) -> Tensor:
        """The coordinates of the anchor [D]: where every agent starts the task."""
        return torch.cat([charts.start(slot.chart) for slot in self.slots])

    def pieces(self, coords_D: Tensor) -> list[tuple[Slot, Tensor]]:
        """Each slot with its stretch. One `split`, so that the gradient is put together in one piece too."""
        return list(zip(self.slots, coords_D.split([slot.size for slot in self.slots], -1), strict=True))

    def parameters(self, coords_D: Tensor) -> dict[str, Tensor]:
        """All parameters of the module at these coordinates."""
        out = dict(self.constants)
        for slot, piece in self.pieces(coords_D):
            out.update(_parameters(slot, piece))
        return out


def _parameters(slot: Slot, piece: Tensor) -> dict[str, Tensor]:
    """Parameters at a stretch of coordinates [..., D]; agents in front stay in front."""
    if slot.layer is None:
        return {slot.name: piece.view(*piece.shape[:-1], *slot.shape)}
    return slot.layer.split(charts.decode(piece, slot.chart))


def layout(
    survey: Survey, parameters: Parameters, free: Mapping[str, Sequence[Tensor]], head: Parameters, first: bool
) -> Layout:
    """Lay out a task: layers in their charts, then the live head and every parameter that trains whole.

    `free`: a basis a group for each layer that has one; the others are free as a whole. `first`: the first task, in
    which norms train too."""
    slots = []
    for layer in survey.layers:
        weight = layer.join(parameters)
        chart = charts.chart(weight, free[layer.name]) if layer.name in free else charts.whole(weight)
        slots.append(Slot(layer.name, "layer", charts.size(chart), layer, chart, layer.shape))

    def whole(kind: Literal["head", "dense", "first"], values: Parameters) -> list[Slot]:
        return [
            Slot(name, kind, value.numel(), None, charts.whole(value.reshape(1, 1, -1)), value.shape)
            for name, value in values.items()
        ]

    slots += whole("head", head) + whole("dense", {name: parameters[name] for name in survey.dense})
    slots += whole("first", {name: parameters[name] for name in survey.first}) if first else []
    trained = {name for slot in slots for name in _names(slot)}
    return Layout(tuple(slots), {name: value for name, value in parameters.items() if name not in trained})


def _names(slot: Slot) -> tuple[str | None, ...]:
    return (slot.layer.weight, slot.layer.bias) if slot.layer else (slot.name,)


def factor(linear: nn.Linear, chart: Chart, bias: bool) -> None:
    """Let a Linear work from coordinates, without building its weight: y = x W0ᵀ + (x O) cᵀ. All else of it stays."""
    outputs, free = chart.anchor_GON.shape[1], chart.dims[0]
    linear.register_parameter(COORDS, nn.Parameter(chart.anchor_GON.new_zeros(outputs, free)))

    def forward(input: Tensor) -> Tensor:
        return charts.factored(input, getattr(linear, COORDS), chart, bias)

    linear.forward = forward  # type: ignore[method-assign]


class Agents:
    """Loss and gradient of all agents of this process, each at its own coordinates on its own batch."""

    def __init__(self, module: nn.Module, layout: Layout, batch: int, running: Running = "stacked") -> None:
        self.layout, self.running = layout, running
        self.factored = frozenset(slot.name for slot in layout.slots if _factor(slot, batch))
        self.shared = dict(layout.constants)  # what all agents have in common while the task trains
        for slot, piece in layout.pieces(layout.start()):
            if slot.size == 0:
                self.shared.update(_parameters(slot, piece))
        self.module = module
        if self.factored:  # a copy: the module as given keeps its Linear layers
            self.module = copy.deepcopy(module)
            for slot in layout.slots:
                if slot.layer and slot.name in self.factored:
                    linear = cast(nn.Linear, self.module.get_submodule(slot.layer.owner))
                    factor(linear, slot.chart, slot.layer.bias is not None)
        self.module.train()

    def gradient(self, coords_AD: Tensor, images_AB: Tensor, labels_AB: Tensor) -> tuple[Tensor, Tensor]:
        """(loss [A], its gradient by each agent's coordinates [A, D]): Algorithm 1, lines 5 and 6 in one.

        Law: stacked agents equal a loop over agents."""
        if self.running == "loop":
            return self._gradient(self._one_by_one, coords_AD, images_AB, labels_AB)
        try:
            return self._gradient(vmap(self._loss, randomness="different"), coords_AD, images_AB, labels_AB)
        except RuntimeError as error:
            out = self._gradient(self._one_by_one, coords_AD, images_AB, labels_AB)  # an error of the model's own shows
            self.running = "loop"
            reason = str(error).strip().splitlines()[0][:200]
            warnings.warn(f"agents run one after another: this model cannot be stacked ({reason})", stacklevel=2)
            return out

    def _gradient(
        self, losses: Callable[..., Tensor], coords_AD: Tensor, images_AB: Tensor, labels_AB: Tensor
    ) -> tuple[Tensor, Tensor]:
        coords = coords_AD.detach().requires_grad_()
        loss_A = losses(self._own(coords), images_AB, labels_AB)
        if self.layout.size == 0:  # nothing is left free
            return loss_A.detach(), torch.zeros_like(coords_AD)
        (grad_AD,) = torch.autograd.grad(loss_A.sum(), coords)
        return loss_A.detach(), grad_AD

    def _one_by_one(self, own: Parameters, images_AB: Tensor, labels_AB: Tensor) -> Tensor:
        rows = ({name: value[row] for name, value in own.items()} for row in range(len(images_AB)))
        return torch.stack([self._loss(*one) for one in zip(rows, images_AB, labels_AB, strict=True)])

    def _loss(self, own: Parameters, images_B: Tensor, labels_B: Tensor) -> Tensor:
        """Of one agent with these parameters of its own."""
        return functional.cross_entropy(functional_call(self.module, {**self.shared, **own}, (images_B,)), labels_B)

    def _own(self, coords_AD: Tensor) -> dict[str, Tensor]:
        """What differs between agents, for all of them at once: built weights, coordinates of factored layers."""
        out = {}
        for slot, piece in self.layout.pieces(coords_AD):
            if slot.layer and slot.name in self.factored:
                out[f"{slot.layer.owner}.{COORDS}".lstrip(".")] = charts.unflatten(piece, slot.chart).squeeze(-3)
            elif slot.size:
                out.update(_parameters(slot, piece))
        return out


def _factor(slot: Slot, batch: int) -> bool:
    if slot.layer is None or not slot.layer.linear or slot.chart.free_GNF is None:
        return False
    _, outputs, inputs = slot.chart.anchor_GON.shape
    return charts.factored_pays(batch * slot.layer.rows, outputs, inputs, slot.chart.dims[0])


@torch.no_grad()
def accuracy(module: nn.Module, parameters: Parameters, images: Tensor, labels: Tensor, batch: int) -> float:
    """Percent of `images` that the module with these parameters classifies right."""
    right = torch.zeros((), dtype=torch.long, device=labels.device)
    batches = max(1, len(labels) // batch + (len(labels) % batch > 1))  # a last batch of one joins the one before it:
    edges = [number * batch for number in range(1, batches)]  # norms need more than one image
    for some, truth in zip(images.tensor_split(edges), labels.tensor_split(edges), strict=True):
        right += (functional_call(module, dict(parameters), (some,)).argmax(-1) == truth).sum()
    return 100 * right.item() / len(labels)
