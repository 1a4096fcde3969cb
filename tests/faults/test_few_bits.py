"""Messages in few bits that are lost, damaged or none, and one who joins in the middle of a task."""

import threading
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

pytest.importorskip("grpc")

from codecl.errors import RunFailed
from codecl.exchange import Simulated, topology
from codecl.exchange.messages import FewBits, MessageConfig, messages
from codecl.exchange.packing import packed_bytes
from codecl.exchange.rounding import CHUNK, chunks
from codecl.exchange.topology import TopologyConfig
from codecl.peers import frames
from codecl.peers.agent import PeerRun
from codecl.peers.decisions import JOIN_AHEAD, Rounds
from codecl.peers.frames import FrameKind, Position
from codecl.peers.membership import Journal
from codecl.peers.node import Node
from codecl.train.loop import train
from tests.faults.test_rounds import CPU, Air, Altered, Lost, missed, open_node
from tests.problems import build, config, perceptron, tasks

AGENTS, SIZE, ROUNDS, STEP, BITS = 4, 2500, 30, 5, 4
SENDING = FewBits(BITS, 1, 3)
BYTES = packed_bytes(SIZE, BITS)


class Trace(NamedTuple):
    before: Tensor  # [rounds, agents, D]
    after: Tensor
    spread: Tensor  # [rounds, agents]: what each node says of it


def drift(number: int, agent: int) -> Tensor:
    """How an agent moves after a round."""
    return 0.01 * torch.randn(1, SIZE, generator=torch.Generator().manual_seed(100 * number + agent)).double()


def start() -> Tensor:
    return torch.randn(1, SIZE, generator=torch.Generator().manual_seed(1)).double()


def follow(exchange, rows_AD, keep: Callable[[int, Tensor, Tensor], None], sending: FewBits) -> None:
    memory_AM = sending.memory(rows_AD)
    for number in range(ROUNDS):
        mixed_AD, memory_AM = sending.start(exchange, rows_AD, memory_AM, "train").wait()
        keep(number, rows_AD, mixed_AD)
        moved_AD = mixed_AD + torch.cat([drift(number, agent) for agent in exchange.agents])
        memory_AM = sending.moved(memory_AM, mixed_AD, moved_AD)
        rows_AD = moved_AD


def new_trace() -> Trace:
    return Trace(*(torch.zeros(ROUNDS, AGENTS, SIZE).double() for _ in range(2)), torch.zeros(ROUNDS, AGENTS).double())


@cache
def undisturbed(name: str = "ring") -> Trace:
    trace, graph = new_trace(), topology.build(TopologyConfig(name=name), AGENTS, 0)

    def keep(number, rows, mixed):
        trace.before[number], trace.after[number] = rows, mixed

    follow(Simulated(graph, torch.float64, CPU), start().repeat(AGENTS, 1), keep, SENDING)
    return trace


