"""Several rounds of gossip a step: what they make of the mixing, and by which combination of their results.

On an undirected graph k rounds apply the polynomial of degree k of W that is smallest on the eigenvalues of
disagreement (Chebyshev's): what one round leaves as ρ, k of them leave as about 2 ((1 - √(1 - ρ²)) / ρ)ᵏ instead of ρᵏ.
On a directed one they are W applied k times.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import cycle, islice
from math import gcd
from typing import NamedTuple

import numpy as np

from codecl.exchange.topology import Matrix, Topology, agree_rounds, contraction, product

EVEN = 1e-9  # eigenvalues this close are one: a round is all that helps


class Combination(NamedTuple):
    """x ← mixed · W x + own · x + before · x_before. Law: the three sum to 1, so the mean of all agents is kept."""

    mixed: float = 1.0
    own: float = 0.0
    before: float = 0.0


class Gossip(NamedTuple):
    """The gossip of a step."""

    rounds: tuple[Combination, ...]
    mixings: tuple[Matrix, ...]  # of a step; where the graph changes, of one step after another
    agree_rounds: int  # at a task's end: whole steps

    @property
    def contraction(self) -> float:
        """What a step leaves of a disagreement, at most."""
        return contraction(product(self.mixings)) ** (1 / len(self.mixings))

    @property
    def left_at_end(self) -> float:
        """What agreement leaves of a disagreement, at most."""
        return self.contraction ** (self.agree_rounds // len(self.rounds))


@lru_cache(maxsize=32)
def gossip_of(topology: Topology, rounds: int = 1, towards: float = 1.0, combined: bool = True) -> Gossip:
    """`towards`: the part of the way to the mix that a round goes. `combined`: whether results of rounds may be
    combined."""
    turns = [(1 - towards) * np.eye(topology.agents) + towards * mixing for mixing in topology.turns]
    plain = rounds == 1 or not combined or topology.changes or not _symmetric(turns[0])
    steps = (Combination(),) * rounds if plain else chebyshev(turns[0], rounds)
    if topology.changes:
        period = len(turns) // gcd(len(turns), rounds)
        endless = cycle(turns)
        mixings = tuple(product(list(islice(endless, rounds))) for _ in range(period))
    else:
        mixings = (turns[0] if rounds == 1 else applied(steps, turns[0]),)
    if rounds == 1 and towards == 1:
        return Gossip(steps, mixings, topology.agree_rounds)
    left = contraction(product(mixings)) ** (1 / len(mixings))
    return Gossip(steps, mixings, rounds * agree_rounds(left, len(mixings)))


def chebyshev(mixing: Matrix, rounds: int) -> tuple[Combination, ...]:
    """Law: what they apply, p(W), has p(1) = 1, and no polynomial of this degree that has is smaller on all of
    [least, largest other eigenvalue]."""
    values = np.linalg.eigvalsh(mixing)[:-1]  # the largest, 1, is the mean's
    if not len(values) or values[-1] - values[0] < EVEN:
        centre = float(values[0]) if len(values) else 0.0
        once = Combination(1 / (1 - centre), -centre / (1 - centre))
        return (once, *[Combination(0.0, 1.0)] * (rounds - 1))
    centre, half = (values[-1] + values[0]) / 2, (values[-1] - values[0]) / 2
    at_one = (1 - centre) / half
    now, before = at_one, 1.0  # T₁(at_one), T₀
    found = [Combination(1 / (1 - centre), -centre / (1 - centre))]
    for _ in range(rounds - 1):
        after = 2 * at_one * now - before
        mixed = 2 * now / (after * half)
        found.append(Combination(mixed, -centre * mixed, -before / after))
        now, before = after, now
    return tuple(Combination(*map(float, step)) for step in found)


def applied(steps: Sequence[Combination], mixing: Matrix) -> Matrix:
    """The matrix that these rounds come to."""
    before = now = np.eye(len(mixing))
    for step in steps:
        before, now = now, step.mixed * mixing @ now + step.own * now + step.before * before
    return now


def _symmetric(mixing: Matrix) -> bool:
    return bool(np.allclose(mixing, mixing.T, rtol=0, atol=1e-12))
