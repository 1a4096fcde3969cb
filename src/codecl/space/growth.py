"""Growing the core space at a task's end: activations -> second moments -> new free bases.

Shapes: N inputs, F free directions, P columns; `name/g` is group g of a layer.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from torch import Tensor, nn

from codecl.data.inputs import Inputs, count
from codecl.errors import ConfigError, RunFailed
from codecl.space import chart as charts
from codecl.space.calling import call
from codecl.space.calls import Call
from codecl.space.layers import Layer, columns, record, token_counts
from codecl.space.tracing import evaluating

Count = Annotated[int, Field(gt=0)]
Bases = Mapping[str, Sequence[Tensor]]  # of each layer, a basis [N, F] a group, or tokens [F]
Moments = Mapping[str, tuple[Tensor, Tensor]]  # of `layer/group`: (OᵀRRᵀO, ‖R‖²); of tokens its diagonal


class GrowthConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    threshold: float = Field(
        0.97, gt=0, le=1, description="ε_th: the part of a layer's input energy that joins the core"
    )
    increment: float = Field(0.003, ge=0, description="added to the threshold for each task")
    images: Count | tuple[Count, ...] = Field(
        125, description="images to look at: one number above 0, or one for each layer in order"
    )
    subspace_from: Literal["one", "all"] = Field("one", description="whose images: the chosen agent's, or everyone's")
    pool: Literal["plain", "masked"] = Field(
        "plain",
        description="how everyone's moments are summed, with subspace_from: all: as they are, or under masks that"
        " cancel in the sum, so that nobody sees another's",
    )
    robust: Literal["none", "vote"] = Field(
        "none",
        description="what was grown is believed, or agents vote on whether it fits their own images",
    )
    slack: float = Field(
        1.5,
        gt=1,
        description="with robust: vote, how many times more of the energy of an agent's images its own growth may keep",
    )
    min_images: int = Field(
        1, ge=1, description="an agent with fewer images of a task is refused: a basis grown from a few shows them"
    )

    @field_validator("pool")
    @classmethod
    def _of_all(cls, value: str, info: ValidationInfo) -> str:
        if value == "masked" and info.data.get("subspace_from") == "one":
            raise ValueError("one agent's moments are not summed; set growth.subspace_from=all")
        return value

    def at(self, task: int) -> float:
        """ε of this task (counted from 0)."""
        return min(self.threshold + task * self.increment, 1.0)

    def sharing(self, agents: int) -> int:
        """How many agents share the work of looking."""
        return agents if self.subspace_from == "all" else 1

    def check(self, task: str, images: int) -> None:
        """Refuse to grow from a shard of so few images of a task.

        The basis goes to everyone, and what it leaves out is spanned by the inputs that it was grown from: grown from
        a handful of images, it shows them to the others."""
        if images < self.min_images:
            raise ConfigError(
                f"growth.min_images: an agent has {images} images of task {task!r}, fewer than {self.min_images};"
                " give it more, or lower growth.min_images"
            )

    def by_layer(self, layers: Sequence[Layer], shared_by: int) -> dict[Layer, int]:
        """How many images of an agent each layer looks at, when so many agents share the work."""
        counts = (self.images,) * len(layers) if isinstance(self.images, int) else self.images
        if len(counts) != len(layers):
            raise ConfigError(
                f"growth.images: {len(counts)} numbers for {len(layers)} layers; give one a layer, or one"
            )
        return {layer: -(-count // shared_by) for layer, count in zip(layers, counts, strict=True)}


def bases_of(memory: Mapping[str, Tensor], layers: Sequence[Layer]) -> dict[str, list[Tensor]]:
    """The free basis of each group of each layer that has been grown. Law: memory_of undoes it."""
    return {
        layer.name: [memory[f"{layer.name}/{group}"] for group in range(layer.groups)]
        for layer in layers
        if f"{layer.name}/0" in memory
    }


def memory_of(bases: Bases) -> dict[str, Tensor]:
    return {f"{name}/{group}": basis for name, groups in bases.items() for group, basis in enumerate(groups)}


def exact(bases: Bases, layers: Sequence[Layer], device: torch.device) -> dict[str, list[Tensor]]:
    """The bases in float64, orthonormal again after the rounding of the flood; the identity before the first growth.
    Tokens are exact as they are."""
    out = {}
    for layer in layers:
        known = bases.get(layer.name, [])
        if not known:
            out[layer.name] = [layer.everything(device)] * layer.groups
        else:
            out[layer.name] = list(known) if layer.one_hot else [charts.orthonormal(basis) for basis in known]
    return out


def rounded(basis: Tensor, dtype: torch.dtype) -> Tensor:
    """A basis in the run's type; tokens as they are."""
    return basis if charts.is_tokens(basis) else basis.to(dtype)


