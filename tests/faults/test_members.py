"""A member of the fleet that attacks a neighbour, from a process of its own and with a certificate that holds, costs it
a bounded time and nothing else.

Agent 3 is attacked by agent 1; agents 2 and 4 are good neighbours (as in test_hostile).
"""

import os
import shutil
import subprocess
import time
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import torch

pytest.importorskip("grpc")

from codecl.exchange import topology
from codecl.peers import agent as peer
from codecl.peers import authority, certificates, fleet, keyfiles, limits, links
from codecl.peers.certificates import name_of
from codecl.peers.decisions import PeersConfig
from codecl.peers.frames import Position
from codecl.peers.history import History
from codecl.peers.keys import Untrusted
from codecl.peers.local import free_ports
from codecl.peers.node import Node
from codecl.runs.config import validate
from tests.faults.test_hostile import GOOD, HOSTILE, ME, at_work, first_commit, goes_on, made, resident, until
from tests.launching import PYTHON, variables

IDLE_S, STALL_S = 2, 1.0


class Attack:
    """The process of a hostile member."""

    def __init__(self, folder, agent, victim):
        command = [*PYTHON, "-m", "tests.faults.attacker", str(folder), str(agent), str(victim)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=variables(0, 1, 1), **pipes)
        assert self.process.stdout.readline() == "here\n"

    @contextmanager
    def __call__(self, name):
        """Goes on as long as the block; gives what the attacker says."""
        yield self.say(name)
        assert self.say("") == "nothing"

    def say(self, line):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self):
        self.process.communicate()
        assert self.process.returncode == 0

    def kill(self):
        self.process.kill()
        self.process.wait()
        for end in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                end.close()


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    return made(tmp_path_factory.mktemp("members") / "fleet")


@pytest.fixture(scope="module")
def nodes(members):
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(limits, "IDLE_S", IDLE_S)
        patch.setattr("codecl.peers.link.STALL_S", STALL_S)
        patch.setattr("codecl.peers.link.SLOW_BYTES", 1 << 20)
        patch.setattr(links, "MAX_RETRY_S", 0.2)
        commit, out = first_commit(members), {}
        for agent in (ME, *GOOD):
            out[agent] = at_work(members[agent], commit)
            stack.callback(out[agent].close)
        until(lambda: out[ME].links.up == set(GOOD))
        yield out


@pytest.fixture(scope="module")
def attack(members):
    out = Attack(members[0].folder.parent, HOSTILE, ME)
    yield out
    out.end()


@pytest.fixture
def victim(nodes):
    until(lambda: nodes[ME].links.up == set(GOOD))
    goes_on(nodes)
    nodes[ME].journal.take_notes()
    yield nodes[ME]
    goes_on(nodes)


def dials_again(victim, nodes, seconds):
    """A good neighbour that lost its link has it again soon."""
    began = time.monotonic()
    victim.links.link_to(2).close("to see whether it can dial again")
    until(lambda: 2 not in victim.links.up)
    until(lambda: 2 in victim.links.up, seconds)
    goes_on(nodes)
    return time.monotonic() - began


def states(node, agent=HOSTILE):
    return [note.state for note in node.journal.take_notes() if note.agent == agent]


def test_a_thousand_connections_keep_nobody_out_and_end_by_themselves(victim, nodes, attack):
    before = len(open_sockets())
    with attack("connections") as said:
        assert said == "1000"
        dials_again(victim, nodes, 10)
        until(lambda: len(open_sockets()) < before + 50, IDLE_S + 10)
    assert HOSTILE not in victim.links.up


def open_sockets():
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found += [path] if os.readlink(path).startswith("socket:") else []
    return found


def test_a_thousand_streams_have_one_link_and_one_line(victim, nodes, attack):
    with attack("streams") as said:
        assert said == "1000"
        dials_again(victim, nodes, 10)
    seen = states(victim)
    assert seen.count("refused") == 1
    assert not victim.journal.degraded
    until(lambda: HOSTILE not in victim.links.up)


def test_who_never_reads_is_dropped_in_time_and_what_waits_is_bounded(victim, nodes, attack):
    before = resident()
    with attack("slow"):
        until(lambda: HOSTILE in victim.links.up)
        began, link = time.monotonic(), victim.links.link_to(HOSTILE)
        until(lambda: not link.open, 10)
        assert time.monotonic() - began < STALL_S + 1 + 2  # a commit has a megabyte
        assert link.why == "it takes nothing"
        dials_again(victim, nodes, 10)
    assert resident() - before < 64 << 20
    until(lambda: HOSTILE not in victim.links.up)


def test_messages_larger_than_the_model_allows_are_refused(victim, nodes, attack):
    before = resident()
    with attack("huge"):
        goes_on(nodes)
    assert victim.rows.of[HOSTILE] == {}
    assert victim.rows.full == {}
    assert resident() - before < 64 << 20
    until(lambda: HOSTILE not in victim.links.up)


def test_who_speaks_as_another_is_refused(victim, nodes, attack):
    status = victim.status.get(2)
    with attack("other"):
        until(lambda: HOSTILE not in victim.links.up)
        assert victim.rows.of == {agent: {} for agent in range(5)}
        assert 2 in victim.links.up
    assert status is None or victim.status[2].position >= status.position


def test_a_list_that_a_member_signed_revokes_nobody(victim, nodes, attack):
    with attack("lists"):
        until(lambda: HOSTILE not in victim.links.up)
    assert victim.identity.keys.revoked.number == 0
    assert victim.links.up >= {2}


