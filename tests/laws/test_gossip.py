"""Several rounds a step, and graphs that change from round to round."""

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codecl.errors import ConfigError
from codecl.exchange import Simulated
from codecl.exchange.gossip import Combination, applied, chebyshev, gossip_of
from codecl.exchange.messages import MessageConfig, messages
from codecl.exchange.topology import Topology, TopologyConfig, build, contraction, product
from codecl.train.corrections import CORRECTIONS, Step, dynamics, largest_modulus, stable_below
from tests.problems import CPU

UNDIRECTED = ["ring-undirected", "torus", "star", "hypercube", "complete"]
ANY = [*UNDIRECTED, "ring", "exponential", "one-peer-exponential"]


def named(name, agents=8):
    return build(TopologyConfig(name=name), agents, 0)


def left(polynomial, values):
    """The largest of a polynomial of these rounds on eigenvalues."""
    before = now = np.ones_like(values)
    for step in polynomial:
        before, now = now, step.mixed * values * now + step.own * now + step.before * before
    return np.abs(now).max()


@given(st.integers(3, 12), st.integers(0, 10**6), st.integers(1, 9))
def test_the_combinations_keep_the_mean_and_come_to_one_matrix(agents, seed, rounds):
    graph = Topology("random", nx.connected_watts_strogatz_graph(agents, 2, 0.5, seed=seed))
    steps = chebyshev(graph.mixing, rounds)
    assert all(sum(step) == pytest.approx(1) for step in steps)
    matrix = applied(steps, graph.mixing)
    np.testing.assert_allclose(matrix.sum(0), 1, atol=1e-9)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-9)


@given(st.integers(4, 12), st.integers(0, 10**6), st.integers(2, 8))
def test_no_polynomial_of_as_many_rounds_leaves_less(agents, seed, rounds):
    """Chebyshev's alternates between its largest values once more than it has rounds: none is smaller (de la Vallée
    Poussin), and the plain power is not."""
    values = np.linalg.eigvalsh(Topology("random", nx.connected_watts_strogatz_graph(agents, 2, 0.5, seed=seed)).mixing)
    low, high = values[0], values[-2]
    if high - low < 1e-6:
        return
    steps = chebyshev(np.diag([low, high, 1.0]), rounds)  # the interval is all that it goes by
    most = left(steps, np.linspace(low, high, 4001))
    extremes = (high + low) / 2 + (high - low) / 2 * np.cos(np.pi * np.arange(rounds + 1) / rounds)
    at = np.array([left(steps, np.array([value])) for value in extremes])
    np.testing.assert_allclose(at, most, rtol=1e-3)
    assert most <= max(abs(low), abs(high)) ** rounds + 1e-12
    random = np.random.default_rng(seed)
    for _ in range(20):  # any others with p(1) = 1
        roots = random.uniform(low, high, rounds)
        grid = np.linspace(low, high, 4001)
        assert np.abs(np.prod([(grid - root) / (1 - root) for root in roots], 0)).max() >= most * (1 - 1e-6)


