"""Where each coordinate of an agent lives while one task trains: layers in their charts, whole parameters beside them.

Shapes: D coordinates of an agent.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from codecl.space import chart as charts
from codecl.space.chart import Chart
from codecl.space.layers import Layer
from codecl.space.roles import ParameterRoles

Parameters = Mapping[str, Tensor]


class Slot(NamedTuple):
    """A stretch of an agent's coordinates: a layer in its chart, or one whole parameter."""

    name: str
    kind: Literal["layer", "kept", "dense", "first", "statistics"]
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
    def full_size(self) -> int:
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
            out.update(parameters_of(slot, piece))
        return out


def parameters_of(slot: Slot, piece: Tensor) -> dict[str, Tensor]:
    """Parameters at a stretch of coordinates [..., D]; agents in front stay in front."""
    if slot.layer is None:
        return {slot.name: piece.view((*piece.shape[:-1], *slot.shape))}
    return slot.layer.split(charts.decode(piece, slot.chart))


def layout(
    roles: ParameterRoles,
    parameters: Parameters,
    free: Mapping[str, Sequence[Tensor]],
    kept: Parameters,
    first: bool,
    statistics: Parameters | None = None,
) -> Layout:
    """Lay out a task: layers in their charts, then what it keeps for itself (its head, own norms) and every parameter
    that trains whole.

    `free`: a basis a group for each layer that has one; the others are free as a whole. `first`: the first task, in
    which norms train too. `statistics`: of norms, that are gossiped."""
    slots = []
    for layer in roles.layers:
        weight = layer.join(parameters)
        chart = charts.chart(weight, free[layer.name]) if layer.name in free else charts.full(weight)
        slots.append(Slot(layer.name, "layer", charts.size(chart), layer, chart, layer.shape))

    def unconstrained(kind: Literal["kept", "dense", "first", "statistics"], values: Parameters) -> list[Slot]:
        return [
            Slot(name, kind, value.numel(), None, charts.full(value.reshape(1, 1, -1)), value.shape)
            for name, value in values.items()
        ]

    slots += unconstrained("kept", kept) + unconstrained("dense", {name: parameters[name] for name in roles.dense})
    only_now = {name: parameters[name] for name in roles.first if first and name not in kept}
    slots += unconstrained("first", only_now) + unconstrained("statistics", statistics or {})
    trained = {name for slot in slots for name in _names(slot)}
    return Layout(tuple(slots), {name: value for name, value in parameters.items() if name not in trained})


def _names(slot: Slot) -> tuple[str | None, ...]:
    return (slot.layer.weight, slot.layer.bias) if slot.layer else (slot.name,)
