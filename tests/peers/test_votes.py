"""Votes on what an agent grew, between peers: a liar is outvoted by all alike, and whoever was away counts for itself.

python -m tests.peers.test_votes FILE …     `codecl agent FILE …` that signs a commit whenever it is another's turn
"""

import json
import random
import sys
import threading
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("grpc")

from codecl.cli import main
from codecl.exchange import topology
from codecl.exchange.topology import TopologyConfig
from codecl.peers import history as histories
from codecl.peers import votes
from codecl.peers.decisions import PeersConfig, Rounds
from codecl.peers.frames import BadFrame, FrameKind
from codecl.peers.history import History, NodeIdentity
from codecl.peers.node import Node
from codecl.peers.statements import Board, Signed, in_pairs
from codecl.peers.votes import Outcome
from codecl.runs.grid import preset, resolve
from codecl.seeding import succession
from tests.faults.test_member_fleets import models
from tests.faults.test_rounds import CPU, Air
from tests.fleets import CODECL, LocalFleet
from tests.laws.test_frames import mutated

GOOD, BAD = {"w": torch.ones(3)}, {"w": torch.zeros(3)}
OUT_OF_TURN = (sys.executable, "-W", "error", "-m", "tests.peers.test_votes")


def identity(agent):
    """Signs by its number, and is believed where the number fits."""
    return NodeIdentity(agent, "f", lambda data: b"%d" % agent, lambda who, _, sign: sign == b"%d" % who)


def found_wrong(arrived):
    return ["" if torch.equal(arrived["w"], GOOD["w"]) else "not ones"]


def opened(agents, lost=lambda *_: False, name="complete", rules=None, history=None):
    graph, air = topology.build(TopologyConfig(name=name), agents, 0), Air(lost)
    rules = rules or PeersConfig(deadline=1, silence=30, meet=20, patience=20)
    nodes = [Node(graph, torch.float32, CPU, identity(agent), rules, voting=True) for agent in range(agents)]
    for agent, node in enumerate(nodes):
        node.open((history or {}).get(agent) or History(bytes(32), ()), 2, 1 << 16, air.links)
    return nodes, air


def grown(nodes, payloads, liars=(), absent=()):
    """By agent, what it makes of one agent after another that grows. Liars object to what is good."""
    out = {agent: [] for agent in range(len(nodes)) if agent not in absent}

    def live(agent):
        node = nodes[agent]
        if not node.met:
            node.meet()
        for root, payload in payloads.items():
            check = (lambda _: ["a lie"]) if agent in liars and agent != root else found_wrong
            if agent == root:
                check = lambda _: [""]  # noqa: E731
            out[agent].append(node.flood(root, payload if agent == root else None, check))
            if out[agent][-1] is not None and out[agent][-1].stands:
                return

    threads = [threading.Thread(target=live, args=(agent,), daemon=True) for agent in out]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
        assert not thread.is_alive()
    return out


def closed(nodes, air):
    for node in nodes:
        node.close()
    assert not air.refused


def ends(floods):
    """(whether each stood, what was taken in the end)."""
    return [flood is not None and flood.stands for flood in floods], floods[-1].tensors["w"].tolist()


@pytest.mark.parametrize("name", ["complete", "ring-undirected", "ring"])
def test_what_a_liar_grew_is_refused_by_all_and_the_next_grows(name):
    nodes, air = opened(5, name=name)
    out = grown(nodes, {2: BAD, 4: GOOD}, liars=[2])
    assert {agent: ends(floods) for agent, floods in out.items()} == dict.fromkeys(range(5), ([False, True], [1.0] * 3))
    assert len({node.history.newest_id for node in nodes}) == 1
    for agent in (0, 1, 3, 4):
        refused, taken = (flood.votes for flood in out[agent])
        assert len(refused.objections) > 2
        assert set(refused.objections.values()) == {"not ones"}
        assert set(taken.objections) <= {2}
    closed(nodes, air)


def test_liars_that_are_fewer_than_half_refuse_nothing():
    nodes, air = opened(5)
    out = grown(nodes, {0: GOOD}, liars=[3, 4])
    assert all(ends(floods) == ([True], [1.0] * 3) for floods in out.values())
    closed(nodes, air)


