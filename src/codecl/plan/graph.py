"""What a graph does to messages: how fast agents come to agree on it, and which learning rates it bears."""

import math
from dataclasses import dataclass

import numpy as np

from codecl.exchange.topology import Matrix, Topology
from codecl.train import corrections
from codecl.train.corrections import largest_modulus


@dataclass(frozen=True, kw_only=True)
class GraphPlan:
    agents: int
    links: int  # pairs that talk, one way or both
    edges: int  # directed: what a round sends
    degree: tuple[int, int]  # agents that one hears, least and most
    contraction: float  # √ρ
    gap: float  # 1 - √ρ
    rounds_tenfold: int
    rounds_millionfold: int
    agree_rounds: int
    stable_below: float | None  # of η · L, of plain sgd in the config's order of mixing; None: adamw
    correction_modulus: float | None = None  # what multiplies disagreement in a step at most, with a correction


def graph_of(
    topology: Topology, order: str = "paper", correction: corrections.Name = "none", momentum: float = 0.0
) -> GraphPlan:
    """Of the graph alone, and of a correction on it."""
    corrected = correction != "none" and topology.agents > 1
    below, modulus = (
        stable(topology.mixing, correction, momentum) for stable in (corrections.stable_below, largest_modulus)
    )
    heard = [topology.graph.in_degree(agent) for agent in range(topology.agents)]
    return GraphPlan(
        agents=topology.agents,
        links=len({frozenset(edge) for edge in topology.edges}),
        edges=len(topology.edges),
        degree=(min(heard), max(heard)),
        contraction=topology.contraction,
        gap=1 - topology.contraction,
        rounds_tenfold=rounds(topology.contraction, 0.1),
        rounds_millionfold=rounds(topology.contraction, 1e-6),
        agree_rounds=topology.agree_rounds,
        stable_below=below if corrected else stable_below(topology.mixing, order),
        correction_modulus=modulus if corrected else None,
    )


def rounds(contraction: float, to: float) -> int:
    """Gossip rounds after which at most this task of any disagreement is left. Law: √ρ^rounds <= to, and no fewer."""
    if contraction < 1e-12:
        return 1
    return math.ceil(math.log(to) / math.log(contraction) - 1e-9)


def stable_below(mixing: Matrix, order: str = "paper") -> float:
    """The largest η · L for which a step with curvature L alike at all agents shrinks what it should.

    Mixing before the step multiplies an error by λ - ηL for each eigenvalue λ of W: below 1 while ηL is under
    Re λ + √(1 - Im² λ), which is 1 + λ_min on an undirected graph. Mixing after it: by λ (1 - ηL), so 2."""
    if order != "paper":
        return 2.0
    values = np.linalg.eigvals(mixing)
    return float((values.real + np.sqrt(np.clip(1 - values.imag**2, 0, None))).min())
