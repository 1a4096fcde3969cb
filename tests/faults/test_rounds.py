"""What a round makes of missing neighbours, with links that lose what a test tells them to."""

import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("grpc")

from codecl.exchange import topology
from codecl.exchange.topology import Topology, TopologyConfig
from codecl.peers import frames
from codecl.peers.decisions import PeersConfig, ReceivedRow, Rounds
from codecl.peers.frames import BadFrame, FrameKind, Position
from codecl.peers.history import History, NodeIdentity
from codecl.peers.node import Node

CPU = torch.device("cpu")
Lost = Callable[[int, int, frames.Frame], bool]  # from, to, what
Altered = Callable[[int, int, bytes], bytes]  # from, to, what left -> what arrives


class Air:
    """Between agents of one process: frames arrive in order, in a thread of their own, unless they are lost."""

    def __init__(self, lost: Lost, altered: Altered = lambda source, sink, data: data) -> None:
        self.lost, self.altered, self.nodes, self.inboxes, self.refused = lost, altered, {}, {}, []

    def links(self, node):
        self.inboxes[node.agent], self.nodes[node.agent] = queue.SimpleQueue(), node
        return Links(self, node.agent)


class Links:
    def __init__(self, air, me):
        self.air, self.me, self.up, self.traffic, self._in = air, me, set(), {}, air.inboxes[me]
        threading.Thread(target=self._arriving, daemon=True).start()

    def connect_only(self, peers):
        self.up = set(peers)

    def link_to(self, peer):
        return SimpleNamespace(waiting=0, has_room=lambda: True, put=partial(self._put, peer))

    def _put(self, peer, data, may_drop=False):
        if peer in self.air.nodes and not self.air.lost(self.me, peer, frames.decode(data, 1 << 20)):
            self.air.inboxes[peer].put((self.me, self.air.altered(self.me, peer, data)))

    def _arriving(self):
        for peer, data in iter(self._in.get, None):
            try:
                self.air.nodes[self.me].receive(peer, data)
            except BadFrame as error:
                self.air.refused.append((peer, self.me, str(error)))

    def close(self):
        self._in.put(None)


def open_node(graph: Topology, agent: int, air: Air, deadline: float = 1.5) -> Node:
    identity = NodeIdentity(agent, "f", lambda data: b"", lambda *_: True)
    node = Node(graph, torch.float64, CPU, identity, PeersConfig(deadline=deadline, silence=30, meet=20))
    node.open(History(bytes(32), ()), 1, 1 << 16, air.links)
    return node