def test_every_commit_has_the_votes_of_all_who_approved_soon_after_it_was_taken():
    nodes, air = opened(5)
    grown(nodes, {0: GOOD}, liars=[3])
    deadline = time.monotonic() + 10
    while any(len(node.history.commits[0].approvals) < 4 for node in nodes):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert {approval.agent for approval in nodes[3].history.commits[0].approvals} == {0, 1, 2, 4}
    closed(nodes, air)


def test_votes_that_are_lost_on_one_link_come_another_way():
    nodes, air = opened(4, lambda source, sink, frame: frame.kind is FrameKind.POOL and {source, sink} == {0, 1})
    out = grown(nodes, {1: BAD, 0: GOOD})
    assert all(ends(floods) == ([False, True], [1.0] * 3) for floods in out.values())
    closed(nodes, air)


def test_without_half_of_the_votes_nothing_is_taken_and_the_next_grows():
    """Two of five never say a word about what agent 0 grew, one objects: it could be either."""
    mute = {3, 4}

    def lost(source, sink, frame):
        said = [signed.said for signed in in_pairs(frame.header.history)] if frame.kind is FrameKind.POOL else []
        return any(vote.agent in mute and vote.root == 0 for vote in said) or (
            frame.kind is FrameKind.COMMIT and sink in mute and json.loads(frame.header.manifest)["grower"] == 0
        )

    nodes, air = opened(5, lost, rules=PeersConfig(deadline=1, silence=30, meet=20, patience=2))
    out = grown(nodes, {0: GOOD, 1: GOOD}, liars=[2])
    for agent in (1, 2):
        assert out[agent][0] is None
        assert out[agent][1].stands
    notes = [note.why for note in nodes[1].journal.take_notes() if note.state == "gone"]
    assert any("neither" in why for why in notes), notes
    closed(nodes, air)


def test_who_is_not_in_turn_is_not_heeded():
    """Agent 3 signs a commit, and approves it, while agent 0 should grow."""
    nodes, air = opened(4)
    false = histories.sign_commit(identity(3), 0, [3], bytes(32), BAD)
    board = Board(identity(3), 4)
    approvals = [*votes.vote_on(board, false, "", 1)]
    for peer in (0, 1, 2):
        signed = {"manifest": false.manifest, "signature": false.signature, "history": approvals}
        nodes[3].outbox.send(peer, FrameKind.COMMIT, BAD, **signed)
    out = grown(nodes, {0: GOOD}, liars=[3])
    assert all(ends(floods) == ([True], [1.0] * 3) for floods in out.values())
    assert false.id not in {node.history.newest_id for node in nodes}
    closed(nodes, air)


def test_whoever_was_away_takes_what_enough_others_approved_and_nothing_else():
    """Agent 4 comes when the others are done: it counts votes by who lives now."""
    away = threading.Event()
    away.set()
    nodes, air = opened(5, lambda source, sink, frame: 4 in (source, sink) and away.is_set(), rules=RULES)
    out = grown(nodes, {0: BAD, 1: GOOD}, liars=[0], absent=[4])
    assert all(ends(floods)[1] == [1.0] * 3 for floods in out.values())
    away.clear()
    nodes[4].meet()
    flood = nodes[4].flood(0, None, found_wrong)
    assert flood.tensors["w"].tolist() == [1.0] * 3
    assert nodes[4].history.newest_id == nodes[1].history.newest_id
    closed(nodes, air)


RULES = PeersConfig(deadline=1, silence=2, meet=3, patience=20)


def test_whoever_comes_back_to_a_few_that_were_left_takes_what_they_learned():
    """Two of five went on alone, with two votes. Agent 4 sees five living, of whom two are not half: it waits a while,
    and believes the two in the end."""
    commit = histories.sign_commit(identity(0), 0, [0, 1], bytes(32), GOOD)
    signed = [votes.vote_on(Board(identity(who), 5), commit, "", 1) for who in (0, 1)]
    commit = votes.with_approvals(commit, signed, "f", 5, identity(0).check)
    known = {agent: History(bytes(32), ()) for agent in (0, 1)}
    for history in known.values():
        history.take(commit)
    nodes, air = opened(5, lambda source, sink, frame: not {source, sink} <= {0, 1, 4}, rules=RULES, history=known)
    nodes[4].met = True
    found = threading.Thread(target=nodes[4].rejoin, args=(lambda stage: Rounds(0, 0, 0),), daemon=True)
    found.start()
    time.sleep(1)
    assert len(nodes[4].history.commits) == 0
    deadline = time.monotonic() + 20
    while not nodes[4].history.commits:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert nodes[4].history.newest_id == commit.id
    found.join(10)
    assert not nodes[4]._believes_parts
    closed(nodes, air)


