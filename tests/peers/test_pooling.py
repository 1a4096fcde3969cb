"""Sums under masks between peers: what is sent shows nothing, and a sum is made again without whoever dies on the way.

python -m tests.peers.test_pooling FILE …     `codecl agent FILE …` that is killed when it should send its masked sum
"""

import json
import os
import signal
import sys
import threading

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("grpc")

from codecl import api
from codecl.cli import main
from codecl.errors import RunFailed
from codecl.exchange import masks, topology
from codecl.exchange.topology import TopologyConfig
from codecl.peers import frames
from codecl.peers.decisions import PeersConfig
from codecl.peers.frames import BadFrame, FrameKind
from codecl.peers.history import History, NodeIdentity
from codecl.peers.node import Node
from codecl.peers.pooling import MaskedSum, Seen
from codecl.peers.statements import Board, Offer, PoolId, Roster
from codecl.runs.grid import preset, resolve
from codecl.seeding import choose
from tests.faults.test_rounds import CPU, Air
from tests.fleets import CODECL, LocalFleet
from tests.laws.test_masks import chi_square

NUMBERS = 6_000
PARTS = [{"row": torch.full((NUMBERS,), 10**agent)} for agent in range(4)]


def pooled(lost=lambda *_: False, silence=30.0):
    """What `pool` gives to each of four agents on a ring, for agent 1, and every sum that travelled."""
    sent = []

    def watched(source, sink, frame):
        if frame.kind is FrameKind.SUM:
            sent.append((source, sink, frame))
        return lost(source, sink, frame)

    graph, air = topology.build(TopologyConfig(name="ring-undirected"), 4, 0), Air(watched)
    nodes, found = [], {}
    for agent in range(4):
        identity = NodeIdentity(agent, "f", lambda data: b"", lambda *_: True)
        nodes.append(Node(graph, torch.float64, CPU, identity, PeersConfig(deadline=1, silence=silence, meet=20)))
        nodes[-1].open(History(bytes(32), ()), 1, 1 << 16, air.links)

    def live(agent):
        nodes[agent].meet()
        found[agent] = nodes[agent].pool(1, [PARTS[agent]])

    threads = [threading.Thread(target=live, args=(agent,), daemon=True) for agent in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    counted = [node.traffic.take("reduce") for node in nodes]
    for node in nodes:
        node.close()
    assert not air.refused
    return found, sent, counted


def test_only_the_sum_of_all_is_seen_and_every_message_looks_uniform():
    found, sent, counted = pooled()
    assert {agent: total is None for agent, total in found.items()} == {0: True, 1: False, 2: True, 3: True}
    assert torch.equal(found[1]["row"], torch.full((NUMBERS,), 1111))
    assert len(sent) == 3  # up a tree, one from each but its root
    assert all(150 < chi_square(frame.tensors["row"]) < 400 for *_, frame in sent)
    assert [one["bytes"] for one in counted] == [8 * NUMBERS, 0, 8 * NUMBERS, 8 * NUMBERS]


def test_if_one_dies_on_the_way_the_sum_is_made_again_without_it_under_other_masks():
    """Agent 0 has offered its key and is on the roster when it falls silent."""
    silent = threading.Event()

    def lost(source, sink, frame):
        if (source, frame.kind) == (0, FrameKind.SUM):
            silent.set()
        return silent.is_set() and 0 in (source, sink)

    found, sent, _ = pooled(lost, silence=1.5)
    assert torch.equal(found[1]["row"], torch.full((NUMBERS,), 1110))
    by_agent = {}
    for source, _, frame in sent:
        by_agent.setdefault(source, []).append(frame)
    assert len(by_agent[2]) > 1
    assert len({frame.header.roster for frame in by_agent[2]}) == len(by_agent[2])
    first, last = by_agent[2][0].tensors["row"], by_agent[2][-1].tensors["row"]
    assert 150 < chi_square(first - last) < 400


def agent(number, values=1, life=1, agents=3):
    """An agent on its own board, which signs by its number and believes others."""
    identity = NodeIdentity(
        number, "f", lambda data: b"%d" % number, lambda who, _, signature: signature == b"%d" % who
    )
    board = Board(identity, agents)
    return MaskedSum(board, PoolId(0, 0, 0), {"row": torch.tensor([values])}, life, 30.0)


def tell(one, *others):
    """All that the others know."""
    for other in others:
        one.board.take([part for signed in other.board.of(one.pool) for part in signed], 0)


def seen(waited=0.0, living=(0, 1, 2), tree=((0, 1), (1, 2)), **sums):
    return Seen(waited, living, tree, {int(name[1:]): value for name, value in sums.items()})


def test_a_chain_of_three():
    root, middle, leaf = agent(0, 5), agent(1, 7), agent(2, 11)
    assert root.advance(seen()) == ((), None, (), None, False)  # it waits for offers
    tell(root, middle, leaf)
    root.advance(seen())
    for one in (middle, leaf):
        tell(one, root, middle, leaf)
    assert middle.advance(seen()).send is None
    parent, from_leaf = leaf.advance(seen()).send
    assert parent == 1
    parent, from_middle = middle.advance(seen(c2=from_leaf)).send
    assert parent == 0
    assert middle.advance(seen(c2=from_leaf)).send == (0, from_middle)  # it found no link: the same again
    middle.sent()
    turn = root.advance(seen(c1=from_middle))
    assert turn.over
    assert turn.total["row"].tolist() == [23]
    assert middle.advance(seen()).send is None  # once an attempt
    tell(middle, root)
    assert middle.advance(seen()).over


def test_one_that_began_again_gets_a_roster_with_its_new_key():
    root, middle, leaf = agent(0), agent(1), agent(2)
    tell(root, middle, leaf)
    root.advance(seen())
    again = agent(2, life=2)
    tell(again, root, middle)
    assert again.advance(seen()).send is None  # the roster has its old key: masks would not cancel
    tell(root, again)
    root.advance(seen())
    root.advance(seen())
    tell(again, root)
    assert again.advance(seen()).send


def test_who_is_missed_is_reported_and_left_out_when_it_is_missed_again_and_again():
    """Agent 3 is cut off from its parent, agent 1, though it lives."""
    tree = ((0, 1), (0, 2), (1, 3))
    root, first, second, third = everyone = [agent(number, agents=4) for number in range(4)]
    about, waited = {"living": range(4), "tree": tree}, 0.0
    for _ in range(3):
        tell(root, first, second, third)
        root.advance(seen(waited, **about))
        assert root.roster.agents == [0, 1, 2, 3]
        for one in everyone[1:]:
            tell(one, *everyone)
        assert first.advance(seen(waited, **about)) == ((), None, (), None, False)
        waited += 16
        assert len(first.advance(seen(waited, **about)).say) == 1
        tell(root, first)
        root.advance(seen(waited, **about))
        attempt = root.roster.attempt
        root.advance(seen(waited, **about))
        assert root.roster.attempt == attempt  # the graph may heal around it first
        waited += 16
    turn = root.advance(seen(waited, **about))
    assert root.roster.agents == [0, 1, 2]
    assert turn.lost == [3]


def test_two_are_too_few():
    root, other = agent(0), agent(1)
    tell(root, other)
    with pytest.raises(RunFailed, match=r"growth\.pool: masked needs 3 agents, and 2 are left; start the others again"):
        root.advance(seen(living=(0, 1), tree=((0, 1),)))


def test_a_roster_of_two_is_not_answered():
    root, other = agent(0), agent(1)
    tell(other, root)
    ids = {"0": root.offer.id, "1": other.offer.id}
    about = {"fleet": "f", "stage": 0, "root": 0, "number": 0, "agent": 0, "life": 1}
    root.board.say(Roster(**about, attempt=3, offers=ids, tree=[[0, 1]]))
    tell(other, root)
    assert other.board.roster(other.pool)[1].attempt == 3
    assert other.advance(seen()) == ((), None, (), None, False)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"fleet": "g"}, "does not fit this fleet"),
        ({"agent": 7}, "does not fit this fleet"),
        ({"agent": 1}, "without the signature of agent 1"),
        ({"key": "00" * 32}, "a key that is none"),
        ({"key": "12"}, "cannot be read"),
        ({"kind": "roster", "key": None, "agent": 2}, "agent 2 says who takes part"),
    ],
)
def test_what_is_said_is_checked(change, line):
    about = {"fleet": "f", "stage": 0, "root": 0, "number": 0, "agent": 2, "life": 1, "kind": "offer"}
    key = masks.public(masks.new_key()).hex()
    fields = {name: value for name, value in {**about, "key": key, **change}.items() if value is not None}
    board = agent(0).board
    with pytest.raises(BadFrame, match=line):
        board.take([json.dumps(fields).encode(), b"2"], 0)
    assert board.take([json.dumps({**about, "key": key}).encode(), b"2"], 0)
    assert Offer(**about, key=key).pool == PoolId(0, 0, 0)


