"""The laws of who is alive, and of the graph of the living; no network here."""

import copy
import itertools
import time
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

pytest.importorskip("grpc")

from codecl.exchange import topology
from codecl.exchange.topology import Topology, TopologyConfig, healed
from codecl.peers import frames, membership
from codecl.peers.frames import BadFrame, FrameKind, Position
from codecl.peers.membership import STEPS, Membership, Neighbours

numbers = st.integers(0, 2**64 - 1)


# the graph of the living


@st.composite
def graphs(draw, min_agents=2):
    """A connected graph, directed or not, and some who died; at least one lives."""
    agents, seed = draw(st.integers(min_agents, 9)), draw(st.integers(0, 10**6))
    directed = draw(st.booleans())
    graph = nx.gnp_random_graph(agents, draw(st.floats(0.1, 0.9)), seed=seed, directed=directed)
    assume(nx.is_strongly_connected(graph) if directed else nx.is_connected(graph))
    dead = draw(st.sets(st.integers(0, agents - 1), max_size=agents - 1))
    return Topology("random", graph), frozenset(dead)


@given(graphs())
def test_healed_weights_of_the_living_sum_to_one_and_of_the_dead_to_zero(case):
    graph, dead = case
    mixing = healed(graph.mixing, dead)
    expected = [float(agent not in dead) for agent in range(graph.agents)]
    np.testing.assert_allclose(mixing.sum(0), expected, atol=1e-9)
    np.testing.assert_allclose(mixing.sum(1), expected, atol=1e-9)
    assert not np.any(mixing < 0)
    assert not np.any((mixing > 0) & (mixing < 1e-9))  # nobody becomes a neighbour by rounding
    assert nx.is_strongly_connected(
        nx.from_numpy_array(mixing, create_using=nx.DiGraph).subgraph(set(graph.graph) - dead)
    )


@pytest.mark.parametrize("agents", range(3, 10))
def test_behind_a_dead_one_in_a_ring_the_one_before_it_is_heard_by_half(agents):
    ring = topology.build(TopologyConfig(name="ring"), agents, 0)
    for dead in range(agents):
        mixing = healed(ring.mixing, {dead})
        before, behind = (dead - 1) % agents, (dead + 1) % agents
        assert mixing[behind, before] == mixing[behind, behind] == pytest.approx(0.5)


def seen(one):
    return one.weights, one.hearers, one.all, one.living, [one.tree(0), one.tree_to(0)]


@given(graphs())
def test_with_nobody_dead_neighbours_are_the_topology(case):
    graph, dead = case
    for me in range(graph.agents):
        one = Neighbours(graph, me)
        first = copy.deepcopy(seen(one))
        assert one.weights == {j: graph.mixing[me, j] for j, i in graph.edges if i == me}
        assert one.hearers == sorted(i for j, i in graph.edges if j == me)
        assert one.all == set(one.weights) | set(one.hearers)
        assert [one.tree(root) for root in range(graph.agents)] == [graph.tree(root) for root in range(graph.agents)]
        died = one.heal(dead - {me})
        assert died.dead == sorted(dead - {me})
        back = one.heal(())
        assert (back.alive, back.linked, back.unlinked) == (died.dead, died.unlinked, died.linked)
        assert seen(one) == first


@given(graphs())
def test_the_living_see_each_other_alike(case):
    graph, dead = case
    views = {me: Neighbours(graph, me) for me in range(graph.agents) if me not in dead}
    for one in views.values():
        one.heal(dead)
    for i, j in itertools.permutations(views, 2):
        assert (i in views[j].weights) == (j in views[i].hearers)
        assert (i in views[j].all) == (j in views[i].all)
        assert views[i].tree(j) == views[j].tree(j)
        assert views[i].tree_to(j) == views[j].tree_to(j)
    for one in views.values():
        assert not dead & (set(one.weights) | set(one.hearers))
        assert sum(one.weights.values()) < 1 + 1e-9
        assert {child for _, child in one.tree(one.me)} == set(views) - {one.me}


# who is alive


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def three(silence=10.0):
    clock = Clock()
    return clock, [Membership(3, me, silence, clock) for me in range(3)]


def tell(sender, hearer):
    return hearer.merge(**sender.fields())


def test_who_is_silent_is_dead_until_it_is_heard_again():
    clock, (zero, one, two) = three()
    one.beat(Position(0, 1))
    assert tell(one, zero) == [1]
    clock.now += 9
    two.beat(Position(0, 2))
    assert tell(two, zero) == [2]
    assert zero.dead == frozenset()
    clock.now += 2
    assert zero.dead == {1}
    assert tell(one, zero) == []  # the same sign again is none
    assert zero.dead == {1}
    one.beat(Position(0, 1))
    assert tell(one, zero) == []  # alive, where it was
    assert zero.dead == frozenset()
    clock.now += 1000
    assert zero.dead == {1, 2}  # never itself


def test_silence_counts_from_the_start():
    clock, (zero, _, _) = three()
    clock.now += 11
    assert zero.dead == {1, 2}
    zero.start()
    assert zero.dead == frozenset()
    assert zero.unheard == [1, 2]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3), st.integers(0, 3)), max_size=12))
def test_an_older_sign_changes_nothing(signs):
    clock, (zero, _, _) = three()
    newest = (0, 0, 0)
    for beat, task, step in signs:
        clock.now += 1
        zero.merge([0, beat, 0], [0, task * STEPS + step, 0])
        newest = max(newest, (beat, task, step), key=lambda sign: sign[0])
        assert (zero.beats[1], *zero.positions[1]) == newest


@given(st.lists(numbers, max_size=6), st.lists(numbers, max_size=6))
def test_signs_of_another_number_of_agents_are_refused(beats, positions):
    assume((len(beats), len(positions)) != (3, 3))
    _, (zero, _, _) = three()
    before = copy.deepcopy(zero.fields())
    with pytest.raises(BadFrame):
        zero.merge(beats, positions)
    assert zero.fields() == before


def test_signs_spread_from_neighbour_to_neighbour():
    clock, (zero, one, two) = three()
    two.beat(Position(1, 7))
    tell(two, one)
    assert tell(one, zero) == [2]
    assert zero.positions[2] == (1, 7)
    assert zero.unheard == [1]
    clock.now += 11
    two.beat(Position(1, 8))
    assert zero.dead == {1, 2}
    tell(two, one)
    assert tell(one, zero) == [2]
    assert zero.dead == {1}


def test_signs_of_an_earlier_life_are_gone_on_from():
    _, (zero, one, _) = three()
    later = int(time.time() * 1000) + 5000
    zero.merge([0, later, 0], [0, 9, 0])
    tell(zero, one)
    one.beat(Position(0, 0))
    assert one.beats[1] == later + 1
    assert tell(one, zero) == [1]
    assert zero.positions[1] == (0, 0)


def test_nobody_is_silenced_by_a_sign_from_the_far_future(monkeypatch):
    """Whoever lies about the sign of another, or of us, changes for how long it is believed: not for ever."""
    clock, (zero, one, two) = three()
    monkeypatch.setattr(membership, "time", SimpleNamespace(time=clock))
    two.merge([2**64 - 1] * 3, [0] * 3)
    tell(two, zero)
    tell(two, one)
    for number in range(1, 4):
        clock.now += 11
        assert zero.dead == {1, 2}
        one.beat(Position(0, number))
        frames.encode(FrameKind.BEAT, **one.fields())  # can still be sent
        assert tell(one, zero) == [1]
        assert zero.positions[1] == (0, number)
        assert zero.dead == {2}