def commit_with(voters, agents=4, objection=""):
    """A commit of agent 0, and votes of these on it."""
    commit = histories.sign_commit(identity(0), 0, range(agents), bytes(32), GOOD)
    return commit, [votes.vote_on(Board(identity(who), agents), commit, objection, 1) for who in voters]


def test_a_commit_travels_with_its_votes_and_is_saved_with_them(tmp_path):
    commit, signed = commit_with([1, 2])
    fleet = ("f", 4, identity(0).check)
    commit = votes.with_approvals(commit, signed, *fleet)
    assert in_pairs(votes.raw(commit.approvals)) == signed
    history = History(bytes(32), ())
    history.take(commit)
    history.save(tmp_path)
    again = History(bytes(32), ())
    again.load(tmp_path, *fleet)
    assert again.commits[0].approvals == commit.approvals


@pytest.mark.parametrize("wrong", ["objects", "other commit", "other signature", "no vote"])
def test_votes_that_do_not_approve_a_commit_are_refused(wrong):
    commit, signed = commit_with([1], objection="no" if wrong == "objects" else "")
    if wrong == "other commit":
        commit = histories.sign_commit(identity(0), 0, range(4), bytes(32), BAD)
    if wrong == "other signature":
        signed = [Signed(signed[0].text, b"2")]
    if wrong == "no vote":
        signed = [Signed(b"{}", b"1")]
    with pytest.raises(BadFrame):
        votes.with_approvals(commit, signed, "f", 4, identity(0).check)


def test_a_candidate_gains_votes():
    commit, signed = commit_with([1, 2, 3])
    history = History(bytes(32), ())
    history.is_approved = lambda one: len(one.approvals) >= 2
    few = votes.with_approvals(commit, signed[:1], "f", 4, identity(0).check)
    more = votes.with_approvals(commit, signed[:2], "f", 4, identity(0).check)
    history.add_candidate(few, 1)
    assert not any(map(history.accepts, history.candidates))
    history.add_candidate(more, 2)
    history.add_candidate(few, 1)
    assert [len(one.approvals) for one in history.candidates] == [2]
    assert history.take(history.candidates[0]) == 0
    history.add_approvals(0, votes.with_approvals(commit, signed, "f", 4, identity(0).check).approvals)
    assert len(history.commits[0].approvals) == 3


@given(st.lists(st.sampled_from(["yes", "no", "silent", "dead"]), min_size=1, max_size=9))
def test_an_outcome_is_never_both_and_is_there_when_all_of_the_living_have_voted(said):
    """Also where some who voted have died since."""
    agents = len(said)
    commit, _ = commit_with([], agents)
    board, living = Board(identity(0), agents), [agent for agent, one in enumerate(said) if one != "dead"]
    for agent, one in enumerate(said):
        if one != "silent":
            objection = "no" if one == "no" else ""
            board.take([*votes.vote_on(Board(identity(agent), agents), commit, objection, 1)], 0)
    count = votes.count(board, commit, living)
    yes, no = said.count("yes"), said.count("no")
    assert (count.outcome is Outcome.STANDS) == (2 * yes >= len(living))
    assert (count.outcome is Outcome.REFUSED) == (2 * no > len(living))
    if "silent" not in said:
        assert count.outcome is not Outcome.OPEN


def test_what_one_agent_says_in_a_stage_is_taken_a_bounded_number_of_times():
    commit, _ = commit_with([])
    board, liar = Board(identity(0), 4), Board(identity(3), 4)
    taken = [board.take([*votes.vote_on(liar, commit, "no", life)], 0) for life in range(1, 1000)]
    assert sum(map(len, taken)) == board.most
    assert board.take([*votes.vote_on(Board(identity(2), 4), commit, "", 1)], 0)
    board.forget_before(1)
    assert not board.votes(commit.id)


def test_an_objection_cannot_change_what_a_terminal_shows():
    commit, signed = commit_with([1], objection="no\x1b[2J\u202e")
    board = Board(identity(0), 4)
    board.take([*signed[0]], 0)
    (text,) = votes.count(board, commit, range(4)).votes.objections.values()
    assert text.startswith("no")
    assert text.isprintable()


