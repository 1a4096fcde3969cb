"""The laws of mixing matrices, and graphs that are refused."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from codecl.errors import ConfigError
from codecl.exchange import Simulated, topology
from codecl.exchange.topology import TOPOLOGIES, Topology, TopologyConfig


def named(name, agents, **fields):
    return topology.build(TopologyConfig(name=name, **fields), agents, seed=1)


def check_doubly_stochastic(graph):
    assert np.all(graph.mixing >= 0)
    np.testing.assert_allclose(graph.mixing.sum(0), 1, atol=1e-12)
    np.testing.assert_allclose(graph.mixing.sum(1), 1, atol=1e-12)
    heard = {(j, i) for i, j in zip(*np.nonzero(graph.mixing), strict=True) if i != j}
    assert heard <= set(graph.edges)  # only neighbours are heard


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
    rows = torch.randn(agents, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    exchange = Simulated(named("ring", agents), torch.float64, torch.device("cpu"))
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
