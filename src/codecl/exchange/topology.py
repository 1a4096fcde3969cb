"""Who hears whom: graph -> neighbours -> doubly stochastic mixing matrix.

An edge j -> i means that agent i hears agent j. An undirected link is two edges. W[i, j]: the
weight that i gives to j's message. A graph may change from round to round: its `turns`, one after another, again and
again.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from codecl.errors import CodeclError, ConfigError
from codecl.registry import lookup, reason
from codecl.seeding import derive

AGREE_TO, AGREE_AT_MOST = 1e-3, 50
Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]
Graph = Any  # a networkx Graph or DiGraph with nodes 0 .. agents - 1


class TopologyConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field("ring", description="a name from `codecl topologies`, an edge-list file, or file.py:function")
    edge_probability: float = Field(0.5, gt=0, le=1, description="of erdos-renyi")
    edges: tuple[tuple[int, int], ...] | None = Field(None, description="of an edge-list file: sender, hearer")


class Topology:
    """A connected graph of agents with its mixing matrices. Law: rows and columns of each sum to 1.

    `turns`: of one round after another, one where the graph stays as it is. `mixing`: their mean, by which links of a
    graph that changes are judged. `given`: weights of the caller's own, with which the graph may be any and the law
    may fail: for analyses, and where agents have died."""

    def __init__(self, name: str, graph: Graph, given: Sequence[Matrix] | None = None) -> None:
        self.name = name
        self.graph = _checked(name, graph) if given is None else graph
        self.agents: int = self.graph.number_of_nodes()
        self.turns = _turns(name, self.graph) if given is None else tuple(given)
        self.mixing: Matrix = self.turns[0] if len(self.turns) == 1 else np.mean(self.turns, 0)

    @property
    def changes(self) -> bool:
        """Whether who hears whom differs from round to round."""
        return len(self.turns) > 1

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """(sender, hearer), each directed edge once, of all turns."""
        return tuple(sorted(self.graph.edges))

    def edges_of(self, turn: int) -> tuple[tuple[int, int], ...]:
        """(sender, hearer) of one turn."""
        return tuple((j, i) for j, i in self.edges if self.turns[turn][i, j])

    @cached_property
    def round_edges(self) -> int:
        """Messages of a round, in each turn alike."""
        return len(self.edges_of(0))

    @cached_property
    def contraction(self) -> float:
        """√ρ of its mixing matrix; where it changes, of its turns together, a round's share of it."""
        return contraction(product(self.turns)) ** (1 / len(self.turns))

    def heard_by(self, agents: Sequence[int], turn: int = 0) -> tuple[list[list[int]], list[list[float]]]:
        """(whom each of these agents hears, with which weight), to the length of the longest: itself, with none."""
        edges, mixing = self.edges_of(turn), self.turns[turn]
        senders = [[sender for sender, hearer in edges if hearer == agent] for agent in agents]
        most = max((len(heard) for heard in senders), default=0)
        weights = [[float(mixing[agent, j]) for j in heard] for agent, heard in zip(agents, senders, strict=True)]
        return (
            [heard + [agent] * (most - len(heard)) for agent, heard in zip(agents, senders, strict=True)],
            [heard + [0.0] * (most - len(heard)) for heard in weights],
        )

    @property
    def agree_rounds(self) -> int:
        """Gossip-only rounds at a task's end: to a thousandth, at most 50; everyone can compute it."""
        return agree_rounds(self.contraction, len(self.turns))

    @cached_property
    def diameter(self) -> int:
        """Rounds until word of any agent reached all that it can reach."""
        return max(max(reached.values()) for _, reached in nx.all_pairs_shortest_path_length(self.graph))

    def tree(self, root: int) -> list[tuple[int, int]]:
        """Breadth-first tree of `root` along edges, as (parent, child), parents first: how a flood travels."""
        return list(nx.bfs_edges(self.graph, root, sort_neighbors=sorted))

    def tree_to(self, root: int) -> list[tuple[int, int]]:
        """The tree along which everyone reaches `root`, as (parent, child), parents first: how sums travel up."""
        return list(nx.bfs_edges(self.graph.reverse(copy=False), root, sort_neighbors=sorted))