def gossip(
    lost: Lost = lambda *_: False,
    altered: Altered = lambda source, sink, data: data,
    name: str = "ring",
    sending: FewBits = SENDING,
) -> tuple[Trace, list[Node], Air]:
    """The rows of peers before and after each round, their nodes, and what was between them."""
    trace, graph = new_trace(), topology.build(TopologyConfig(name=name), AGENTS, 0)
    air, meeting = Air(lost, altered), threading.Barrier(AGENTS)
    nodes = [open_node(graph, agent, air) for agent in range(AGENTS)]

    def live(agent: int) -> None:
        def keep(number, rows, mixed):
            trace.before[number, agent], trace.after[number, agent] = rows[0], mixed[0]
            trace.spread[number, agent] = nodes[agent].consensus_error(mixed)

        nodes[agent].meet()
        meeting.wait()
        follow(nodes[agent], start(), keep, sending)

    threads = [threading.Thread(target=live, args=(agent,)) for agent in range(AGENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for node in nodes:
        node.close()
    return trace, nodes, air


def check_others_are_not_disturbed(trace: Trace, expected: Trace) -> None:
    """Up to the fault all is as it should be, in it for all but agent 2; afterwards agents stay near one another."""
    torch.testing.assert_close(trace.before[: STEP + 1], expected.before[: STEP + 1], rtol=0, atol=1e-12)
    others = [0, 1, 3]
    torch.testing.assert_close(trace.after[STEP, others], expected.after[STEP, others], rtol=0, atol=1e-12)
    apart = [float((rows - rows.mean(0)).square().sum(1).mean()) for rows in (trace.after[-1], expected.after[-1])]
    assert apart[0] < 4 * apart[1]


def is_fault(source: int, sink: int, frame: frames.Frame) -> bool:
    """Agent 2 hears agent 1 on the ring; in one step it does not."""
    return (source, sink, frame.kind) == (1, 2, FrameKind.ROW) and frame.position.step == STEP


def damaging(change: Callable[[Tensor], Tensor]) -> Altered:
    """The row of one step is another when it arrives."""

    def altered(source, sink, data):
        frame = frames.decode(data, 1 << 20)
        if not is_fault(source, sink, frame):
            return data
        header = {
            field.name: value for field, value in frame.header.ListFields() if field.name not in ("kind", "tensors")
        }
        return frames.encode(FrameKind.ROW, {"row": change(frame.tensors["row"].clone())}, **header)

    return altered


def test_with_nobody_missing_peers_do_what_one_process_does():
    for name in ("ring", "complete"):
        trace, nodes, air = gossip(name=name)
        expected = undisturbed(name)
        torch.testing.assert_close(trace.after, expected.after, rtol=0, atol=1e-12)
        assert not any(missed(node) for node in nodes)
        assert air.refused == []
        edges = AGENTS if name == "ring" else AGENTS * (AGENTS - 1)
        assert sum(node.traffic.take("train")["bytes"] for node in nodes) == ROUNDS * edges * BYTES


@pytest.mark.parametrize(("bits", "most"), [(16, 1.01), (8, 1.1), (4, 2.5)])
def test_disagreement_is_the_distance_to_those_who_were_heard_with_the_rounding(bits, most):
    trace, _, _ = gossip(sending=FewBits(bits, 1, 3))
    rows = trace.before[STEP:]
    apart = (rows - rows.roll(1, 1)).square().sum(-1)  # on a ring there is one neighbour
    ratio = trace.spread[STEP:] / apart
    assert ratio.min() > 0.9
    assert ratio.max() < most


@pytest.mark.parametrize("bits", [3, 2])
def test_disagreement_does_not_depend_on_the_step_towards_the_neighbours(bits):
    graph = topology.build(TopologyConfig(name="ring"), 2, 0)
    sending = messages(MessageConfig(bits=bits), 0, 0, graph)
    node = open_node(graph, 0, Air(lambda *_: False))
    row = torch.zeros(1, 4).double()
    mixed = row + sending.pace.step * 0.5 * 3.0  # towards 3, halfway
    pending = node.swap(torch.zeros(1, 9, dtype=torch.uint8), "train", row)
    pending.weight = 0.5
    pending.mixed(mixed, sending.pace.step)
    assert node.spread == pytest.approx(4 * 9.0)
    node.close()


def test_a_message_that_is_lost_leaves_its_weight_with_the_agent_and_nothing_behind():
    trace, nodes, _ = gossip(lost=is_fault)
    check_others_are_not_disturbed(trace, undisturbed())
    assert torch.equal(trace.after[STEP, 2], trace.before[STEP, 2])
    assert (STEP, 1) in missed(nodes[2])
    assert trace.spread[STEP, 2] == 0


def test_a_chunk_that_is_damaged_counts_as_lost_and_the_others_are_mixed():
    place = slice(CHUNK * BITS // 8, 2 * CHUNK * BITS // 8)  # of the second chunk

    def change(row):
        row[place] ^= 255
        return row

    trace, nodes, air = gossip(altered=damaging(change))
    expected, damaged = undisturbed(), slice(CHUNK, 2 * CHUNK)
    check_others_are_not_disturbed(trace, expected)
    assert torch.equal(trace.after[STEP, 2, damaged], trace.before[STEP, 2, damaged])
    right = torch.ones(SIZE, dtype=torch.bool)
    right[damaged] = False
    torch.testing.assert_close(trace.after[STEP, 2, right], expected.after[STEP, 2, right], rtol=0, atol=1e-12)
    assert air.refused == []  # what is wrong with it shows only when it is unpacked
    assert not any(missed(node) for node in nodes)


def test_a_check_sum_that_is_damaged_loses_all_chunks():
    def change(row):
        row[-4 * chunks(SIZE) :] ^= 1
        return row

    trace, _, air = gossip(altered=damaging(change))
    check_others_are_not_disturbed(trace, undisturbed())
    assert torch.equal(trace.after[STEP, 2], trace.before[STEP, 2])
    assert air.refused == []


WRONG = {
    "a byte too long": (lambda row: torch.cat([row, row[:1]]), f"a row of {BYTES + 1} numbers"),
    "a byte too short": (lambda row: row[:-1], f"a row of {BYTES - 1} numbers"),
    "nothing": (lambda row: row[:0], "a row of 0 numbers"),
    "numbers": (lambda row: torch.zeros(SIZE).double(), "a row of torch.float64; it should be of torch.uint8"),
    "as many numbers": (lambda row: row.float(), "a row of torch.float32"),
    "two dimensions": (lambda row: row[None], "a row that is none"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_message_is_refused_before_it_is_kept(what):
    change, reason = WRONG[what]
    trace, nodes, air = gossip(altered=damaging(change))
    check_others_are_not_disturbed(trace, undisturbed())
    assert torch.equal(trace.after[STEP, 2], trace.before[STEP, 2])
    ((source, sink, said),) = air.refused
    assert (source, sink) == (1, 2)
    assert reason in said
    assert (STEP, 1) in missed(nodes[2])


def unreadable(lossy: bool):
    """All messages arrive damaged."""

    def make(graph, dtype, device):
        exchange = Simulated(graph, dtype, device)
        swap, exchange.lossy = exchange.swap, lossy

        def damaged(packed_AB, kind, rows_AD, turn=None):
            pending, spoiled = swap(packed_AB, kind, rows_AD, turn), packed_AB.clone()
            spoiled[:, -4:] ^= 1
            return pending._replace(heard=pending.heard._replace(packed_HB=spoiled))

        exchange.swap = damaged
        return exchange

    settings = config(agents=2, topology="ring", message={"bits": 4}, train={"epochs": 30, "batch_size": 6})
    return build(perceptron(), tasks(1), settings, make)


def test_what_cannot_be_read_for_long_ends_a_run_but_not_that_of_a_peer():
    setup, state = unreadable(lossy=False)
    with pytest.raises(RunFailed, match="could not be read for 40 rounds"):
        list(train(setup, state))
    setup, state = unreadable(lossy=True)
    epochs = [event for event in train(setup, state) if event.kind == "epoch"]
    assert len(epochs) == 30
    journal, written = Journal(), []
    node = SimpleNamespace(journal=journal, position=Position(0, 3), agent=1)
    writer = SimpleNamespace(event=written.append)
    peer = SimpleNamespace(setup=setup, node=node, writer=writer, missed=0)
    peer._notes = lambda: written.extend(journal.take_notes())
    for event in (epochs[0], epochs[-1]):
        PeerRun._record(peer, event)
    assert [event.kind for event in written] == ["epoch", "member", "epoch"]
    assert (written[1].state, written[1].agent) == ("unread", 1)
    assert "raise message.bits (it is 4)" in written[1].why
    assert journal.degraded


# one who joins


def request(node, peer: int, number: int = 1) -> bytes:
    header = {**node._header(), "sender": peer, "beats": [0] * AGENTS}
    return frames.encode(FrameKind.REQUEST, **header, history=node.history.ids, number=number)


def alone(agent: int = 0, name: str = "ring"):
    """A node, and what it sends to whom."""
    sent: list[tuple[int, frames.Frame]] = []
    air = Air(lambda source, sink, frame: sent.append((sink, frame)) or True)
    air.nodes = dict.fromkeys(range(AGENTS))
    node = open_node(topology.build(TopologyConfig(name=name), AGENTS, 0), agent, air)
    return node, sent


def test_who_asks_gets_the_last_message_and_what_it_stands_for():
    node, sent = alone()
    rows = torch.arange(3.0).double()[None]
    packed = torch.arange(5, dtype=torch.uint8)[None]
    node.swap(packed, "train", rows).wait()
    sent.clear()
    node.receive(1, request(node, 1))
    answers = {frame.kind: frame for sink, frame in sent if sink == 1}
    assert set(answers) == {FrameKind.ROW, FrameKind.FULL}
    assert answers[FrameKind.ROW].tensors["row"].tolist() == [0, 1, 2, 3, 4]
    assert answers[FrameKind.ROW].position == (0, 0)
    full = answers[FrameKind.FULL]
    assert torch.equal(full.tensors["row"], rows[0])
    assert full.position == (0, 1)  # where it is now
    sent.clear()
    node.receive(1, request(node, 1, number=0))  # one that lacks commits alone
    assert sent == []
    node.start(rows, "train").wait()
    sent.clear()
    node.receive(1, request(node, 1))  # rows as they are stand for themselves
    assert [frame.kind for _, frame in sent] == [FrameKind.ROW]
    node.close()


def about(node, peer: int, position: Position, **more) -> dict:
    return {**node._header(), "sender": peer, "beats": [0] * AGENTS, **position._asdict(), **more}


def test_who_joins_starts_from_a_row_in_full_says_so_and_sends_nothing_else():
    node, sent = alone(agent=1)
    at, whole = Position(0, 20), torch.arange(3.0).double()
    packed = {"row": torch.ones(3, dtype=torch.uint8)}
    node.receive(0, frames.encode(FrameKind.ROW, packed, **about(node, 0, Position(0, 30))))
    found = []
    joining = threading.Thread(target=lambda: found.append(node.rejoin(lambda _: Rounds(100, 110, 3))))
    joining.start()
    wrong = (torch.ones(4).double(), torch.tensor([1.0, float("nan"), 2.0]).double())
    for row in wrong:
        node.receive(0, frames.encode(FrameKind.FULL, {"row": row}, **about(node, 0, Position(0, 25))))
    joining.join(1)
    assert joining.is_alive()  # neither bytes nor what is damaged or of another size is a start
    node.receive(0, frames.encode(FrameKind.FULL, {"row": whole}, **about(node, 0, at)))
    joining.join(10)
    (point,) = found
    assert point.step == node.position.step == 20 + JOIN_AHEAD
    assert torch.equal(point.row_D, whole)
    said = {sink: frame for sink, frame in sent if frame.kind is FrameKind.JOIN}
    assert set(said) == {0, 2}  # all neighbours: who heard it, and whom it hears
    assert all(frame.position == node.position and not frame.tensors for frame in said.values())
    assert not any(frame.kind is FrameKind.ROW for _, frame in sent)
    node.receive(2, request(node, 2))
    assert not any(frame.kind in (FrameKind.ROW, FrameKind.FULL) for _, frame in sent)  # it has none of its own yet
    node.close()


def test_one_in_full_is_kept_of_each_neighbour_and_none_of_another_stage():
    node, _ = alone(agent=1, name="complete")
    for peer in (0, 2, 3):
        for step in range(50):
            row = {"row": torch.full((3,), float(step)).double()}
            node.receive(peer, frames.encode(FrameKind.FULL, row, **about(node, peer, Position(0, step))))
    assert {peer: list(rows) for peer, rows in node.rows.full.items()} == {peer: [(0, 49)] for peer in (0, 2, 3)}
    node.rows.new_stage()
    assert node.rows.full == {}
    node.close()


def test_who_joins_is_waited_for_from_the_step_after_on():
    """Also by one that still waits for a row of an earlier step, which will never come."""
    node, _ = alone()
    node.met, node.live, own = True, {3: Position(0, 0)}, node.position
    for step, expected in ((7, 8), (9, 10)):
        node.receive(3, frames.encode(FrameKind.JOIN, **about(node, 3, Position(0, step))))
        assert node.live[3] == (0, expected)
    node.receive(3, frames.encode(FrameKind.JOIN, **about(node, 3, Position(0, 12), commit=bytes(31) + b"x")))
    assert node.live[3] == (0, 10)  # after another commit: not one of ours
    node.swap(torch.ones(1, 5, dtype=torch.uint8), "train", torch.ones(1, 3).double()).wait()  # waits for nobody
    assert node.position == own.next
    node.close()


def test_who_joins_too_late_is_told_so():
    node, sent = alone()
    node.met, node.position = True, Position(0, 3 * node.max_ahead)
    node.receive(3, frames.encode(FrameKind.JOIN, **about(node, 3, Position(0, 1))))
    assert [frame.kind for sink, frame in sent if sink == 3][-1] is FrameKind.LATE
    assert node.live == {}
    node.close()
