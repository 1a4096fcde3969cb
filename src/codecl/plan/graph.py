"""What a graph does to messages: how fast agents come to agree on it, and which learning rates it bears."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from codecl.exchange.gossip import Gossip, gossip_of
from codecl.exchange.topology import Matrix, Topology, product
from codecl.train import corrections
from codecl.train.corrections import CURVATURES, largest_modulus, modulus


@dataclass(frozen=True, kw_only=True)
class GraphPlan:
    agents: int
    links: int  # pairs that talk, one way or both
    edges: int  # directed: what a round sends
    degree: tuple[int, int]  # agents that one hears in a round, least and most
    contraction: float  # √ρ
    gap: float  # 1 - √ρ
    rounds_tenfold: int
    rounds_millionfold: int
    agree_rounds: int
    stable_below: float | None  # of η · L, of plain sgd in the config's order of mixing; None: adamw
    correction_modulus: float | None = None  # what multiplies disagreement in a step at most, with a correction
    step_rounds: int = 1
    step_contraction: float = 0.0  # what the rounds of a step leave of a disagreement, at most

    @property
    def agree_leaves(self) -> float:
        """What agreement leaves of a disagreement, at most."""
        return self.step_contraction ** (self.agree_rounds // self.step_rounds)


def graph_of(
    topology: Topology,
    order: str = "paper",
    correction: corrections.Name = "none",
    momentum: float = 0.0,
    gossip: Gossip | None = None,
) -> GraphPlan:
    """Of the graph alone, and of a correction on it. `gossip`: of a step; one round, if it is left out."""
    corrected = correction != "none" and topology.agents > 1
    gossip = gossip or gossip_of(topology)
    below, drift = (
        stable(gossip.mixings, correction, momentum) for stable in (corrections.stable_below, largest_modulus)
    )
    heard = [int(np.count_nonzero(row)) - 1 for mixing in topology.turns for row in mixing]
    return GraphPlan(
        agents=topology.agents,
        links=len({frozenset(edge) for edge in topology.edges}),
        edges=topology.round_edges,
        degree=(min(heard), max(heard)),
        contraction=topology.contraction,
        gap=1 - topology.contraction,
        rounds_tenfold=rounds(topology.contraction, 0.1, len(topology.turns)),
        rounds_millionfold=rounds(topology.contraction, 1e-6, len(topology.turns)),
        agree_rounds=gossip.agree_rounds,
        stable_below=below if corrected else stable_below(gossip.mixings, order),
        correction_modulus=drift if corrected else None,
        step_rounds=len(gossip.rounds),
        step_contraction=gossip.contraction,
    )


def rounds(contraction: float, to: float, turns: int = 1) -> int:
    """Gossip rounds after which at most this part of any disagreement is left. Law: √ρ^rounds <= to, and no fewer; of
    a graph that changes, whole rounds of its turns."""
    if contraction < 1e-12 ** (1 / turns):
        return turns
    return math.ceil((math.log(to) / math.log(contraction) - 1e-9) / turns) * turns


def stable_below(mixings: Sequence[Matrix], order: str = "paper") -> float:
    """The largest η · L for which a step with curvature L alike at all agents shrinks what it should.

    Mixing before the step multiplies an error by λ - ηL for each eigenvalue λ of W: below 1 while ηL is under
    Re λ + √(1 - Im² λ), which is 1 + λ_min on an undirected graph. Mixing after it: by λ (1 - ηL), so 2. Where
    steps mix differently: as far as was tried."""
    if order != "paper":
        return 2.0
    if len(mixings) > 1:
        own = np.eye(len(mixings[0]))
        sound = takewhile(lambda a: modulus(product([mixing - a * own for mixing in mixings])) <= 1 + 1e-9, CURVATURES)
        return float(max(sound, default=0.0))
    values = np.linalg.eigvals(mixings[0])
    return float((values.real + np.sqrt(np.clip(1 - values.imag**2, 0, None))).min())