def product(mixings: Sequence[Matrix]) -> Matrix:
    """One after another, the first first."""
    return reduce(lambda so_far, mixing: mixing @ so_far, mixings)


def contraction(mixing: Matrix) -> float:
    """√ρ = ‖W - 11ᵀ/N‖₂: what one round leaves of the disagreement. A norm: for a W that is not symmetric the second
    eigenvalue may be smaller, and is no bound."""
    return float(np.linalg.norm(mixing - 1 / len(mixing), 2))


def agree_rounds(contraction: float, turns: int = 1) -> int:
    """Rounds that leave a thousandth of a disagreement, at most 50; where nothing is left of it, one of each turn."""
    if contraction < 1e-12 ** (1 / turns):
        return turns
    return min(AGREE_AT_MOST, math.ceil(math.log(AGREE_TO) / math.log(contraction)))


def build(config: TopologyConfig, agents: int, seed: int) -> Topology:
    """The topology that a configuration names. `seed` matters to random graphs only."""
    if config.edges is not None:
        graph = nx.DiGraph(config.edges)
        graph.add_nodes_from(range(agents))
        if graph.number_of_nodes() != agents:
            raise ConfigError(
                f"agents: {agents}, but {config.name} names agents up to {max(graph)}: set agents to {max(graph) + 1}"
            )
        return Topology(config.name, graph)
    builder = lookup("topology", TOPOLOGIES, config.name)
    try:
        graph = builder(agents, config, seed)
    except CodeclError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise ConfigError(f"topology: {config.name} with {agents} agents: {reason(error)}") from error
    if not isinstance(graph, nx.Graph) or graph.number_of_nodes() != agents:
        given = f"{graph.number_of_nodes()} nodes" if isinstance(graph, nx.Graph) else type(graph).__name__
        raise ConfigError(f"topology: {config.name} gives {given}; it should give a networkx graph of {agents} agents")
    return Topology(config.name, graph)


def _turns(name: str, graph: Graph) -> tuple[Matrix, ...]:
    """The mixing of each turn: a graph may name its edges by turn, `graph.graph["turns"]`."""
    turns: list[Graph] = [nx.DiGraph(edges) for edges in graph.graph.get("turns", [list(graph.edges)])]
    for turn in turns:
        turn.add_nodes_from(graph)
    sizes = {turn.number_of_edges() for turn in turns}
    if {edge for turn in turns for edge in turn.edges} != set(graph.edges) or len(sizes) > 1:
        raise ConfigError(f"topology {name}: turns should have equally many edges, and together those of the graph")
    return tuple(mixing_matrix(turn) for turn in turns)


def mixing_matrix(graph: Graph) -> Matrix:
    """Uniform weights on regular graphs, Metropolis on other undirected, Sinkhorn-balanced on other directed ones."""
    hears: Matrix = np.zeros((len(graph), len(graph)))
    for sender, hearer in graph.edges:
        hears[hearer, sender] = 1
    n, degrees = len(hears), hears.sum(1)
    if np.all(degrees == degrees[0]) and np.all(hears.sum(0) == degrees[0]):
        return (hears + np.eye(n)) / (degrees[0] + 1)
    if np.array_equal(hears, hears.T):
        weights = hears / (1 + np.maximum(degrees[:, None], degrees[None, :]))
        return weights + np.diag(1 - weights.sum(1))
    return _sinkhorn(hears + np.eye(n))


