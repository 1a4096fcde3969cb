"""What strangers and hostile neighbours send is refused, harms nothing else, fills neither memory nor log.

Agent 3 is attacked over real sockets. Agents 2 (who dials it) and 4 (whom it dials) are good neighbours, agent 1 is a
hostile one, agent 0 is none.
"""

import logging
import random
import socket
import ssl
import subprocess
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("grpc")

import grpc

from codecl.exchange import topology
from codecl.peers import agent as peer
from codecl.peers import certificates, fleet, frames, history, links, membership
from codecl.peers.certificates import name_of
from codecl.peers.decisions import PeersConfig
from codecl.peers.frames import BadFrame, FrameKind, Position
from codecl.peers.history import History
from codecl.peers.local import free_ports
from codecl.peers.membership import QUIET_S, RateLimitedLog
from codecl.peers.node import Node
from codecl.peers.sums import MAX_SUMS
from codecl.runs.config import validate
from tests.faults.hostile import calling
from tests.launching import PYTHON, variables
from tests.laws.test_frames import mutated

AGENTS, ME, HOSTILE, GOOD = 5, 3, 1, (2, 4)
LINKS = [(0, 1), (1, 3), (2, 3), (3, 4), (4, 0)]
EDGES = [*LINKS, *((b, a) for a, b in LINKS)]
START, MAX_BYTES, SIZE, STEP = bytes(32), 1 << 21, 5, 40
CONFIG = validate({"preset": "fit", "agents": AGENTS, "topology": {"name": "mine", "edges": EDGES}})


def made(folder):
    """A fleet on the loopback: its members."""
    addresses = [("127.0.0.1", port) for port in free_ports(AGENTS)]
    return [fleet.read(path) for path in fleet.init(CONFIG, addresses, PeersConfig(), folder)]


def first_commit(members, values=None, grower=0, task=0, before=START):
    values = {"head": torch.ones(3), "w": torch.zeros(1 << 18)} if values is None else values
    return history.sign_commit(peer.identity_of(members[grower]), task, range(AGENTS), before, values)


def first_history(commit):
    out = History(START, {"head"})
    out.take(commit)
    return out


class Spied(Node):
    """Counts what reaches it."""

    def __init__(self, member):
        config = member.fleet.run_config()
        graph = topology.build(config.topology, config.agents, config.seed)
        rules = PeersConfig(deadline=5, silence=60, meet=60)
        super().__init__(graph, torch.float32, torch.device("cpu"), peer.identity_of(member), rules)
        self.reached = Counter()

    def receive(self, peer, data):
        self.reached[peer] += 1
        super().receive(peer, data)


def at_work(member, commit, connect=None):
    """A node in the middle of the second task, where the chart has SIZE numbers."""
    node = Spied(member)
    node.position = Position(0, STEP)
    node.rows.expect(torch.ones(SIZE))
    node.open(first_history(commit), 3, MAX_BYTES, connect or partial(peer.connect, member))
    return node