def moments(
    module: nn.Module, parameters: Mapping[str, Tensor], sample: Inputs, images: Mapping[Layer, int], bases: Bases
) -> dict[str, tuple[Tensor, Tensor]]:
    """(OᵀRRᵀO, ‖R‖²) of each group of each layer for these images: `images` of them by layer, without dropout."""
    sums = {}
    for layer in images:  # a layer that is not called grows nothing
        for group, basis in enumerate(bases[layer.name]):
            free = basis.shape[-1]
            shape = (free,) if layer.one_hot else (free, free)
            zero = torch.zeros(shape, dtype=torch.float64, device=basis.device)
            sums[f"{layer.name}/{group}"] = zero, zero.new_zeros(())
    parameters = {name: value.contiguous() for name, value in parameters.items()}  # so that views can be told
    with evaluating(module):
        uses = record(lambda: call(module, parameters, sample), list(images), parameters)
    for layer, use in uses:
        found = _moments(layer, use, count(sample), images[layer], bases[layer.name])
        for group, (moment, energy) in enumerate(found):
            before, already = sums[f"{layer.name}/{group}"]  # a weight that is used twice pools its columns
            sums[f"{layer.name}/{group}"] = before + moment, already + energy
    return sums


def _moments(
    layer: Layer, use: Call, images: int, wanted: int, bases_G: Sequence[Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """Of one call, a group each."""
    if layer.one_hot:
        return [charts.token_moment(token_counts(layer, use, images, wanted), bases_G[0])]
    columns_GNP = columns(layer, use, images, wanted)
    return [charts.moment(columns_NP, basis) for columns_NP, basis in zip(columns_GNP, bases_G, strict=True)]


def grow(bases: Bases, moments: Moments, threshold: float, dtype: torch.dtype) -> dict[str, Tensor]:
    """The free bases that are left after a task, as memory: rounded to the run's type, ready to be flooded."""
    new = {}
    for name, basis in memory_of(bases).items():
        moment, energy = moments[name]
        if not bool(energy.isfinite()) or not bool(moment.isfinite().all()):
            raise RunFailed(f"growth: the inputs of layer {name.rpartition('/')[0]!r} are not finite")
        new[name] = rounded(charts.grow(basis, moment, energy, threshold), dtype)
    return new


def packed(moments: Moments) -> dict[str, Tensor]:
    """For the wire: the lower triangle (moments are symmetric) and the energy in one row; a diagonal in one column.
    Law: unpacked undoes it."""
    rows = {}
    for name, (moment, energy) in moments.items():
        if moment.ndim == 1:
            rows[name] = torch.cat([moment, energy[None]])[:, None]
            continue
        lower = torch.tril_indices(*moment.shape, device=moment.device)
        rows[name] = torch.cat([moment[lower[0], lower[1]], energy[None]])
    return rows


def unpacked(rows: Mapping[str, Tensor]) -> Moments:
    moments = {}
    for name, row in rows.items():
        if row.ndim == 2:
            moments[name] = row[:-1, 0], row[-1, 0]
            continue
        side = int(((8 * (len(row) - 1) + 1) ** 0.5 - 1) / 2 + 0.5)
        lower = torch.tril_indices(side, side, device=row.device)
        moment = row.new_zeros(side, side)
        moment[lower[0], lower[1]] = row[:-1]
        moments[name] = moment + moment.tril(-1).mT, row[-1]
    return moments