# certificates


@contextmanager
def replaced(member, days):
    """It has another certificate for a while, of the right authority, that ends in so many days."""
    known = authority.open_authority(member.folder.parent)
    key, name = certificates.new_key(), name_of(member.fleet.name, member.identity.agent)
    new = certificates.of_agent(name, "127.0.0.1", key, known.certificate, known.key, days)
    write_pair(member, certificates.key_pem(key), certificates.pem(new))
    yield
    write_pair(member, member.identity.key, member.identity.certificate)


def write_pair(member, key, certificate):
    keyfiles.write_key(member.folder / "key.pem", key)
    (member.folder / "certificate.pem").write_bytes(certificate)


def test_a_certificate_that_is_over_is_refused(victim, nodes, members, attack):
    """TLS refuses it before anything is said."""
    with replaced(members[HOSTILE], -0.5), attack("dial") as said:
        assert said.startswith("UNAVAILABLE")
        goes_on(nodes)
    with replaced(members[HOSTILE], 0.5), attack("dial") as said:
        assert said == "linked"
    until(lambda: HOSTILE not in victim.links.up)


def test_a_link_ends_with_its_certificate(victim, members, nodes, attack):
    seconds = 2.0
    with replaced(members[HOSTILE], seconds / 86_400), attack("dial") as said:
        assert said == "linked"
        until(lambda: HOSTILE in victim.links.up)
        until(lambda: HOSTILE not in victim.links.up, seconds + 3)


def test_a_revoked_member_is_out_at_once_and_everybody_knows(victim, nodes, members, attack):
    """The list is copied to one agent; what is renewed comes back in."""
    with attack("dial") as said:
        assert said == "linked"
        until(lambda: HOSTILE in victim.links.up)
        known = authority.open_authority(members[ME].folder.parent)
        for path in authority.revoke(known, [HOSTILE])[1:]:
            if path.parent != members[2].folder:
                path.unlink()
        began = time.monotonic()
        until(lambda: HOSTILE not in victim.links.up, 5)
        assert time.monotonic() - began < 3
        for agent in (ME, *GOOD):
            until(lambda node=nodes[agent]: node.membership.dead == {HOSTILE}, 5)
    assert "revoked" in states(victim)
    assert (members[ME].folder / authority.REVOKED).is_file()  # for its next start
    with attack("dial") as said:
        assert said == "PERMISSION_DENIED agent 3 refuses agent 1: its certificate is revoked"
    with pytest.raises(Untrusted, match="revoked"):
        victim.identity.keys.believe(certificates.load(members[HOSTILE].identity.certificate), HOSTILE)
    authority.renew(known, [HOSTILE])
    with attack("dial") as said:
        assert said == "linked"
        until(lambda: HOSTILE in victim.links.up)
        for agent in (ME, *GOOD):
            until(lambda node=nodes[agent]: node.membership.revoked == frozenset(), 5)
    until(lambda: HOSTILE not in victim.links.up)


def test_who_answers_with_a_revoked_certificate_is_not_believed(tmp_path):
    """Agent 4 holds on to its old key; agent 3, which dials it, has the list."""
    ours = made(tmp_path / "fleet")
    known = authority.open_authority(tmp_path / "fleet")
    commit = first_commit(ours)
    with ExitStack() as stack:
        old, new = (at_work(ours[agent], commit) for agent in (4, ME))
        for node in (old, new):
            stack.callback(node.close)
        until(lambda: 4 in new.links.up)
        listed = authority.revoke(known, [4])[0]
        shutil.copy(listed, ours[ME].folder / authority.REVOKED)
        (ours[4].folder / authority.REVOKED).unlink()
        until(lambda: 4 not in new.links.up, 5)
        time.sleep(1.0)
        assert 4 not in new.links.up
        authority.renew(known, [4])  # which agent 4 takes up while it runs
        until(lambda: 4 in new.links.up, 10)
        assert new.links.link_to(4).certificate == old.identity.keys.own


# waiting


def test_one_who_is_busy_for_ever_costs_no_more_than_patience(tmp_path):
    """A fleet of two: the other one says that it is busy, and never is done."""
    config = validate({"preset": "fit", "agents": 2, "topology": {"name": "ring"}})
    addresses = [("127.0.0.1", port) for port in free_ports(2)]
    rules = PeersConfig(deadline=0.2, silence=20, meet=20, patience=2)
    files = fleet.init(config, addresses, rules, tmp_path / "fleet")
    member = fleet.read(files[1])
    graph = topology.build(config.topology, 2, 0)
    node = Node(graph, torch.float32, torch.device("cpu"), peer.identity_of(member), rules)
    attack = Attack(tmp_path / "fleet", 0, 1)
    node.open(History(bytes(32), ()), 2, 1 << 21, partial(peer.connect, member))
    try:
        with attack("busy") as said:
            assert said == "linked"
            node.meet()
            node.position = Position(0, 1)
            began = time.monotonic()
            for _ in range(200):
                node.start(torch.ones(1, 5), "train").wait()
            lost = time.monotonic() - began
        assert rules.deadline < lost < rules.patience + 2
        why = [note.why for note in node.journal.take_notes() if note.state == "lost"]
        assert len(why) == 1
        assert "peers.patience" in why[0]
    finally:
        node.close()
        attack.end()
