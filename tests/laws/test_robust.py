"""Rows that are looked at before they are mixed: what counts of them, and what liars can do."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codecl.errors import ConfigError
from codecl.exchange import Simulated
from codecl.exchange.messages import Exact, MessageConfig, messages
from codecl.exchange.robust import SLACK, FaultsConfig, Memory, middle, shares, signs
from codecl.exchange.robust import _look as look
from codecl.exchange.topology import TopologyConfig, build
from codecl.runs.build import check_faults
from codecl.runs.grid import preset, resolve
from tests.problems import CPU

LIES = ["noise", "sign-flip", "huge", "constant", "echo", "nan"]


def random(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def gossip(rows, rounds, name="torus", robust="clip", push=0.0, **faults):
    """Rows after so many rounds, in each of which everyone takes a step of its own first; and the last memory."""
    graph = build(TopologyConfig(name=name), len(rows), 0)
    exchange = Simulated(graph, torch.float64, CPU)
    sending = messages(MessageConfig(robust=robust), 1, 0, graph, faults=FaultsConfig(**faults))
    memory = sending.memory(rows)
    for number in range(rounds):
        rows = rows + push + 0.01 * random(*rows.shape, seed=number)
        rows, memory = sending.start(exchange, rows, memory, "train").wait()
    return rows, sending.looked(memory)


distances = st.lists(st.floats(0, 100), min_size=1, max_size=6)


@given(distances, st.data())
def test_shares_are_from_0_to_1_and_the_middle_one_counts_in_full(far, data):
    counts = torch.tensor([[data.draw(st.booleans()) for _ in far]])
    far_AK = torch.tensor([far], dtype=torch.float64)
    found = shares(far_AK, counts)
    assert ((found >= 0) & (found <= 1)).all()
    near = far_AK <= SLACK * middle(far_AK, counts)[:, None]
    assert (found[near & counts] == 1).all()
    pulls = (found * far_AK)[counts]
    assert not len(pulls) or pulls.max() <= SLACK * middle(far_AK, counts)[0] + 1e-9  # nobody pulls further


@given(distances, st.data())
def test_the_middle_is_of_those_that_count(far, data):
    chosen = [data.draw(st.booleans()) for _ in far]
    kept = sorted(value for value, is_chosen in zip(far, chosen, strict=True) if is_chosen)
    found = middle(torch.tensor([far], dtype=torch.float64), torch.tensor([chosen]))
    assert found.item() == (kept[(len(kept) - 1) // 2] if kept else 0)


def test_a_sketch_is_linear_and_about_as_long_as_what_it_is_of():
    rows, others = random(50, 5000), random(50, 5000, seed=1)
    places = signs(rows)
    (far, sketch), (_, other), (_, both) = look(rows, places), look(others, places), look(rows + 2 * others, places)
    torch.testing.assert_close(both, sketch + 2 * other)
    assert (sketch.norm(dim=1) / far - 1).abs().max() < 0.4


def test_memory_is_split_as_it_was_joined():
    memory = Memory(random(3, 7), random(3, 2, 64), *(random(3, 1, seed=n) for n in (1, 2, 3)))
    for ours, theirs in zip(Memory.split(memory.joined(), 2), memory, strict=True):
        assert torch.equal(ours, theirs)


def test_without_clipping_and_liars_it_is_plain_gossip():
    graph, rows = build(TopologyConfig(name="torus"), 8, 0), random(8, 20)
    exchange = Simulated(graph, torch.float64, CPU)
    liar_of_no_one = messages(MessageConfig(robust="clip"), 1, 0, graph)
    liar_of_no_one.clip = False
    plain, _ = Exact().start(exchange, rows, rows[:, :0], "train").wait()
    found, _ = liar_of_no_one.start(exchange, rows, liar_of_no_one.memory(rows), "train").wait()
    torch.testing.assert_close(found, plain)
    assert exchange.traffic.take("train") == {"messages": 48, "bytes": 48 * 160}


def test_honest_agents_that_start_alike_come_together_with_clipping():
    rows, looked = gossip(torch.zeros(8, 200, dtype=torch.float64), 200)
    plain, _ = gossip(torch.zeros(8, 200, dtype=torch.float64), 200, robust="none", liar=())
    apart, as_before = ((found - found.mean(0)).norm() for found in (rows, plain))
    assert apart < 2 * as_before
    assert looked.refused == 0


@pytest.mark.parametrize("lie", LIES)
def test_who_lies_cannot_hold_the_others_back_nor_take_them_along(lie):
    """All move together, a little a round; the liar says otherwise. Without clipping they go astray."""
    start = torch.zeros(8, 200, dtype=torch.float64)
    honest = [agent for agent in range(8) if agent != 2]
    expected = 400 * 0.01
    found, looked = gossip(start, 400, push=0.01, liar=2, lie=lie)
    assert (found[honest].mean() - expected).abs() < 0.1 * expected
    assert found[honest].isfinite().all()
    assert (looked.refused == 3 * 400) if lie == "nan" else (looked.clipped > 400)
    plain, _ = gossip(start, 400, push=0.01, robust="none", liar=2, lie=lie)
    astray = (plain[honest].mean() - expected).abs() > 0.3 * expected
    assert astray == (lie != "nan")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"faults": {"liar": 8}}, "faults.liar: there is no agent 8; they are numbered 0 to 7"),
        ({"faults": {"liar": 1}, "message": {"bits": 8}}, "faults.liar: lies are of whole rows; message.bits is 8"),
        ({"message": {"robust": "clip", "bits": 4}}, "message.bits is 4; clip needs rows as they are, 32"),
        (
            {"message": {"robust": "clip"}, "topology": "ring"},
            "clip needs three neighbours of each agent.*some hear 1 of",
        ),
        ({"message": {"robust": "clip"}, "topology": "one-peer-exponential"}, "who is heard changes"),
    ],
)
def test_what_cannot_be_is_refused(fields, says):
    def refused():
        named = {"name": fields.get("topology", "torus")}
        config = resolve(preset("quickstart"), {"agents": 8, **fields, "topology": named})
        check_faults(config, build(config.topology, 8, 0))

    with pytest.raises(ConfigError, match=says):
        refused()