def gossip(name: str, agents: int, rounds: int, lost: Lost, deadline: float = 1.5) -> tuple[torch.Tensor, list[Node]]:
    """Rows of all agents before and after each round of plain gossip [rounds + 1, N, 3], and their nodes."""
    graph = topology.build(TopologyConfig(name=name), agents, 0)
    air = Air(lost)
    nodes = [open_node(graph, agent, air, deadline) for agent in range(agents)]
    history = torch.zeros(rounds + 1, agents, 3, dtype=torch.float64)
    history[0] = torch.randn(agents, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    meeting = threading.Barrier(agents)

    def live(agent: int) -> None:
        nodes[agent].meet()
        meeting.wait()
        rows = history[0, agent][None]
        for number in range(rounds):
            rows = nodes[agent].start(rows, "train").wait()
            history[number + 1, agent] = rows[0]

    threads = [threading.Thread(target=live, args=(agent,)) for agent in range(agents)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for one in nodes:
        one.close()
    return history, nodes


def missed(node: Node) -> set[tuple[int, int]]:
    return set(node.journal.take_missed())


def mixing(graph: Topology) -> torch.Tensor:
    return torch.from_numpy(graph.mixing)


@pytest.mark.parametrize("opens", [False, True], ids=["a task that is one stage", "a task that opens first"])
@pytest.mark.parametrize("ahead", [False, True], ids=["near", "far ahead"])
def test_a_start_is_over_when_others_are_far_in_training_and_not_when_they_opened_the_task(opens, ahead):
    graph = topology.build(TopologyConfig(name="ring"), 4, 0)
    identity = NodeIdentity(0, "f", lambda data: b"", lambda *_: True)
    node = Node(graph, torch.float64, CPU, identity, PeersConfig(deadline=1, silence=30, meet=0.5))
    node.open(History(bytes(32), (), [0] if opens else []), 2, 1 << 16, Air(lambda *_: False).links)
    at = Position(int(opens), node.max_ahead + ahead)
    node.receive(
        3,
        frames.encode(
            FrameKind.BEAT, fleet="f", sender=3, commit=bytes(32), **at._asdict(), **node.membership.fields()
        ),
    )
    began = time.monotonic()
    node.meet()
    assert (time.monotonic() - began < 0.5) == ahead
    node.close()


def test_with_nobody_missing_a_round_is_a_product_with_the_mixing_matrix():
    history, nodes = gossip("torus", 6, 5, lambda *_: False, deadline=20)
    matrix = mixing(nodes[0].neighbours.topology)
    for before, after in pairwise(history):
        torch.testing.assert_close(after, matrix @ before, rtol=0, atol=1e-14)
    assert not any(missed(one) for one in nodes)


def test_the_weight_of_one_that_is_not_heard_goes_to_the_agent_itself():
    """On a directed ring: agent 2 does not hear agent 1 in step 1."""

    def lost(source, sink, frame):
        return (source, sink, frame.kind) == (1, 2, FrameKind.ROW) and frame.position.step == 1

    history, nodes = gossip("ring", 4, 3, lost)
    matrix = mixing(nodes[0].neighbours.topology)
    torch.testing.assert_close(history[1], matrix @ history[0], rtol=0, atol=1e-14)
    deaf = matrix.clone()
    deaf[2, 2], deaf[2, 1] = 1, 0
    torch.testing.assert_close(history[2], deaf @ history[1], rtol=0, atol=1e-14)
    assert (1, 1) in missed(nodes[2])
    assert not any(missed(one) for agent, one in enumerate(nodes) if agent != 2)


def test_on_a_link_that_goes_both_ways_both_leave_out_the_pair_and_the_mean_is_kept():
    """Agent 0's rows to 1 are lost in steps 2 to 5; from the step after the first on, both know."""

    def lost(source, sink, frame):
        return (source, sink, frame.kind) == (0, 1, FrameKind.ROW) and 2 <= frame.position.step <= 5

    history, nodes = gossip("ring-undirected", 4, 12, lost)
    means = history.mean(1)
    for step in (0, 1, *range(3, 12)):
        torch.testing.assert_close(means[step + 1], means[step], rtol=0, atol=1e-14, msg=f"step {step}")
    assert not torch.allclose(means[3], means[2], rtol=0, atol=1e-14)  # in step 2 only one of them could know
    assert {step for step, peer in missed(nodes[1]) if peer == 0} >= {2, 3, 4, 5}
    assert {step for step, peer in missed(nodes[0]) if peer == 1} >= {3, 4, 5}
    matrix = mixing(nodes[0].neighbours.topology)
    torch.testing.assert_close(history[12], matrix @ history[11], rtol=0, atol=1e-14)  # and it is taken back


def test_a_row_that_is_not_finite_is_left_out():
    history, nodes = gossip("complete", 3, 1, lambda *_: False)
    assert history.isfinite().all()
    node = nodes[0]
    bad = torch.tensor([1.0, float("nan"), 0.0], dtype=torch.float64)
    node.rows.of[1][node.position] = ReceivedRow(bad, hears=True, commit=node.history.newest_id)
    node.live = {1: Position(0, 0)}
    found = node.start(torch.ones(1, 3, dtype=torch.float64), "train").wait()
    assert found.isfinite().all()


def test_a_row_that_is_sent_again_says_whether_its_round_counts_the_neighbour_in():
    """Agent 0 waits for agent 1 and no longer for agent 2; both ask for its row."""
    sent = []
    graph = topology.build(TopologyConfig(name="complete"), 3, 0)
    air = Air(lambda source, sink, frame: sent.append((sink, frame)) or True)
    air.nodes = dict.fromkeys((1, 2))
    node = open_node(graph, 0, air)
    node.live = {1: Position(0, 0)}
    first = node.start(torch.ones(1, 3, dtype=torch.float64), "train")
    promised = {sink: frame.header.hears for sink, frame in sent if frame.kind is FrameKind.ROW}
    sent.clear()
    node.live[2] = Position(0, 0)  # it is back, from the next step on
    for peer in (1, 2):
        header = {**node._header(), "sender": peer, "beats": [0] * 3}
        node.receive(peer, frames.encode(FrameKind.REQUEST, **header, history=node.history.ids, number=1))
    rows = {sink: frame for sink, frame in sent if frame.kind is FrameKind.ROW}
    assert first.sent.pairs == promised == {1: True, 2: False}
    assert {sink: frame.header.hears for sink, frame in rows.items()} == promised
    assert all(frame.tensors["row"].tolist() == [1, 1, 1] and frame.position == (0, 0) for frame in rows.values())
    node.close()


def test_a_stage_that_is_begun_again_has_the_sums_that_arrived_before():
    graph = topology.build(TopologyConfig(name="complete"), 3, 0)
    air = Air(lambda *_: False)
    nodes = [open_node(graph, agent, air) for agent in range(3)]
    meeting = [threading.Thread(target=node.meet) for node in nodes]
    for thread in meeting:
        thread.start()
    for thread in meeting:
        thread.join()
    parts = [{"moment": torch.full((2,), float(agent + 1))} for agent in range(3)]
    for agent in (1, 2):
        assert nodes[agent].reduce(0, [parts[agent]]) is None
    assert nodes[0].reduce(0, [parts[0]])["moment"].tolist() == [6, 6]
    assert nodes[0].rejoin(lambda _: Rounds(0, 0, 0)) is None
    began = time.monotonic()
    assert nodes[0].reduce(0, [parts[0]])["moment"].tolist() == [6, 6]
    assert time.monotonic() - began < 5, "it waited for what it has"
    for node in nodes:
        node.close()
