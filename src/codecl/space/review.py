"""What one agent has against bases that another grew or chose, by its own images: pure algebra, no agents, no tasks.

How much of fresh images a grown basis leaves out depends on the layer and the task more than on who grew it (from 1 to
8 times 1 - ε here). So both are looked at on the same fresh images: what arrived, and what this agent would have grown.

Shapes: N inputs, F free directions, K of them that are left or chosen; of tokens a basis is a row of ids [F].
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from codecl.space import chart as charts
from codecl.space.growth import Moments

OFF = 1e-4  # by which a flooded basis may miss being orthonormal, or lie outside: rounding to float32 gives 1e-6
ROUNDING = 1e-6  # of the energy
MORE = 4  # times closer than 1 - ε may be grown
Moment = tuple[Tensor, Tensor]  # (OᵀRRᵀO, ‖R‖²)


class Looks(NamedTuple):
    """Second moments of an agent's images: of those that it would grow from itself, and of as many others."""

    own: Moments
    fresh: Moments


def misfit(space_NF: Tensor, basis_NK: Tensor) -> str:
    """Why this is no orthonormal basis of a part of the space; empty where it is one."""
    if charts.is_tokens(space_NF):
        known = not basis_NK.is_floating_point() and basis_NK.ndim == 1 and bool(torch.isin(basis_NK, space_NF).all())
        return "" if known and len(basis_NK.unique()) == len(basis_NK) else "has tokens that were not free"
    inputs, most = space_NF.shape
    if not basis_NK.is_floating_point() or basis_NK.ndim != 2 or len(basis_NK) != inputs or basis_NK.shape[1] > most:
        return f"has the shape {tuple(basis_NK.shape)}, inside one of {(inputs, most)}"
    basis, space = basis_NK.double(), space_NF.double()
    if not bool(basis.isfinite().all()):
        return "is not finite"
    if _largest(basis.mT @ basis - torch.eye(basis.shape[1], dtype=basis.dtype, device=basis.device)) > OFF:
        return "is not orthonormal"
    outside_NK = basis - space @ (space.mT @ basis)
    return "reaches out of the space that it should be in" if _largest(outside_NK) > OFF else ""


def energy_in(space: Tensor, basis: Tensor, moment: Moment) -> float:
    """The part of the images' energy that lies inside a basis of a part of this space; the moment is in the space.

    Law: of the space that a growth leaves free, what the core does not keep."""
    inside, energy = moment
    if float(energy) <= 0:
        return 0.0
    if charts.is_tokens(space):
        return float(inside[torch.isin(space, basis)].sum() / energy)
    turned_FK = space.double().mT @ basis.double()
    return float((turned_FK * (inside @ turned_FK)).sum() / energy)


def growth_objection(old: Tensor, new: Tensor, own: Moment, fresh: Moment, threshold: float, slack: float) -> str:
    """What an agent has against `new` as what is left of the free basis `old`; empty: nothing.

    It compares how much of the energy of fresh images stays open to change with what its own growth would leave open.
    Laws: nobody objects to what it grew itself, nor to what leaves 1.5 (1 - ε) open or less, nor to what keeps a
    `slack`-th of what its own growth would keep, if it takes no more directions than that would for (1 - ε) / MORE, and
    one."""
    wrong = misfit(old, new)
    if wrong or old.shape[-1] == 0 or float(own[1]) <= 0:
        return wrong
    before, left, left_by_own = (
        energy_in(old, basis, fresh) for basis in (old, new, charts.grow(old, *own, threshold))
    )
    allowed = max(1 - threshold, left_by_own) + max((before - left_by_own) * (1 - 1 / slack), (1 - threshold) / 2)
    if left > allowed + ROUNDING:
        return f"leaves {left:.2%} of the energy of this agent's images open to change, more than {allowed:.2%}"
    least = charts.grow(old, *own, 1 - (1 - threshold) / MORE).shape[-1] - 1
    if new.shape[-1] < least:
        return f"leaves {new.shape[-1]} directions free, fewer than the {least} that this agent's images leave"
    return ""


class Choice(NamedTuple):
    """Of one group of a layer: directions that were chosen for a task, and what they are looked at with."""

    chosen: Tensor
    own: Tensor  # what this agent would have chosen
    space: Tensor  # inside which they should lie: what is free, or the core
    everything: Tensor  # the basis of all inputs, in which the moment is
    fresh: Moment


def choice_objection(choices: Mapping[str, Choice], slack: float) -> str:
    """What an agent has against the directions of a task, by name; empty: nothing.

    Law: nobody objects to its own choice, nor to one that holds, summed over layers, a `slack`-th of what its own would
    of the energy of fresh images."""
    for name, choice in choices.items():
        wrong = misfit(choice.space, choice.chosen)
        if wrong:
            return f"of {name!r}: the basis {wrong}"

    def held(of: Callable[[Choice], Tensor]) -> float:
        return sum(energy_in(choice.everything, of(choice), choice.fresh) for choice in choices.values())

    by_chosen, by_own = held(lambda choice: choice.chosen), held(lambda choice: choice.own)
    if by_chosen < by_own / slack:
        return (
            f"hold {by_chosen:.2f} of the energy of this agent's images, summed over layers, its own hold {by_own:.2f}"
        )
    return ""


def _largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0
