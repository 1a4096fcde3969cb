"""What a task keeps for itself, beside the body that all tasks share: its head, its norms where they are its own, and
what it learned in its own directions, u Dᵀ.

Shapes: N inputs and O outputs of a group, r own directions of a layer; `name/g` is group g of a layer.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from torch import Tensor

from codecl.space.chart import along, inside
from codecl.space.layers import Layer
from codecl.space.layout import Parameters


class Kept(NamedTuple):
    """What one finished task keeps."""

    parameters: Parameters  # its head, and its norms where they are its own
    statistics: Mapping[str, Tensor] = {}  # of its batch norms; empty: those of each batch
    directions: Mapping[str, Tensor] = {}  # D [N, r] of `layer/group`, or tokens [r]
    coordinates: Mapping[str, Tensor] = {}  # u [O, r]

    def model(self, layers: Iterable[Layer], body: Parameters) -> dict[str, Tensor]:
        """All parameters of the task's model: the body and what it keeps. Law: `taken_out` undoes it."""
        out = {**body, **self.parameters}
        for layer, groups in _own_groups(layers, self.directions):
            weight_GON = layer.join(out).clone()
            for group, name in groups.items():
                weight_GON[group] += along(self.coordinates[name], self.directions[name], layer.inputs)
            out.update(layer.split(weight_GON))
        return out


def taken_out(
    layers: Iterable[Layer], parameters: Parameters, anchor: Parameters, directions: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(the parameters without what was learned in own directions since the anchor, and that: u = (W - anchor) D).

    Law: inside the own directions, what is left is the anchor."""
    out, coordinates = dict(parameters), {}
    for layer, groups in _own_groups(layers, directions):
        weight_GON, anchor_GON = layer.join(parameters).clone(), layer.join(anchor)
        for group, name in groups.items():
            coordinates[name] = inside(weight_GON[group] - anchor_GON[group], directions[name])
            weight_GON[group] -= along(coordinates[name], directions[name], layer.inputs)
        out.update(layer.split(weight_GON))
    return out, coordinates


def _own_groups(layers: Iterable[Layer], directions: Mapping[str, Tensor]) -> list[tuple[Layer, dict[int, str]]]:
    """The layers that have own directions, each with the groups that do and their names."""
    groups = [
        (
            layer,
            {group: f"{layer.name}/{group}" for group in range(layer.groups) if f"{layer.name}/{group}" in directions},
        )
        for layer in layers
    ]
    return [(layer, names) for layer, names in groups if names]