def test_mutated_votes_are_taken_as_they_are_or_refused():
    """Bytes of a vote that were changed on the way: nothing but BadFrame, and never a vote that was not given."""
    rng, (commit, signed) = random.Random(1), commit_with([1, 2])
    raw = [part for one in signed for part in one]
    board, refused = Board(identity(0), 4), 0
    check = lambda who, text, sign: (text, sign) in signed  # noqa: E731  a signature that holds is of what was signed
    honest = NodeIdentity(0, "f", lambda data: b"0", check)
    board.identity = honest
    for _ in range(2000):
        changed = [mutated(part, rng) if rng.random() < 0.3 else part for part in raw]
        try:
            board.take(changed, 0)
            votes.with_approvals(commit, in_pairs(changed), "f", 4, check)
        except BadFrame:
            refused += 1
    assert refused > 1000
    assert {vote.agent for _, vote in board.votes(commit.id)} <= {1, 2}


def eager_agent(*arguments):
    """It sends a commit of its own, signed and approved by itself, in every stage, before anyone has grown."""
    keep_pace = Node._keep_pace

    def sends(self):
        keep_pace(self)
        if self.position.step == 3:
            false = self._signed({"weights/fc.weight": torch.ones(3, 3)})
            approval = votes.vote_on(Board(self.identity, len(self.membership.beats)), false, "", 1)
            signed = {"manifest": false.manifest, "signature": false.signature, "history": [*approval]}
            for peer in self.links.up:
                self.outbox.send(peer, FrameKind.COMMIT, false.tensors, **signed)

    Node._keep_pace = sends
    sys.argv[1:] = ["agent", *arguments]
    main()


def fleet_config(**more):
    fields = {"agents": 4, "topology": {"name": "complete"}, "seed": 1, "method": {"name": "codec"}}
    settings = {"data": {"tasks": 2}, "train": {"epochs": 2}, "growth": {"robust": "vote"}}
    return resolve(preset("quickstart"), {**fields, **settings, **more})


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("flood", ["weights", pytest.param("outside", marks=pytest.mark.long)])
def test_a_fleet_takes_nothing_that_a_lying_member_grew(flood, tmp_path):
    """A process with a valid certificate that floods a lie when it is its turn, and votes against all others."""
    seed = 1
    liar = succession(seed, 1, 4)[0]
    config = fleet_config(faults={"liar": liar, "lie": None, "flood": flood})
    fleet = LocalFleet(config, PeersConfig(deadline=5.0, silence=20.0, meet=60), tmp_path)
    with fleet:
        codes = fleet.finished(200)
    assert set(codes.values()) == {0}, [fleet.log(agent) for agent in codes]
    assert len(models(fleet, codes)) == 1
    for agent in codes:
        found = {(e["task"], e["chosen"]): e["stands"] for e in fleet.events(agent) if e["kind"] == "vote"}
        assert found.get((1, liar), False) is False
        assert "what it grew is refused" in fleet.log(agent) or (1, liar) not in found
        grew = [event["chosen"] for event in fleet.events(agent) if event["kind"] == "flood"]
        assert liar not in grew
        assert grew[1] == succession(seed, 1, 4)[1]
        when = {(e["kind"], e["task"]): e["time"] for e in fleet.events(agent) if e["kind"] in ("agree", "flood")}
        assert when["flood", 1] - when["agree", 1] < 15  # two growths and two votes: nobody waited for a deadline


@pytest.mark.long
@pytest.mark.alone
def test_a_fleet_takes_nothing_of_a_member_that_signs_when_it_is_not_its_turn(tmp_path):
    config = fleet_config()
    eager = succession(1, 0, 4)[-1]
    fleet = LocalFleet(config, PeersConfig(deadline=5.0, silence=20.0, meet=60), tmp_path)
    start = fleet.start

    def start_one(number):
        fleet.command = OUT_OF_TURN if number == eager else (*CODECL, "agent")
        start(number)

    fleet.start = start_one
    with fleet:
        codes = fleet.finished(200)
    assert set(codes.values()) <= {0, 4}, [fleet.log(agent) for agent in codes]
    for agent in codes:
        grew = [event["chosen"] for event in fleet.events(agent) if event["kind"] == "flood"]
        assert grew == [succession(1, task, 4)[0] for task in range(2)]
    assert len(models(fleet, codes)) == 1


if __name__ == "__main__":
    eager_agent(*sys.argv[1:])
