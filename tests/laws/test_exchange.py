"""The laws of mixing matrices and of an exchange: what arrives, what is counted, and graphs that are refused."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from codecl.errors import ConfigError
from codecl.exchange import Simulated, digest, topology
from codecl.exchange.cluster import blocks
from codecl.exchange.cluster.wire import packed, unpacked
from codecl.exchange.topology import TOPOLOGIES, Topology, TopologyConfig
from tests.problems import CPU


def named(name, agents, **fields):
    return topology.build(TopologyConfig(name=name, **fields), agents, seed=1)


def simulated(name, agents):
    graph = named(name, agents)
    return graph, Simulated(graph, torch.float64, CPU)


def random(seed, *shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def check_doubly_stochastic(graph):
    for turn, mixing in enumerate(graph.turns):
        assert np.all(mixing >= 0)
        np.testing.assert_allclose(mixing.sum(0), 1, atol=1e-12)
        np.testing.assert_allclose(mixing.sum(1), 1, atol=1e-12)
        heard = {(j, i) for i, j in zip(*np.nonzero(mixing), strict=True) if i != j}
        assert heard == set(graph.edges_of(turn))  # only neighbours are heard
    assert {edge for turn in range(len(graph.turns)) for edge in graph.edges_of(turn)} == set(graph.edges)


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("agents", [4, 8, 16])
def test_every_mixing_matrix_is_doubly_stochastic(name, agents):
    check_doubly_stochastic(named(name, agents))


@given(st.integers(2, 12), st.integers(0, 10**6), st.floats(0.1, 0.9), st.booleans())
def test_random_graphs_are_doubly_stochastic(agents, seed, p, directed):
    """Metropolis and Sinkhorn on whatever is (strongly) connected."""
    graph = nx.gnp_random_graph(agents, p, seed=seed, directed=directed)
    assume(nx.is_strongly_connected(graph) if directed else nx.is_connected(graph))
    check_doubly_stochastic(Topology("random", graph))


@given(st.integers(1, 9), st.integers(0, 1000))
def test_mixing_keeps_the_mean(agents, seed):
    rows = random(seed, agents, 5)
    _, exchange = simulated("ring", agents)
    torch.testing.assert_close(exchange.start(rows, "train").wait().mean(0), rows.mean(0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("agents", [2, 3, 4, 8, 16])
def test_contraction_of_the_directed_ring(agents):
    assert named("ring", agents).contraction == pytest.approx(np.cos(np.pi / agents), abs=1e-12)


def test_neighbours_as_in_the_paper():
    def degrees(name, agents):
        return {d for _, d in named(name, agents).graph.in_degree}

    assert degrees("ring", 8) == {1}
    assert degrees("torus", 8) == {3}
    assert degrees("torus", 16) == {4}
    assert degrees("hypercube", 16) == {4}
    assert named("ring", 4).mixing[1].tolist() == [0.5, 0.5, 0, 0]  # agent 1 hears agent 0


def test_rounds_of_agreement():
    assert [named(n, 8).agree_rounds for n in ("ring", "torus", "complete")] == [50, 10, 1]
    assert named("ring", 4).agree_rounds == 20


def test_word_gets_round_in_as_many_rounds_as_the_diameter():
    assert [named(n, 8).diameter for n in ("ring", "ring-undirected", "complete", "star")] == [7, 4, 1, 2]
    assert named("ring", 1).diameter == 0


@pytest.mark.parametrize("name", ["ring", "torus", "star", "exponential"])
def test_trees_reach_everyone_along_edges(name):
    graph = named(name, 8)
    for root in range(8):
        down, up = graph.tree(root), graph.tree_to(root)
        assert len(down) == len(up) == 7
        assert {child for _, child in down} == {child for _, child in up} == set(range(8)) - {root}
        assert all(edge in graph.edges for edge in down)
        assert all((child, parent) in graph.edges for parent, child in up)


@pytest.mark.parametrize(
    ("name", "agents", "reason"),
    [
        ("torus", 7, "both at least 2"),
        ("hypercube", 6, "power of two"),
        ("rung", 4, "did you mean 'ring'"),
        ("nowhere.py:graph", 4, "no such file"),
    ],
)
def test_names_that_cannot_be_built_are_refused_with_the_reason(name, agents, reason):
    with pytest.raises(ConfigError, match=reason):
        named(name, agents)


@pytest.mark.parametrize(
    ("text", "agents", "reason"),
    [
        ("0 1\n2 3\n", 4, "falls into 2 parts"),
        ("0 -> 1\n1 -> 2\n", 3, "not strongly connected"),
        ("0 1\n1 2\n", 4, "falls into 2 parts"),
        ("0 1\n1 5\n", 3, "set agents to 6"),
        ("0 1 2\n", 3, "is not a link"),
        ("# nothing\n", 3, "no links"),
    ],
)
def test_edge_lists_that_are_refused(tmp_path, text, agents, reason):
    path = tmp_path / "links.txt"
    path.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        topology.build(topology.with_edges(TopologyConfig(name=str(path))), agents, 0)


def test_an_edge_list_of_ones_own(tmp_path):
    path = tmp_path / "my-links.txt"
    path.write_text("# a triangle with a one-way chord\n0 1\n1 2  # both ways\n2 -> 0\n")
    config = topology.with_edges(TopologyConfig(name=str(path)))
    graph = topology.build(config, 3, 0)
    assert config.name == "my-links"
    assert graph.edges == ((0, 1), (1, 0), (1, 2), (2, 0), (2, 1))
    check_doubly_stochastic(graph)


def test_a_file_that_is_called_like_a_topology_keeps_its_name(tmp_path):
    (tmp_path / "ring.txt").write_text("0 1\n")
    assert topology.with_edges(TopologyConfig(name=str(tmp_path / "ring.txt"))).name == "ring.txt"


def test_an_unlucky_random_graph_is_refused():
    with pytest.raises(ConfigError, match=r"erdos-renyi with 12 agents, probability 0\.05 and seed 1 is not connected"):
        named("erdos-renyi", 12, edge_probability=0.05)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_a_round_is_the_weighted_sum_of_what_neighbours_sent(name):
    graph, exchange = simulated(name, 8)
    rows = random(0, 8, 3)
    for turn, mixing in enumerate(graph.turns):
        edges = graph.edges_of(turn)
        mixed = exchange.start(rows, "train", torch.tensor(float(turn)) if graph.changes else None).wait()
        for agent in range(8):
            heard = [j for j, i in edges if i == agent] + [agent]
            expected = sum(mixing[agent, j] * rows[j] for j in heard)
            torch.testing.assert_close(mixed[agent], expected, rtol=0, atol=1e-12)
        assert exchange.traffic.take("train") == {"messages": len(edges), "bytes": len(edges) * 24}
        assert exchange.traffic.take("train") == {"messages": 0, "bytes": 0}


@given(st.sampled_from(["ring", "torus", "star", "exponential"]), st.integers(0, 7), st.integers(0, 1000))
def test_a_reduce_is_the_sum_over_all_agents_each_sending_once(name, root, seed):
    _, exchange = simulated(name, 8)
    parts = [{"a": random(seed + i, 2), "b": random(seed - i - 1, 1, 3)} for i in range(8)]
    reduced = exchange.reduce(root, parts)
    for key in ("a", "b"):
        torch.testing.assert_close(reduced[key], sum(part[key] for part in parts), rtol=0, atol=1e-12)
    assert exchange.traffic.take("reduce") == {"messages": 2 * 7, "bytes": 7 * 5 * 8}


@given(st.sampled_from(["ring", "torus", "star", "exponential"]), st.integers(0, 7))
def test_a_flood_reaches_everyone_with_its_digest(name, root):
    _, exchange = simulated(name, 8)
    payload = {"x": random(root, 4), "n": torch.arange(3)}
    arrived, announced, votes = exchange.flood(root, payload)
    assert votes is None
    assert announced == digest(payload) == digest(arrived)
    assert exchange.traffic.take("flood") == {"messages": 7, "bytes": 7 * (32 + 24)}


@pytest.mark.parametrize("name", ["ring", "star", "complete"])
def test_agreement_rounds_shrink_disagreement_to_a_thousandth_or_stop_at_fifty(name):
    graph, exchange = simulated(name, 4)
    rows = random(3, 4, 50)
    before = exchange.consensus_error(rows)
    for _ in range(graph.agree_rounds):
        rows = exchange.start(rows, "agree").wait()
    assert exchange.consensus_error(rows) ** 0.5 <= max(1e-3, graph.contraction**50) * before**0.5 + 1e-12


@given(st.integers(1, 40), st.integers(1, 40))
def test_blocks_hold_every_agent_once_and_differ_by_at_most_one(agents, ranks):
    if ranks > agents:
        with pytest.raises(ConfigError, match=f"agents: {agents} cannot be spread over {ranks} ranks"):
            blocks(agents, ranks)
        return
    spread = blocks(agents, ranks)
    assert [agent for block in spread for agent in block] == list(range(agents))
    sizes = [len(block) for block in spread]
    assert len(spread) == ranks
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


SHAPES = st.lists(st.integers(0, 3), max_size=3)
TYPES = st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool])


@given(st.lists(st.tuples(TYPES, SHAPES), max_size=5), st.integers(0, 1000))
def test_unpacked_undoes_packed(kinds, seed):
    tensors = {f"t{i}": (9 * random(seed + i, *shape)).to(dtype) for i, (dtype, shape) in enumerate(kinds)}
    assert digest(unpacked(packed(tensors), CPU)) == digest(tensors)


def test_consensus_error_is_the_mean_squared_distance_to_the_average():
    _, exchange = simulated("ring", 2)
    assert exchange.consensus_error(torch.tensor([[1.0, 0.0], [3.0, 4.0]])) == pytest.approx((5 + 5) / 2)
