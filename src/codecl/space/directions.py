"""The directions in which a task trains, where they are chosen from its images when it opens.

    own    inside the core, for this task alone: the leading eigenvectors of (I - OOᵀ) RRᵀ (I - OOᵀ)
    free   the best of what is free: the leading eigenvectors of OOᵀ RRᵀ OOᵀ

Shapes: N inputs, F free directions, K directions of a basis; `name/g` is group g of a layer.
"""

from collections.abc import Mapping, Sequence

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from torch import Tensor

from codecl.errors import ConfigError, RunFailed
from codecl.space.growth import Bases, Moments, memory_of
from codecl.space.layers import Layer

Directions = Mapping[str, Tensor]  # of the open task, bases by `own/layer/group` and `free/layer/group`
OWN, FREE = "own/", "free/"


class OwnConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    directions: int = Field(
        0, ge=0, description="directions inside the core that each task has for itself in every layer; 0: the paper"
    )
    share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="or: the most that a task keeps for itself, as a part of the body; layers get what gains most",
    )

    @field_validator("share")
    @classmethod
    def _one_of_the_two(cls, share: float | None, info: ValidationInfo) -> float | None:
        if share is not None and info.data.get("directions"):
            raise ValueError("it takes the place of own.directions; give one of the two")
        return share

    @property
    def is_on(self) -> bool:
        return self.directions > 0 or self.share is not None


class FreeConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    directions: int | None = Field(
        None, ge=0, description="free directions of a layer that a task trains in, those with most energy; null: all"
    )
    first_task: bool = Field(False, description="choose free directions for the first task too; else it trains whole")


def check(own: OwnConfig, free: FreeConfig, method: str, grows: bool) -> None:
    """Directions are chosen by a method that has a core space only."""
    asked = {"own.directions": own.directions or None, "own.share": own.share, "free.directions": free.directions}
    for field, value in asked.items():
        if value is not None and not grows:
            raise ConfigError(
                f"{field}: it is {value}, but {method} has no core space to choose directions by; leave it out, or take"
                " codec or codec-full"
            )
    if free.first_task and free.directions is None:
        raise ConfigError("free.first_task: it needs free.directions, the number of directions to choose")


def ranked(basis_NK: Tensor, moment_NN: Tensor) -> tuple[Tensor, Tensor]:
    """(energy [K], directions [N, K]) of the inputs with this second moment inside a space, most energy first, in
    float64. Laws: the directions are an orthonormal basis of the space; any k of them hold at most what the first k do.
    """
    basis = basis_NK.double()
    inside_KK = basis.mT @ moment_NN @ basis
    values_K, vectors_KK = torch.linalg.eigh((inside_KK + inside_KK.mT) / 2)
    return values_K.flip(0).clamp(min=0), basis @ vectors_KK.flip(1)


def core(free_NF: Tensor) -> Tensor:
    """An orthonormal basis [N, N - F] of what is not free, in float64."""
    return torch.linalg.qr(free_NF.double(), mode="complete")[0][:, free_NF.shape[1] :]


def ranked_tokens(tokens_K: Tensor, energy_V: Tensor) -> tuple[Tensor, Tensor]:
    """`ranked` of tokens, by the energy of each; of equals the lower id first."""
    energy_K = energy_V[tokens_K]
    order = energy_K.argsort(descending=True, stable=True)
    return energy_K[order], tokens_K[order]


def not_free(layer: Layer, free: Tensor) -> Tensor:
    """A basis of what is not free of a group, or the tokens that are not."""
    if not layer.one_hot:
        return core(free)
    tokens = layer.everything(free.device)
    return tokens[~torch.isin(tokens, free)]


def _ranked(layer: Layer, space: Tensor, moment: Tensor) -> tuple[Tensor, Tensor]:
    """(energy, directions) inside a space of a group, from the moment of all its inputs."""
    if not layer.one_hot:
        return ranked(space, moment)
    energy_V = moment.new_zeros(layer.inputs).index_copy(0, layer.everything(space.device), moment)
    return ranked_tokens(space, energy_V)


def deal(gains: Mapping[str, Tensor], costs: Mapping[str, int], room: int) -> dict[str, int]:
    """How many leading directions each gets, one after another to where a number gains most.

    Law: they cost at most `room`, and there is no room for another one that would gain more than any that was given.
    """
    offers = [(float(value) / costs[name], name) for name, values in gains.items() for value in values if value > 0]
    counts = dict.fromkeys(gains, 0)
    for _, name in sorted(offers, key=lambda offer: -offer[0]):
        if costs[name] <= room:
            counts[name] += 1
            room -= costs[name]
    return counts


def choose(
    bases: Bases, moments: Moments, layers: Sequence[Layer], own: OwnConfig, free: FreeConfig, room: int
) -> dict[str, Tensor]:
    """The directions of a task from the second moments (RRᵀ, ‖R‖²) of its inputs and what is free (float64).

    A layer gets at most as many own directions as its core has. `room`: numbers that `own.share` leaves for them. A
    direction gains the root of its part of the layer's energy: with the part itself, the large layers get too many."""
    by_name = groups_of(layers)
    costs = {name: layer.direction_size + layer.outputs for name, layer in by_name.items()}
    inside, gains, chosen = {}, {}, {}
    for name, basis in memory_of(bases).items():
        moment, energy = moments[name]
        if not bool(energy.isfinite()) or not bool(moment.isfinite().all()):
            raise RunFailed(f"own: the inputs of layer {name.rpartition('/')[0]!r} are not finite")
        energy_K, inside[name] = _ranked(by_name[name], not_free(by_name[name], basis), moment)
        gains[name] = (energy_K / energy.clamp(min=torch.finfo(energy.dtype).tiny)).sqrt()
        if free.directions is not None:
            best = _ranked(by_name[name], basis, moment)[1]
            chosen[FREE + name] = best[..., : free.directions]
    counts = dict.fromkeys(inside, own.directions) if own.share is None else deal(gains, costs, room)
    return chosen | {OWN + name: basis[..., : counts[name]] for name, basis in inside.items()}


def groups_of(layers: Sequence[Layer]) -> dict[str, Layer]:
    """The layer of each `layer/group`."""
    return {f"{layer.name}/{group}": layer for layer in layers for group in range(layer.groups)}


def own_of(directions: Directions) -> dict[str, Tensor]:
    """The own bases [N, r], or tokens [r], by `layer/group`; only where there is at least one direction."""
    own = {name.removeprefix(OWN): basis for name, basis in directions.items() if name.startswith(OWN)}
    return {name: basis for name, basis in own.items() if basis.shape[-1]}


def counts(directions: Directions, prefix: str) -> dict[str, int]:
    """How many of this kind each layer has, summed over groups."""
    out: dict[str, int] = {}
    for name, basis in directions.items():
        if name.startswith(prefix):
            layer = name.removeprefix(prefix).rpartition("/")[0]
            out[layer] = out.get(layer, 0) + basis.shape[-1]
    return out


def space(memory: Mapping[str, Tensor], directions: Directions) -> Mapping[str, Tensor]:
    """The memory with, for each layer of which directions were chosen, the basis in which the task trains: what it
    uses of the free space, then its own directions. Law: without directions it is the memory itself."""
    used = {**memory, **{name.removeprefix(FREE): basis for name, basis in directions.items() if name.startswith(FREE)}}
    own = own_of(directions)
    return {name: torch.cat([basis, own[name]], -1) if name in own else basis for name, basis in used.items()}
