"""The laws of an exchange: what arrives, and what is counted."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codecl.errors import ConfigError
from codecl.exchange import Simulated, digest, topology
from codecl.exchange.cluster import blocks
from codecl.exchange.cluster.wire import packed, unpacked
from codecl.exchange.topology import TOPOLOGIES, TopologyConfig


def simulated(name, agents):
    graph = topology.build(TopologyConfig(name=name), agents, seed=1)
    return graph, Simulated(graph, torch.float64, torch.device("cpu"))


def random(seed, *shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_a_round_is_the_weighted_sum_of_what_neighbours_sent(name):
    graph, exchange = simulated(name, 8)
    rows = random(0, 8, 3)
    mixed = exchange.start(rows, "train").wait()
    for agent in range(8):
        heard = [j for j, i in graph.edges if i == agent] + [agent]
        expected = sum(graph.mixing[agent, j] * rows[j] for j in heard)
        torch.testing.assert_close(mixed[agent], expected, rtol=0, atol=1e-12)
    assert exchange.traffic.take("train") == {"messages": len(graph.edges), "bytes": len(graph.edges) * 24}
    assert exchange.traffic.take("train") == {"messages": 0, "bytes": 0}


@given(st.sampled_from(["ring", "torus", "star", "exponential"]), st.integers(0, 7), st.integers(0, 1000))
def test_a_pool_is_the_sum_over_all_agents_each_sending_once(name, root, seed):
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
    arrived, announced = exchange.flood(root, payload)
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
    assert digest(unpacked(packed(tensors), torch.device("cpu"))) == digest(tensors)


def test_consensus_error_is_the_mean_squared_distance_to_the_average():
    _, exchange = simulated("ring", 2)
    assert exchange.consensus_error(torch.tensor([[1.0, 0.0], [3.0, 4.0]])) == pytest.approx((5 + 5) / 2)