def test_news_of_stages_far_ahead_is_not_kept():
    about = {"fleet": "f", "root": 0, "number": 0, "agent": 2, "life": 1, "kind": "offer"}
    said = json.dumps({**about, "stage": 2, "key": masks.public(masks.new_key()).hex()}).encode()
    board = agent(0).board
    assert board.take([said, b"2"], 0) == []
    assert len(board.take([said, b"2"], 1)) == 1


def test_frames_carry_what_is_said():
    data = frames.encode(FrameKind.POOL, history=[b"text", b"signature"], roster="id")
    frame = frames.decode(data, 0)
    assert ([*frame.header.history], frame.header.roster) == ([b"text", b"signature"], "id")


def killed_agent(*arguments):
    """It dies after its key is on the roster, before its sum leaves."""
    Node._send_sum = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    sys.argv[1:] = ["agent", *arguments]
    main()


@pytest.mark.long
@pytest.mark.alone
def test_a_fleet_goes_on_when_a_process_is_killed_in_the_middle_of_a_masked_sum(tmp_path):
    settings = {"data": {"tasks": 2}, "train": {"epochs": 1}, "growth": {"subspace_from": "all", "pool": "masked"}}
    fields = {"agents": 5, "topology": {"name": "ring-undirected"}, "seed": 1, "method": {"name": "codec"}}
    config = resolve(preset("quickstart"), {**fields, **settings})
    victim = (choose(config.seed, 0, 5) + 1) % 5
    fleet = LocalFleet(config, PeersConfig(deadline=1.0, silence=3.0, meet=60), tmp_path)
    start = fleet.start

    def start_one(number):
        fleet.command = (sys.executable, "-m", "tests.peers.test_pooling") if number == victim else (*CODECL, "agent")
        start(number)

    fleet.start = start_one
    with fleet:
        codes = fleet.finished(240)
        assert codes.pop(victim) == -signal.SIGKILL, fleet.log(victim)
        assert set(codes.values()) == {4}, [fleet.log(number) for number in codes]
    states = [load_file(fleet.run_folder(number) / "model" / "body.safetensors") for number in codes]
    assert all(torch.equal(state[name], value) for state in states for name, value in states[0].items())
    missed = {event["agent"] for number in codes for event in fleet.events(number) if event.get("state") == "missed"}
    assert missed <= {victim}
    floods = [event for event in fleet.events(min(codes)) if event["kind"] == "flood" and event["task"] == 0]
    assert [flood["chosen"] for flood in floods] == [choose(config.seed, 0, 5)]