def healed(mixing: Matrix, dead: Collection[int]) -> Matrix:
    """The mixing of the living, W_SS + W_SD (I - W_DD)⁻¹ W_DS: what a message through the dead would have become. Law:
    rows and columns of the living sum to 1, those of the dead to 0."""
    gone = sorted(dead)
    living = [agent for agent in range(len(mixing)) if agent not in dead]
    through = np.linalg.solve(np.eye(len(gone)) - mixing[np.ix_(gone, gone)], mixing[np.ix_(gone, living)])
    out: Matrix = np.zeros_like(mixing)
    out[np.ix_(living, living)] = mixing[np.ix_(living, living)] + mixing[np.ix_(living, gone)] @ through
    return out


def _sinkhorn(support: Matrix) -> Matrix:
    """Scale rows and columns in turn until both sum to 1; exists because every edge lies on a cycle."""
    weights = support
    for _ in range(100_000):
        weights = weights / weights.sum(1, keepdims=True)
        weights = weights / weights.sum(0, keepdims=True)
        if abs(weights.sum(1) - 1).max() < 1e-15 * len(weights):
            break
    else:
        raise ConfigError("topology: balancing the weights of this directed graph does not converge; add links")
    return weights


def _checked(name: str, graph: Graph) -> Graph:
    """As a DiGraph on 0 .. n-1 without self-loops, (strongly) connected."""
    directed: Graph = nx.DiGraph(graph)
    directed.remove_edges_from(list(nx.selfloop_edges(directed)))
    n = directed.number_of_nodes()
    if sorted(directed) != list(range(n)):
        raise ConfigError(f"topology {name}: agents must be numbered 0 to {n - 1}, got {sorted(directed)[:8]}")
    components = [sorted(nodes) for nodes in nx.strongly_connected_components(directed)]
    if len(components) > 1:
        smallest = min(components, key=len)
        weakly = nx.is_weakly_connected(directed)
        reason = "some agents cannot reach the others" if weakly else f"it falls into {len(components)} parts"
        raise ConfigError(
            f"topology {name} with {n} agents is not {'strongly ' if weakly else ''}connected: {reason}"
            f" (agents {smallest[:6]}{'…' if len(smallest) > 6 else ''} apart); add links"
        )
    return directed


def ring(agents: int, config: TopologyConfig, seed: int) -> Graph:
    """Directed: each agent hears the one before it (as in the paper)."""
    return nx.cycle_graph(agents, create_using=nx.DiGraph)


def ring_undirected(agents: int, config: TopologyConfig, seed: int) -> Graph:
    """Each agent hears both sides."""
    return nx.cycle_graph(agents)


