"""Whom an agent hears and who hears it, by the topology and by what heals it where agents have died."""

from collections.abc import Collection
from typing import Any, NamedTuple

import networkx as nx

from codecl.exchange.topology import Matrix, Topology, healed


class Changes(NamedTuple):
    """What the death or return of agents changed."""

    dead: list[int]
    alive: list[int]
    linked: list[int]
    unlinked: list[int]


class Neighbours:
    """Law: with nobody dead, the topology's; the weights of the living sum to 1 whoever died."""

    def __init__(self, topology: Topology, me: int) -> None:
        self.topology, self.me, self.dead = topology, me, frozenset[int]()
        self._graph: Any
        self._use(topology.mixing, topology.graph)

    @property
    def living(self) -> list[int]:
        return [agent for agent in range(self.topology.agents) if agent not in self.dead]

    def _use(self, mixing: Matrix, graph: Any) -> None:
        self._graph, me = graph, self.me
        others = [agent for agent in range(len(mixing)) if agent != me]
        self.weights = {j: float(mixing[me, j]) for j in others if mixing[me, j]}  # whom we hear, and how much
        self.hearers = [i for i in others if mixing[i, me]]
        base = self.topology.mixing
        ours = {j for j in others if base[me, j] or base[j, me]}
        self.all = ours | set(self.weights) | set(self.hearers)  # whoever was lost may come back

    def tree(self, root: int) -> list[tuple[int, int]]:
        """(parent, child): how a flood of the living travels."""
        return list(nx.bfs_edges(self._graph, root, sort_neighbors=sorted)) if root in self._graph else []

    def tree_to(self, root: int) -> list[tuple[int, int]]:
        """(parent, child): how sums of the living travel."""
        back = self._graph.reverse(copy=False)
        return list(nx.bfs_edges(back, root, sort_neighbors=sorted)) if root in back else []

    def heal(self, dead: Collection[int]) -> Changes:
        """From now on these are dead."""
        known, before = self.dead, self.all
        self.dead = frozenset(dead)
        mixing, graph = self.topology.mixing, self.topology.graph
        if dead:
            mixing = healed(mixing, dead)
            graph = nx.DiGraph([(j, i) for i in self.living for j in mixing[i].nonzero()[0] if i != j])
            graph.add_nodes_from(self.living)
        self._use(mixing, graph)
        return Changes(*map(sorted, (self.dead - known, known - self.dead, self.all - before, before - self.all)))