@pytest.mark.long
@pytest.mark.alone
def test_every_agent_of_a_fleet_states_its_own_epsilon_and_its_noise_is_its_secret(tmp_path):
    pytest.importorskip("dp_accounting")
    fields = {"agents": 3, "topology": {"name": "ring-undirected"}, "seed": 1, "method": {"name": "dpsgd"}}
    train, privacy = {"epochs": 1, "batch_size": 50}, {"clip": 1.0, "noise": 2.0}
    settings = {"data": {"tasks": 1, "sampling": "subsets"}, "train": train, "privacy": privacy}
    config = resolve(preset("quickstart"), {**fields, **settings})
    fleet = LocalFleet(config, PeersConfig(deadline=5.0, silence=10.0, meet=60), tmp_path)
    with fleet:
        assert set(fleet.finished(240).values()) == {0}, fleet.log(0)
    found = [fleet.metrics(number)["privacy"] for number in range(3)]
    simulated = api.run(config, out=tmp_path / "simulated", device="cpu")
    assert [one["epsilon"] for one in found] == pytest.approx([simulated.metrics["privacy"]["epsilon"]] * 3, rel=0.01)
    weights = load_file(fleet.run_folder(0) / "model" / "body.safetensors")
    others = load_file(simulated.folder / "model" / "body.safetensors")
    assert not any(torch.allclose(weights[name], others[name], rtol=0, atol=1e-4) for name in weights)


if __name__ == "__main__":
    killed_agent(*sys.argv[1:])