@pytest.fixture(scope="module")
def quick():
    """Whoever is turned away may come again soon: tests should not wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(links, "RETRY_S", 0.01)
        patch.setattr(links, "MAX_RETRY_S", 0.02)
        patch.setattr(links, "GRPC_SLACK", 3 << 20)
        yield


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    return made(tmp_path_factory.mktemp("ours") / "fleet")


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    return made(tmp_path_factory.mktemp("theirs") / "fleet")


@pytest.fixture(scope="module")
def nodes(members, quick):
    commit, out = first_commit(members), {}
    with ExitStack() as stack:
        for agent in (ME, *GOOD):
            out[agent] = at_work(members[agent], commit)
            stack.callback(out[agent].close)
        until(lambda: out[ME].links.up == set(GOOD))
        yield out


@pytest.fixture
def victim(nodes, caplog):
    """Agent 3, as it is at the start of every attack: its good links work, nothing was logged."""
    node = nodes[ME]
    until(lambda: node.links.up == set(GOOD))
    goes_on(nodes)
    caplog.set_level(logging.INFO, "codecl.peers")
    caplog.clear()
    node.journal.log = RateLimitedLog()
    yield node
    goes_on(nodes)


def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def step_of(node, agent):
    """Where this agent said it was."""
    return node.status[agent].position.step if agent in node.status else None


def goes_on(nodes):
    """Good links carry what good neighbours say, both ways."""
    victim = nodes[ME]
    for agent in GOOD:
        friend = nodes[agent]
        with friend._changed:
            friend.position = friend.position._replace(step=friend.position.step + 1)
            friend.outbox.beat()
        until(lambda agent=agent, step=friend.position.step: step_of(victim, agent) == step)
    with victim._changed:
        victim.busy = not victim.busy
        victim.outbox.beat()
    for agent in GOOD:
        until(lambda friend=nodes[agent]: friend.status[ME].busy == victim.busy)


def kept(node):
    """What a hostile frame should not change."""
    with node._changed:
        rows = [{agent: sorted(rows) for agent, rows in some.items()} for some in (node.rows.of, node.rows.full)]
        about = node.position, node.late, node.journal.degraded, dict(node.live), node.history.ids
        return rows, sorted(node.sums.plain), [commit.id for commit in node.history.candidates], about


def warnings(caplog):
    return [record for record in caplog.records if record.levelno >= logging.WARNING]


@contextmanager
def linked(members, node, agent=HOSTILE, **options):
    """A hostile neighbour with a link; when it is gone, so is the link."""
    with calling(members[ME], members[agent].identity, **options) as caller:
        caller.linked()
        until(lambda: agent in node.links.up)
        yield caller
    until(lambda: agent not in node.links.up)


def frame(members, kind, tensors=None, **about):
    """Of the hostile neighbour, right in all that is not said otherwise."""
    me = members[ME]
    fields = {"fleet": me.fleet.name, "sender": HOSTILE, "stage": 1, "step": STEP, "commit": bytes(32)}
    fields |= {"beats": [1] * AGENTS, "positions": [0] * AGENTS}
    return frames.encode(kind, tensors, **(fields | about))


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


# strangers: TLS refuses them


def forged(members):
    """A certificate that says all the right things, of an authority that calls itself ours."""
    name = members[0].fleet.name
    signer, key = certificates.new_key(), certificates.new_key()
    root = certificates.of_authority(name, signer)
    made = certificates.of_agent(name_of(name, HOSTILE), "127.0.0.1", key, root, signer)
    return SimpleNamespace(key=certificates.key_pem(key), certificate=certificates.pem(made))


STRANGERS = {
    "of another fleet": lambda members, strangers: strangers[HOSTILE].identity,
    "of a forged authority": lambda members, strangers: forged(members),
    "without a certificate": lambda members, strangers: None,
}


@pytest.mark.parametrize("who", STRANGERS)
def test_who_is_not_of_our_authority_is_refused_before_it_says_anything(victim, nodes, members, strangers, who, caplog):
    before, reached = kept(victim), victim.reached[HOSTILE]
    with calling(members[ME], STRANGERS[who](members, strangers)) as caller:
        caller.send(frame(members, FrameKind.BEAT))
        goes_on(nodes)
        assert caller.code() is grpc.StatusCode.UNAVAILABLE
        assert victim.links.up == set(GOOD)
    assert kept(victim) == before
    assert victim.reached[HOSTILE] == reached
    assert caplog.records == []


def test_calls_without_tls_are_refused(victim, nodes, members, caplog):
    with grpc.insecure_channel(members[ME].fleet.addresses[ME].target) as channel:
        stream = channel.stream_stream(f"/{links.SERVICE}/{links.METHOD}")(iter([frame(members, FrameKind.BEAT)]))
        goes_on(nodes)
        with pytest.raises(grpc.RpcError) as error:
            next(stream)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    assert victim.links.up == set(GOOD)
    assert caplog.records == []


def on_socket(members, data, identity=None):
    """Say this; what is answered until the other side ends it."""
    address = members[ME].fleet.addresses[ME]
    said = b""
    with socket.create_connection((address.host, address.port), timeout=20) as raw, ExitStack() as stack:
        end = raw
        if identity:
            context = ssl.create_default_context(cadata=members[ME].identity.authority.decode())
            context.load_cert_chain(*identity)
            context.set_alpn_protocols(["h2"])
            end = stack.enter_context(context.wrap_socket(raw, server_hostname=name_of(members[ME].fleet.name, ME)))
        end.sendall(data)
        with suppress(OSError):
            raw.shutdown(socket.SHUT_WR) if not identity else None
            while more := end.recv(1 << 16):
                said += more
    return said


BYTES = {
    "plain HTTP": b"GET / HTTP/1.1\r\nHost: agent\r\n\r\n",
    "plain HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    "nothing": b"",
    "random": random.Random(1).randbytes(1 << 16),
    "a TLS record and random": b"\x16\x03\x01\x02\x00\x01" + random.Random(2).randbytes(1 << 12),
}


@pytest.mark.parametrize("what", BYTES)
def test_bytes_on_the_socket_are_refused(victim, members, what, caplog, capfd):
    before = kept(victim)
    capfd.readouterr()
    said = on_socket(members, BYTES[what])
    assert len(said) < 100  # an alert at most
    assert len(capfd.readouterr().err.splitlines()) <= 1  # of gRPC itself
    assert victim.links.up == set(GOOD)
    assert kept(victim) == before
    assert caplog.records == []


def test_random_bytes_inside_tls_are_refused(victim, nodes, members, caplog):
    """Of a right neighbour that speaks something else."""
    pair = members[HOSTILE].folder / "certificate.pem", members[HOSTILE].folder / "key.pem"
    for seed in range(5):
        said = on_socket(members, random.Random(seed).randbytes(1 << 14), pair)
        assert len(said) < 1000
    assert HOSTILE not in victim.links.up
    assert caplog.records == []


def test_sockets_that_say_nothing_keep_nobody_out(victim, nodes, members):
    address = members[ME].fleet.addresses[ME]
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(socket.create_connection((address.host, address.port), timeout=20))
        goes_on(nodes)
        with linked(members, victim):
            goes_on(nodes)


# members of the fleet that have no business here


@pytest.mark.parametrize("agent", [0, ME, 4], ids=["no neighbour", "oneself", "a neighbour that should be dialled"])
def test_who_should_not_dial_is_refused_in_one_line(victim, nodes, members, agent, caplog):
    before, link = kept(victim), victim.links._links.get(agent)
    for _ in range(5):
        with calling(members[ME], members[agent].identity) as caller:
            caller.send(frame(members, FrameKind.BEAT, sender=agent, step=7777))
            goes_on(nodes)
            assert caller.code() is grpc.StatusCode.PERMISSION_DENIED
            assert f"does not expect agent {agent}" in caller.stream.details()
    assert victim.links._links.get(agent) is link  # a good one stays
    assert all(status.position.step != 7777 for status in victim.status.values())
    assert kept(victim) == before
    (line,) = caplog.records
    assert f"refused: agent {agent} from" in line.getMessage()


# a hostile neighbour


def row(size=SIZE):
    return {"row": torch.ones(size)}


def fields_of(commit):
    return {"tensors": commit.tensors, "manifest": commit.manifest, "signature": commit.signature}


def altered(members):
    """By a relay: one number."""
    commit = first_commit(members, task=1)
    return commit._replace(tensors={**commit.tensors, "head": torch.tensor([1.0, 1.0, 1.5])})


def unsigned(members):
    commit = first_commit(members, task=1)
    return commit._replace(signature=certificates.sign(members[HOSTILE].identity.key, commit.manifest))


def claims(members, size):
    types = frames._message_types()
    spec = types["TensorSpec"](name="row", dtype="uint8", shape=[size])
    header = types["Header"](kind=FrameKind.ROW, fleet=members[ME].fleet.name, sender=HOSTILE, tensors=[spec])
    data = header.SerializeToString()
    return len(data).to_bytes(4, "big") + data + bytes(100)


def ours(node):
    return {"commit": node.history.newest_id}


def sends(kind, tensors=None, **about):
    return lambda members, node: frame(members, kind, tensors, **(ours(node) | about))


def sends_commit(make):
    return lambda members, node: frame(members, FrameKind.COMMIT, **fields_of(make(members)))


HOSTILE_FRAMES = {
    "claims 10 GB": (lambda members, _: claims(members, 10 << 30), "claims 10737418240 bytes of tensors"),
    "claims more than it has": (
        lambda members, node: claims(members, 1000),
        "claims 1000 bytes of tensors and has 100",
    ),
    "random bytes": (lambda *_: random.Random(3).randbytes(5000), "a header of"),
    "another sender": (sends(FrameKind.ROW, row(), sender=2), "it is of agent 2"),
    "another fleet": (sends(FrameKind.ROW, row(), fleet="ba9876543210"), "of fleet 'ba98"),
    "a row too long": (sends(FrameKind.ROW, row(SIZE + 1)), "a row of 6 numbers"),
    "a row of bytes": (sends(FrameKind.ROW, {"row": torch.ones(SIZE, dtype=torch.uint8)}), "a row of torch.uint8"),
    "a row in full of bytes": (sends(FrameKind.FULL, {"row": torch.ones(SIZE, dtype=torch.uint8)}), "a row in full of"),
    "a row that is none": (sends(FrameKind.ROW, {"rows": torch.ones(5)}), "a row that is"),
    "an unknown kind": (sends(99), "99 is not a valid FrameKind"),
    "a task that is none": (sends(FrameKind.LATE, stage=10**6), "in stage 1000001 of 3"),
    "a commit's id of a megabyte": (sends(FrameKind.ROW, row(), commit=bytes(1 << 20)), "a commit that is"),
    "signs of too many": (sends(FrameKind.BEAT, beats=[1] * 9), "signs of life of 9 agents"),
    "another past": (sends(FrameKind.REQUEST, history=[bytes(31) + b"1"]), "it started from another"),
    "a commit that a relay altered": (sends_commit(altered), "'head' is not what"),
    "a commit of a wrong signature": (sends_commit(unsigned), "without the signature"),
    "a deep manifest": (sends(FrameKind.COMMIT, manifest=b"[" * 10**6), "manifest cannot be read"),
}


@pytest.mark.parametrize("what", HOSTILE_FRAMES)
def test_a_frame_that_does_not_fit_closes_its_link_in_one_line(victim, nodes, members, what, caplog):
    build, reason = HOSTILE_FRAMES[what]
    before = kept(victim)
    with linked(members, victim) as caller:
        caller.send(build(members, victim))
        goes_on(nodes)
        caller.code()
        until(lambda: HOSTILE not in victim.links.up)
        assert kept(victim) == before
        (line,) = warnings(caplog)
        assert line.getMessage().startswith("refused: a frame of agent 1 (")
        assert reason in line.getMessage()
        assert "\n" not in line.getMessage()
        assert len(caplog.records) <= 3  # connected, refused, disconnected
        caller.dial()  # it may come back, and is heard
        caller.linked()
        step = random.randrange(1 << 20)
        caller.send(frame(members, FrameKind.BEAT, step=step))
        until(lambda: step_of(victim, HOSTILE) == step)


@pytest.mark.parametrize("at", [(0, 3), (1, 3)], ids=["of an earlier task", "of an earlier step"])
def test_a_recorded_row_that_comes_again_is_late_and_never_kept(victim, members, at, caplog):
    task, step = at
    recorded = frame(members, FrameKind.ROW, row(), stage=task, step=step, commit=victim.history.ids[task])
    before = kept(victim)
    with linked(members, victim) as caller:
        caller.send(*[recorded] * 50)
        kinds = (frames.decode(data, MAX_BYTES).kind for data in caller.stream if data)
        assert next(kind for kind in kinds if kind is not FrameKind.BEAT) is FrameKind.LATE
        reached = victim.reached[HOSTILE]
        caller.send(recorded)
        until(lambda: victim.reached[HOSTILE] > reached)
        assert HOSTILE in victim.links.up
        assert kept(victim) == before
    assert warnings(caplog) == []
    assert len([line for line in caplog.records if "late" in line.getMessage()]) == 1


def test_a_row_of_this_step_is_kept_once_and_the_first_stays(victim, members):
    """So that a test that keeps nothing would be seen."""
    with linked(members, victim) as caller:
        for value in (1.0, 2.0):
            caller.send(frame(members, FrameKind.ROW, {"row": torch.full((SIZE,), value)}, **ours(victim)))
        caller.send(frame(members, FrameKind.BEAT, step=STEP + 5))
        until(lambda: step_of(victim, HOSTILE) == STEP + 5)
        assert victim.rows.of[HOSTILE].pop((1, STEP)).row_D.tolist() == [1.0] * SIZE


def test_a_row_of_another_commit_is_never_kept(victim, members, caplog):
    before = kept(victim)
    with linked(members, victim) as caller:
        caller.send(
            frame(members, FrameKind.ROW, row(), commit=bytes(31) + b"x"), frame(members, FrameKind.BEAT, step=STEP + 9)
        )
        until(lambda: step_of(victim, HOSTILE) == STEP + 9)
        assert kept(victim) == before
    assert warnings(caplog) == []


def test_a_message_beyond_the_cap_is_not_taken_in(victim, nodes, members, caplog):
    before, reached = kept(victim), victim.reached[HOSTILE]
    with linked(members, victim) as caller:
        caller.send(bytes(MAX_BYTES + links.GRPC_SLACK + 1))
        goes_on(nodes)
        assert caller.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED)
        until(lambda: HOSTILE not in victim.links.up)
    assert victim.reached[HOSTILE] == reached
    assert kept(victim) == before
    assert warnings(caplog) == []
    assert len(caplog.records) <= 2


LARGE = {
    "beyond the cap": (lambda *_: bytes(MAX_BYTES + links.GRPC_SLACK + 1), 2),
    "claims 10 GB": (lambda members, _: claims(members, 10 << 30), 6),
    "a header of 4 MB": (sends(FrameKind.BEAT, manifest=bytes((4 << 20) + 1)), 6),
    "a commit that is altered": (sends_commit(altered), 6),
}


@pytest.mark.long
def test_memory_stays_flat(victim, nodes, members, tmp_path, caplog):
    """Two hundred times what is large, in what it is or in what it says, of another process; and few lines are
    written."""
    files = []
    for number, (build, times) in enumerate(LARGE.values()):
        files += [tmp_path / str(number)] * times
        files[-1].write_bytes(build(members, victim))
    command = [*PYTHON, "-m", "tests.faults.hostile", members[ME].folder.parent, str(HOSTILE), str(ME), *files]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    began, reached = time.monotonic(), victim.reached[HOSTILE]
    with subprocess.Popen(list(map(str, command)), env=variables(0, 1, 1), **pipes) as process:
        assert process.stdout.readline() == "1\n"
        before = resident()
        process.stdin.write("\n")
        process.stdin.flush()
        goes_on(nodes)
        assert process.stdout.readline() == "10\n"
        grown = resident() - before
        process.communicate("\n")
    assert process.returncode == 0
    assert grown < 30 << 20
    assert victim.reached[HOSTILE] == reached + 11 * 18  # those within the cap
    assert HOSTILE not in victim.links.up
    lines = 1 + (time.monotonic() - began) / QUIET_S
    assert 1 <= len(warnings(caplog)) <= lines
    assert len(caplog.records) <= 3 * lines


def test_who_asks_for_commits_and_takes_none_is_not_given_more(victim, nodes, members):
    with linked(members, victim, **{"grpc.http2.bdp_probe": 0}) as caller:
        caller.send(*[frame(members, FrameKind.REQUEST, history=[START], number=1)] * 300)
        reached = victim.reached[HOSTILE]
        until(lambda: victim.reached[HOSTILE] >= reached + 300)
        assert 1 <= victim.links.link_to(HOSTILE).waiting < 10
        goes_on(nodes)


def test_links_that_take_nothing_keep_nobody_out(victim, nodes, members):
    """One after another is opened and left with a commit that it does not take; good neighbours can still dial."""
    with ExitStack() as stack:
        for _ in range(3 * AGENTS):
            caller = stack.enter_context(calling(members[ME], members[HOSTILE].identity, **{"grpc.http2.bdp_probe": 0}))
            caller.linked()
            caller.send(*[frame(members, FrameKind.REQUEST, history=[START])] * 3)
            reached = victim.reached[HOSTILE]
            until(lambda reached=reached: victim.reached[HOSTILE] > reached)
        victim.links.link_to(2).close("to see whether it can dial again")
        until(lambda: 2 not in victim.links.up)
        until(lambda: 2 in victim.links.up)
        goes_on(nodes)
    until(lambda: HOSTILE not in victim.links.up)


# how a link comes back


def test_a_good_neighbour_dials_again_after_a_frame_that_did_not_fit(victim, nodes, members, caplog):
    link = victim.links._links[2]
    nodes[2].links.link_to(ME).put(b"spoiled on the way")
    until(lambda: victim.links._links.get(2) not in (None, link))
    goes_on(nodes)
    (line,) = warnings(caplog)
    assert "refused: a frame of agent 2" in line.getMessage()


def test_who_sent_what_does_not_fit_has_to_wait(victim, members, monkeypatch):
    with linked(members, victim) as caller:
        monkeypatch.setattr(links, "MAX_RETRY_S", 60)
        caller.send(b"spoiled")
        caller.code()
        until(lambda: HOSTILE not in victim.links.up)
        caller.dial()
        assert caller.code() is grpc.StatusCode.UNAVAILABLE
        assert "too soon" in caller.stream.details()
        victim.links._not_before.clear()
        caller.dial()
        caller.linked()


def test_a_neighbour_that_answers_with_garbage_is_dialled_again_and_not_often_logged(tmp_path, quick, caplog):
    """Here the hostile one is dialled."""
    members = made(tmp_path / "fleet")
    caplog.set_level(logging.INFO, "codecl.peers")
    dialled = Counter()

    identity = members[4].identity

    def answer(frames, context):
        dialled["times"] += 1
        nonce = dict(context.invocation_metadata())[links.NONCE]
        proof = certificates.sign(identity.key, links._claim(identity.fleet, ME, 4, nonce))
        own = certificates.der(certificates.load(identity.certificate))
        context.send_initial_metadata(((links.CERTIFICATE, own), (links.PROOF, proof)))
        yield b"garbage"

    server = grpc.server(ThreadPoolExecutor(2))
    handlers = {links.METHOD: grpc.stream_stream_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(links.SERVICE, handlers),))
    pair = [(identity.key, identity.certificate)]
    credentials = grpc.ssl_server_credentials(pair, identity.authority, require_client_auth=True)
    server.add_secure_port(members[4].fleet.addresses[4].target, credentials)
    server.start()
    node = at_work(members[ME], first_commit(members))
    try:
        until(lambda: dialled["times"] >= 10)
    finally:
        node.close()
        server.stop(None).wait()
    assert node.reached[4] >= 9
    assert len(warnings(caplog)) == 1
    assert len(caplog.records) <= 4


@pytest.mark.parametrize("leaver", GOOD, ids=["who dialled", "who was dialled"])
def test_what_is_on_its_way_when_an_agent_ends_still_leaves(tmp_path, quick, leaver):
    members = made(tmp_path / "fleet")
    with ExitStack() as stack:
        ours, theirs = (at_work(members[agent], first_commit(members)) for agent in (ME, leaver))
        stack.callback(ours.close)
        until(lambda: leaver in ours.links.up and ME in theirs.links.up)
        for _ in range(30):
            assert theirs.outbox.send_commit(ME, theirs.history.commits[0])
        sent = theirs.close()[str(ME)].sent
        assert sent >= 30 << 20
        until(lambda: ours.links.traffic[str(leaver)].received == sent)
        until(lambda: leaver not in ours.links.up)


# any frame


class NoLinks:
    """Takes everything and says nothing."""

    up, traffic = frozenset({HOSTILE}), {}

    def link_to(self, peer):
        return SimpleNamespace(waiting=0, has_room=lambda: True, put=lambda data, may_drop=False: None)

    def connect_only(self, peers):
        pass

    def close_untrusted(self):
        pass

    def close(self):
        pass


@pytest.fixture
def node(members):
    """Agent 3 without links."""
    with closing(at_work(members[ME], first_commit(members), lambda node: NoLinks())) as out:
        yield out


def any_frame(rng, members, node, known):
    """Right in most things, so that it gets far."""
    kind = rng.choice(list(FrameKind))
    about = {
        "stage": rng.choice([0, 1, 1, 1, 2, 3, 4, 2**63]),
        "step": rng.choice([0, STEP - 1, STEP, STEP + rng.randrange(200), 2**64 - 1]),
        "commit": rng.choice([node.history.newest_id, node.history.newest_id, START, rng.randbytes(32)]),
        "beats": [rng.choice([0, 1, 2**40, 2**64 - 1]) for _ in range(AGENTS)],
        "positions": [rng.choice([0, STEP, 2**32 + STEP, 2**64 - 1]) for _ in range(AGENTS)],
        "root": rng.choice([0, 3, 2**64 - 1]),
        "number": rng.randrange(400),
        "busy": rng.random() < 0.5,
        "hears": rng.random() < 0.5,
        "history": [START, node.history.newest_id, rng.randbytes(32)][: rng.randrange(1, 4)],
    }
    if kind is FrameKind.COMMIT:
        return frame(members, kind, **about, **fields_of(rng.choice(known)))
    size, dtype = rng.choice([SIZE] * 6 + [0, 1, 600]), rng.choice([torch.float32] * 6 + [torch.uint8])
    has_row = kind in (FrameKind.ROW, FrameKind.FULL, FrameKind.SUM)
    return frame(members, kind, {"row": torch.ones(size, dtype=dtype)} if has_row else None, **about)


def test_fuzzed_frames_are_heard_or_refused_and_what_is_kept_is_bounded(node, members):
    rng, counts = random.Random(7), Counter()
    values = [{"head": torch.full((3,), float(number)), "w": torch.ones(4)} for number in range(40)]
    known = [first_commit(members, one, 2, 1, rng.choice([START, node.history.newest_id])) for one in values]
    known += [one._replace(tensors={"head": one.tensors["head"]}) for one in known[::4]]
    node.met, past = True, node.history.ids
    for number in range(15_000):
        data = any_frame(rng, members, node, known)
        try:
            node.receive(HOSTILE, mutated(data, rng) if number % 2 else data)
            counts["heard"] += 1
        except BadFrame:
            counts["refused"] += 1
        if number % 1000 == 0:
            frames.encode(FrameKind.BEAT, **node._header())  # it can still speak
    assert min(counts["heard"], counts["refused"]) > 3000
    assert 1 <= len(node.rows.of[HOSTILE]) <= 2 * node.max_ahead
    assert [len(rows) for rows in node.rows.full.values()] == [1]
    assert 1 <= len(node.sums.plain) <= MAX_SUMS
    assert 1 <= len(node.history.candidates) <= history.MAX_CANDIDATES
    assert 1 <= len(node.journal.take_notes()) <= membership.MAX_NOTES
    assert (
        {agent for agent, rows in node.rows.of.items() if rows} == {HOSTILE} == set(node.status) == set(node.rows.full)
    )
    assert len(node.outbox._sent_at) < 10
    assert (node.history.ids, node.position) == (past, (1, STEP))
    assert all(len(row.row_D) == SIZE for at, row in node.rows.of[HOSTILE].items() if at.stage == 1)


def test_one_neighbours_sums_leave_room_for_those_of_others(node, members):
    for number in range(1000):
        node.receive(HOSTILE, frame(members, FrameKind.SUM, {"x": torch.ones(1)}, number=number))
    node.receive(2, frame(members, FrameKind.SUM, {"x": torch.ones(1)}, sender=2))
    assert (1, 0, 0, 2) in node.sums.plain
    assert (1, 0, 999, HOSTILE) in node.sums.plain


def test_notes_that_nobody_takes_are_bounded(node):
    """A neighbour that comes and goes while a long epoch is trained."""
    for _ in range(membership.MAX_NOTES):
        node.link_changed(HOSTILE, True, "")
        node.link_changed(HOSTILE, False, "it closed the link")
    assert len(node.journal.take_notes()) == membership.MAX_NOTES