def torus(agents: int, config: TopologyConfig, seed: int) -> Graph:
    """The most square grid with wrapped sides: 8 = 2×4, 16 = 4×4."""
    rows = max(r for r in range(1, math.isqrt(agents) + 1) if agents % r == 0)
    if rows == 1:
        near = next(n for n in range(max(agents, 3) + 1, 2 * agents + 5) if any(n % r == 0 for r in range(2, n)))
        raise ConfigError(f"agents: a torus is rows × columns, both at least 2; {agents} is not: try {near}")
    grid = nx.grid_2d_graph(rows, agents // rows, periodic=True)
    return nx.relabel_nodes(grid, {(r, c): r * (agents // rows) + c for r, c in grid})


def complete(agents: int, config: TopologyConfig, seed: int) -> Graph:
    """Everyone hears everyone."""
    return nx.complete_graph(agents)


def star(agents: int, config: TopologyConfig, seed: int) -> Graph:
    """Agent 0 in the middle."""
    return nx.star_graph(agents - 1)


def hypercube(agents: int, config: TopologyConfig, seed: int) -> Graph:
    """Neighbours differ in one bit; agents are a power of two."""
    bits = agents.bit_length() - 1
    if agents != 1 << bits:
        raise ConfigError(f"agents: a hypercube needs a power of two, got {agents}: try {1 << bits} or {2 << bits}")
    graph = nx.empty_graph(agents)
    graph.add_edges_from((i, i ^ (1 << b)) for i in range(agents) for b in range(bits))
    return graph


def exponential(agents: int, config: TopologyConfig, seed: int) -> Graph:
    """Static exponential, directed: i sends to i + 1, i + 2, i + 4, …"""
    graph = nx.empty_graph(agents, create_using=nx.DiGraph)
    hops = [1 << b for b in range(max(agents - 1, 0).bit_length())]
    graph.add_edges_from((i, (i + hop) % agents) for i in range(agents) for hop in hops)
    return graph


def one_peer_exponential(agents: int, config: TopologyConfig, seed: int) -> Graph:
    """One neighbour a round, in turn: i sends to i + 1, then i + 2, i + 4, …; a power of two agents agree after all
    turns."""
    graph = exponential(agents, config, seed)
    hops = [1 << b for b in range(max(agents - 1, 0).bit_length())]
    graph.graph["turns"] = [[(i, (i + hop) % agents) for i in range(agents)] for hop in hops] or [[]]
    return graph


def erdos_renyi(agents: int, config: TopologyConfig, seed: int) -> Graph:
    """Each link with `topology.edge_probability`, drawn from the run's seed."""
    graph = nx.gnp_random_graph(agents, config.edge_probability, seed=derive(seed, "topology") % 2**32)
    if not nx.is_connected(graph):
        raise ConfigError(
            f"topology erdos-renyi with {agents} agents, probability {config.edge_probability:g} and seed {seed} is not"
            " connected; raise topology.edge_probability or change the seed"
        )
    return graph


TOPOLOGIES: dict[str, Callable[[int, TopologyConfig, int], Graph]] = {
    "ring": ring,
    "ring-undirected": ring_undirected,
    "torus": torus,
    "complete": complete,
    "star": star,
    "hypercube": hypercube,
    "exponential": exponential,
    "one-peer-exponential": one_peer_exponential,
    "erdos-renyi": erdos_renyi,
}


def read_edges(path: Path) -> tuple[tuple[int, int], ...]:
    """A user's own graph: a line a link, `0 1` both ways, `0 -> 1` one way; `#` starts a comment."""
    edges: list[tuple[int, int]] = []
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        text = line.split("#")[0].strip()
        if not text:
            continue
        one_way = "->" in text
        words = text.replace("->", " ").split()
        if len(words) != 2 or not all(word.isdecimal() for word in words):
            raise ConfigError(f"{path}:{number}: {line.strip()[:40]!r} is not a link: write `0 1` or `0 -> 1`")
        a, b = int(words[0]), int(words[1])
        edges += [(a, b)] if one_way else [(a, b), (b, a)]
    if not edges:
        raise ConfigError(f"{path}: no links in it: write a line such as `0 1` or `0 -> 1` for each")
    return tuple(dict.fromkeys(edges))


def with_edges(config: TopologyConfig) -> TopologyConfig:
    """A name that is an edge-list file is replaced by the file's edges: the config says it all."""
    path = Path(config.name)
    if config.edges is not None or config.name in TOPOLOGIES or ":" in config.name:
        return config
    if not path.is_file():
        if path.suffix or path.name != config.name:
            raise ConfigError(
                f"topology: there is no file {config.name!r}; an edge list has a line `a b` for each link, and graphs"
                f" by name are {', '.join(TOPOLOGIES)}"
            )
        return config
    name = path.name if path.stem in TOPOLOGIES else path.stem
    return config.model_copy(update={"name": name, "edges": read_edges(path)})


def from_graph(graph: Graph) -> Mapping[str, Any]:
    """The config fields of a networkx graph: an undirected link is two edges."""
    if not all(isinstance(node, int) for node in graph):
        raise ConfigError("topology: agents in a graph are numbered 0, 1, …; relabel its nodes with whole numbers")
    return {"name": "graph", "edges": tuple(sorted(nx.DiGraph(graph).edges))}