@pytest.mark.parametrize("rounds", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ANY)
def test_what_rounds_do_to_rows_is_what_their_matrix_does(name, rounds):
    graph = named(name)
    exchange, sending = Simulated(graph, torch.float64, CPU), messages(MessageConfig(), 1, 0, graph, rounds)
    start = torch.randn(8, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows, memory, mixings = start, sending.memory(start), gossip_of(graph, rounds).mixings
    expected = start.numpy()
    for step in range(5):
        rows, memory = sending.start(exchange, rows, memory, "train").wait()
        expected = mixings[step % len(mixings)] @ expected
        np.testing.assert_allclose(rows.numpy(), expected, atol=1e-10)
    assert exchange.traffic.take("train")["messages"] == 5 * rounds * graph.round_edges
    torch.testing.assert_close(rows.mean(0), start.mean(0))


@pytest.mark.parametrize("name", ANY)
def test_more_rounds_leave_less(name):
    graph = named(name)
    left = [gossip_of(graph, rounds).contraction for rounds in (1, 2, 3, 4)]
    assert all(more <= fewer + 1e-12 for fewer, more in pairwise(left))
    if name == "ring-undirected":  # 0.805 a round
        assert left[3] < 0.35 < graph.contraction**4


def test_one_round_is_the_graph_as_it_is():
    graph = named("torus")
    found = gossip_of(graph)
    assert found.rounds == (Combination(),)
    assert found.mixings[0] is graph.turns[0] or np.array_equal(found.mixings[0], graph.mixing)
    assert found.agree_rounds == graph.agree_rounds


@pytest.mark.parametrize("agents", [2, 4, 8, 16, 32])
def test_a_power_of_two_agents_with_one_peer_a_round_agree_after_all_turns(agents):
    graph = named("one-peer-exponential", agents)
    assert len(graph.turns) == agents.bit_length() - 1
    assert all(len(graph.edges_of(turn)) == agents for turn in range(len(graph.turns)))
    np.testing.assert_allclose(product(graph.turns), 1 / agents, atol=1e-12)
    assert graph.agree_rounds == len(graph.turns)
    assert gossip_of(graph, len(graph.turns)).contraction < 1e-12


@pytest.mark.parametrize("agents", [3, 5, 6, 12])
def test_others_come_near(agents):
    graph = named("one-peer-exponential", agents)
    rows = np.random.default_rng(0).normal(size=(agents, 3))
    mixed = rows
    for number in range(graph.agree_rounds):
        mixed = graph.turns[number % len(graph.turns)] @ mixed
    assert np.abs(mixed - rows.mean(0)).max() < 2e-3 * np.abs(rows - rows.mean(0)).max() * np.sqrt(agents)


def test_a_graph_of_ones_own_may_change():
    square = nx.cycle_graph(4, create_using=nx.DiGraph)
    square.add_edges_from([(b, a) for a, b in square.edges])
    pairs = [[(0, 1), (1, 0), (2, 3), (3, 2)], [(1, 2), (2, 1), (3, 0), (0, 3)]]
    square.graph["turns"] = pairs
    graph = Topology("pairs", square)
    np.testing.assert_allclose(product(graph.turns), 0.25)
    square.graph["turns"] = pairs[:1]
    with pytest.raises(ConfigError, match="topology pairs: turns should have equally many edges, and together those"):
        Topology("pairs", square)


@pytest.mark.parametrize("name", ["none", "exact-diffusion", "gradient-tracking", "quasi-global"])
@pytest.mark.parametrize("curvature", [0.0, 0.3])
def test_the_modulus_of_steps_that_differ_is_that_of_one_where_they_are_alike(name, curvature):
    """The whole matrix of all agents against eigenvalue after eigenvalue."""
    mixing = named("exponential", 6).mixing
    alone, twice = (largest_modulus([mixing] * count, name, 0.5, curvature) for count in (1, 2))
    assert twice == pytest.approx(alone, abs=1e-6)
    assert dynamics(name, 0.5, curvature, 0.5).shape == dynamics(name, 0.0, curvature, 0.5).shape


@pytest.mark.parametrize("agents", [5, 6, 8])
@pytest.mark.parametrize("name", ["exact-diffusion", "gradient-tracking", "quasi-global"])
def test_on_a_graph_that_changes_what_is_stable_comes_together_and_what_is_not_does_not(name, agents):
    """Losses of one curvature, each agent's least elsewhere: with a rate under and over what is said to be stable."""
    turns = gossip_of(named("one-peer-exponential", agents)).mixings
    limit = stable_below(turns, name, 0.5)
    for rate in (0.8 * limit, 1.25 * limit) if limit else (0.3,):
        rows = torch.randn(agents, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        state = torch.zeros(agents, 2 * CORRECTIONS[name].rows, dtype=torch.float64)
        for number in range(3000):
            mixing = torch.from_numpy(turns[number % len(turns)])
            step = Step(rows, rows, state, rate, 0.5, lambda x, d, lr=rate: x - lr * d, lambda x, w=mixing: w @ x)
            rows, state = CORRECTIONS[name].rule(step)
        settled = bool(rows.isfinite().all()) and rows.abs().max() < 1e-3
        assert settled == (rate < limit), (rate, limit, rows.abs().max())


def test_nothing_is_left_of_a_disagreement_after_all_turns():
    turns = gossip_of(named("one-peer-exponential")).mixings
    assert largest_modulus(turns, "none") < 1e-3
    assert contraction(product(gossip_of(named("one-peer-exponential"), 3).mixings)) < 1e-12
