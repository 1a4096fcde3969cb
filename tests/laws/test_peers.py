"""The laws of what peers send, believe and keep; no network here."""

import copy
import hashlib
import itertools
import json
import random
import tempfile
import time
import tracemalloc
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

pytest.importorskip("grpc")

from codecl import seeding
from codecl.exchange import topology
from codecl.exchange.topology import Topology, TopologyConfig, healed
from codecl.peers import agent as peer
from codecl.peers import decisions, frames, history, membership
from codecl.peers.decisions import NewestRow, PeersConfig, PeerStatus, ReceivedRow, Rounds, RowFate
from codecl.peers.frames import BadFrame, FrameKind, Position
from codecl.peers.history import Commit, History, NodeIdentity
from codecl.peers.link import MAX_WAITING, Link
from codecl.peers.membership import STEPS, Membership, Neighbours
from codecl.peers.rounds import SentRow, as_heard

MAX_BYTES = 1 << 20
START = bytes(32)
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
numbers = st.integers(0, 2**64 - 1)


# frames


@st.composite
def tensors(draw, max_size=4):
    """Of every type that travels; bytes of any kind, so with every value that there is."""
    out = {}
    for name in draw(st.lists(words, max_size=max_size, unique=True)):
        kind = draw(st.sampled_from(list(frames.DTYPES.values())))
        shape = draw(st.lists(st.integers(0, 3), max_size=4))
        data = torch.randint(0, 256, (int(np.prod(shape)) * kind.itemsize,), dtype=torch.uint8)
        out[name] = data.view(kind).view(shape)
    return out


fields = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("sender", "stage", "step", "root", "number"), numbers),
        **dict.fromkeys(("commit", "manifest", "signature"), st.binary(max_size=40)),
        **dict.fromkeys(("busy", "degraded", "hears"), st.booleans()),
        **dict.fromkeys(("beats", "positions"), st.lists(numbers, max_size=4)),
        "history": st.lists(st.binary(max_size=33), max_size=3),
        "fleet": words,
    },
)


def bits(found):
    """Tensors as what can be compared, NaN and all."""
    return {
        name: (value.dtype, tuple(value.shape), value.contiguous().reshape(-1).view(torch.uint8).tolist())
        for name, value in found.items()
    }


@given(st.sampled_from(FrameKind), tensors(), fields)
def test_decode_undoes_encode(kind, values, about):
    data = frames.encode(kind, values, **about)
    found = frames.decode(data, MAX_BYTES)
    assert found.kind is kind
    assert bits(found.tensors) == bits(values)
    assert {name: getattr(found.header, name) for name in about} == about
    assert frames.tensor_bytes(data) == sum(value.numel() * value.element_size() for value in values.values())
    assert found.position == (about.get("stage", 0), about.get("step", 0))


def test_what_is_decoded_is_ones_own():
    """Nothing that is done to a tensor reaches the bytes that it came in."""
    data = frames.encode(FrameKind.ROW, {"row": torch.ones(3)})
    frames.decode(data, MAX_BYTES).tensors["row"].zero_()
    assert frames.decode(data, MAX_BYTES).tensors["row"].tolist() == [1, 1, 1]


def frame_or_refused(data):
    """Whether it is a frame. What refuses it can be logged: one line, and not a long one."""
    try:
        return isinstance(frames.decode(data, MAX_BYTES), frames.Frame)
    except BadFrame as error:
        reason = str(error)
    assert "\n" not in reason
    assert len(reason) < 600
    return False


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_refused(data):
    frame_or_refused(data)
    frame_or_refused(len(data).to_bytes(4, "big") + data)


def valid_frames():
    some = {"a/weight": torch.arange(6.0).view(2, 3), "b": torch.empty(0, 4), "c": torch.tensor(7)}
    about = {"fleet": "0123456789ab", "sender": 3, "stage": 1, "step": 300, "commit": START, "beats": [1, 2**40, 3]}
    yield frames.encode(FrameKind.BEAT, **about, positions=[5, 6, 7], busy=True)
    yield frames.encode(FrameKind.ROW, {"row": torch.randn(20)}, **about)
    yield frames.encode(FrameKind.COMMIT, some, **about, manifest=b'{"stage": 1}', signature=bytes(70))
    yield frames.encode(FrameKind.REQUEST, **about, history=[START, bytes(range(32))], number=1)
    yield frames.encode(FrameKind.SUM, some, **about, root=2, number=9)
    yield frames.encode(FrameKind.POOL, **about, history=[b'{"kind": "vote"}', bytes(70)])


def mutated(data, rng):
    """A few bytes flipped, put in, taken out or cut off; more often in the front, where the header is."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = min(int(len(out) * rng.random() ** 2), max(0, len(out) - 1))
        way = rng.randrange(8)
        if way < 4 and out:
            out[at] ^= 1 << rng.randrange(8)
        elif way < 5:
            out[at:at] = rng.randbytes(rng.randint(1, 4))
        elif way < 7:
            del out[at : at + rng.randint(1, 4)]
        else:
            del out[at:]
    return bytes(out)


def test_mutated_frames_are_frames_or_refused():
    rng, valid = random.Random(1), list(valid_frames())
    assert all(frame_or_refused(data) for data in valid)
    found = [frame_or_refused(mutated(valid[number % len(valid)], rng)) for number in range(12_000)]
    assert 500 < sum(found) < 11_500  # both happen


def claimed(*shapes, dtype="float32", rest=b""):
    """A frame whose header claims tensors of these shapes."""
    types = frames._message_types()
    specs = [types["TensorSpec"](name=str(n), dtype=dtype, shape=shape) for n, shape in enumerate(shapes)]
    header = types["Header"](kind=FrameKind.ROW, tensors=specs).SerializeToString()
    return len(header).to_bytes(4, "big") + header + rest


CLAIMS = {
    "10 GB": claimed((10 << 30,), dtype="uint8", rest=bytes(100)),
    "10 GB in two dimensions": claimed((50_000, 50_000), rest=bytes(100)),
    "1 GB ten times": claimed(*[(1 << 28,)] * 10, rest=bytes(100)),
    "as much as can be written": claimed(*[((1 << 40) - 1,) * 8] * 10),
    "nothing, but long": claimed((0, *[(1 << 40) - 1] * 7)),
    "one beyond all numbers": claimed((1 << 63,), (0,)),
    "nine dimensions": claimed((1,) * 9, rest=bytes(4)),
    "very many, all empty": claimed(*[(0,)] * 100_000),
    "a long header": (1 << 31).to_bytes(4, "big") + bytes(100),
    "a header alone": b"\xff\xff\xff\xff",
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_what_is_claimed_is_refused_and_not_allocated(claim):
    data = CLAIMS[claim]
    frame_or_refused(data)  # what is made once is made
    tracemalloc.start()
    try:
        with pytest.raises(BadFrame):
            frames.decode(data, MAX_BYTES)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(data) + 100_000
    finally:
        tracemalloc.stop()


def test_a_tensor_that_is_named_twice_is_refused():
    data = frames.encode(FrameKind.SUM, {"a": torch.ones(1), "b": torch.ones(1)})
    assert frames.decode(data, MAX_BYTES).tensors.keys() == {"a", "b"}
    with pytest.raises(BadFrame, match="twice"):
        frames.decode(data.replace(b"\n\x01b", b"\n\x01a"), MAX_BYTES)


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


# commits

FLEET, AGENTS = "0123456789ab", 5


def signature(agent, data):
    return hashlib.sha256(b"%d " % agent + data).digest()


def check(agent, data, found):
    return signature(agent, data) == found


def commit(stage=0, grower=0, living=(0, 1, 2), before=START, values=None, fleet=FLEET):
    values = {"w": torch.ones(2, 3), "head": torch.arange(3)} if values is None else values
    identity = NodeIdentity(grower, fleet, lambda data: signature(grower, data), check)
    return history.sign_commit(identity, stage, living, before, values)


def checked(one):
    return history.checked(one, FLEET, AGENTS, check)


@given(st.integers(0, 9), st.integers(0, AGENTS - 1), st.sets(st.integers(0, AGENTS - 1), min_size=1), tensors())
def test_a_commit_that_is_made_is_one_that_fits(task, grower, living, values):
    one = commit(task, grower, living, START, values)
    assert checked(one) is one
    assert one.is_complete
    assert one.facts.living == sorted(living)
    fewer = dict(list(one.tensors.items())[1:])
    assert checked(one._replace(tensors=fewer)).is_complete == (not values)


@given(st.data())
def test_a_commit_that_is_altered_is_refused(data):
    one = commit(2, 3)
    manifest, sign = bytearray(one.manifest), bytearray(one.signature)
    at, way = data.draw(st.integers(0, len(manifest) - 1)), data.draw(st.integers(1, 255))
    manifest[at] ^= way
    sign[data.draw(st.integers(0, len(sign) - 1))] ^= way
    tensor, extra = one.tensors["w"].clone(), data.draw(st.binary(min_size=1, max_size=3))
    tensor.view(torch.uint8).view(-1)[data.draw(st.integers(0, 23))] ^= way
    values, weight = one.tensors, one.tensors["w"]
    alterations = [
        *({"manifest": other} for other in (bytes(manifest), one.manifest + extra, one.manifest[:at])),
        *({"signature": other} for other in (bytes(sign), b"", signature(2, one.manifest))),
        *({"tensors": {**values, "w": other}} for other in (tensor, weight.view(3, 2), weight.view(torch.uint8))),
        *({"tensors": other} for other in ({**values, "more": torch.ones(1)}, {"w": values["head"]})),
    ]
    for altered in alterations:
        with pytest.raises(BadFrame):
            checked(one._replace(**altered))


@pytest.mark.parametrize(
    "changes",
    [{"fleet": "ba9876543210"}, {"grower": AGENTS}, {"living": []}, {"living": [0, AGENTS]}, {"stage": 1 << 32}],
    ids=str,
)
def test_a_signed_commit_of_elsewhere_is_refused(changes):
    with pytest.raises(BadFrame, match="does not fit this fleet"):
        checked(commit(**changes))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=300)
@given(st.sampled_from(["fleet", "stage", "grower", "part", "before", "tensors", "all", "none"]), json_values)
def test_any_manifest_fits_or_is_refused(field, value):
    """Also one that its grower signed."""
    facts = json.loads(commit().manifest)
    facts = value if field == "all" else {**facts, field: value}
    manifest = json.dumps(facts).encode()
    one = Commit(manifest, signature(0, manifest), {})
    try:
        assert checked(one) is one
    except BadFrame:
        return
    assert history.best([one, one]) is one
    assert isinstance(one.is_complete, bool)
    History(START, ()).take(one)


@pytest.mark.parametrize("manifest", [b"[" * 200_000, b'{"a":' * 200_000, b"9" * 10_000, b"\xff\xfe\x00", b""], ids=len)
def test_a_manifest_that_cannot_be_read_is_refused(manifest):
    with pytest.raises(BadFrame):
        checked(Commit(manifest, signature(0, manifest), {}))


some_commits = st.builds(
    commit,
    grower=st.integers(0, AGENTS - 1),
    living=st.sets(st.integers(0, AGENTS - 1), min_size=1),
    values=st.sampled_from([{"w": torch.ones(1)}, {"w": torch.zeros(1)}]),
)


@given(some_commits, some_commits, some_commits)
def test_of_different_commits_one_is_preferred_and_everyone_agrees(a, b, c):
    orders = itertools.permutations([a, b, c])
    assert {history.best(order).id for order in orders} == {min((a, b, c), key=lambda one: one.rank).id}
    assert (a.rank == b.rank) == (a.id == b.id)
    if len(a.facts.living) < len(b.facts.living):
        assert history.best([a, b]) == b


def past(*living, values=None):
    """A stage each, grown by the lowest of these agents."""
    out = History(START, {"head"})
    for task, agents in enumerate(living):
        assert out.take(commit(task, min(agents), agents, out.newest_id, values)) == 0
    assert out.newest_id == out.ids[-1]
    return out


some_agents = st.sets(st.integers(0, AGENTS - 1), min_size=1)


@given(st.lists(some_agents, max_size=3), st.lists(some_agents, max_size=3), st.lists(some_agents, max_size=3))
def test_what_is_lacked_and_taken_makes_histories_equal(common, ours, theirs):
    a, b = past(*common, *ours), past(*common, *theirs)
    for _ in range(2):
        for source, sink in ((a, b), (b, a)):
            for one in source.lacking(sink.ids):
                sink.take(one)
    assert a.ids == b.ids
    assert a.lacking(b.ids) == []
    assert len(a.commits) >= len(common)


def test_an_empty_history_lacks_all_and_takes_them_in_order():
    full, empty = past({0}, {1}, {2}), History(START, {"head"})
    assert [one.facts.stage for one in full.lacking(empty.ids)] == [0, 1, 2]
    assert empty.take(full.commits[1]) is None  # not the next
    assert [empty.take(one) for one in full.lacking(empty.ids)] == [0, 0, 0]
    assert [empty.take(one) for one in full.commits] == [None] * 3  # known
    assert empty.ids == full.ids


def test_the_commit_of_the_larger_part_replaces_and_counts_what_it_replaced():
    ours = past({0, 1}, {0, 1}, {0, 1}, {0, 1})
    small, large = commit(1, 2, {2}, ours.ids[1]), commit(1, 2, {2, 3, 4}, ours.ids[1])
    before = ours.ids
    assert ours.take(small) is None
    assert ours.take(commit(1, 2, {2, 3, 4}, START)) is None  # another past
    assert ours.ids == before
    assert ours.take(large) == 3
    assert ours.ids == [*before[:2], large.id]


def test_of_old_commits_only_heads_are_kept():
    ours = past({0}, {0}, {0})
    assert [set(one.tensors) for one in ours.commits] == [{"head"}, {"head"}, {"w", "head"}]
    assert [one.is_complete for one in ours.commits] == [False, False, True]
    assert all(checked(one) is one for one in ours.commits)


# commits, where tasks open with one


class Stages(NamedTuple):
    """Of tasks of which some open with a commit of their own: which those are, and all commits whole."""

    openings: list[int]
    commits: list[Commit]

    def history(self):
        return History(START, {"head", "own"}, self.openings)

    def past(self, stages=None):
        """A history that took the first of them."""
        out = self.history()
        for one in self.commits[:stages]:
            assert out.take(one) == 0
        return out


def left(number, opens):
    """What a stage leaves: directions, own and free; or the body, the head, and coordinates of the own directions."""
    names = ("own", "free") if opens else ("w", "head", "own")
    return {name: torch.full((2,), 10.0 * number + place) for place, name in enumerate(names)}


@st.composite
def stages(draw, min_tasks=1):
    opens = [draw(st.booleans()) for _ in range(draw(st.integers(min_tasks, 4)))]
    kinds = [kind for first in opens for kind in ([True, False] if first else [False])]
    kinds = kinds[: len(kinds) - draw(st.integers(0, int(opens[-1])))]  # the last task may be open
    commits, before = [], START
    for number, kind in enumerate(kinds):
        commits.append(commit(number, 0, {0, 1}, before, left(number, kind)))
        before = commits[-1].id
    return Stages([number for number, kind in enumerate(kinds) if kind], commits)


def state_of(case):
    """The body, what each finished task keeps, and the directions of the open one: as a peer makes its state."""
    body, kept, directions = None, [], {}
    for number, one in enumerate(case.commits):
        if number in case.openings:
            directions = bits(one.tensors)
        else:
            tensors = bits(one.tensors)
            body = tensors.get("w")
            kept.append((tensors["head"], tensors["own"], directions.get("own")))
            directions = {}
    return body, kept, directions


@given(stages())
def test_all_is_kept_of_the_newest_end_and_the_opening_after_it(case):
    ours = case.past()
    ends = [number for number in range(len(case.commits)) if number not in case.openings]
    for number, one in enumerate(ours.commits):
        whole = case.commits[number].tensors
        assert set(one.tensors) == (set(whole) if number >= max(ends, default=0) else set(whole) & {"head", "own"})
        assert checked(one) is one
    assert ours.is_complete
    assert ours.held == ours.ids
    assert state_of(ours) == state_of(case)


@given(stages(), st.data())
def test_who_was_away_gets_the_state_of_those_who_went_on(case, data):
    """From whatever it had, however far whoever answers first has gone, and where the answer breaks off."""
    full = case.past()
    ours = case.past(data.draw(st.integers(0, len(case.commits))))
    answer = full.lacking(ours.held)
    assert [one.id for one in answer] == full.ids[len(ours.ids) :]
    for one in answer[: data.draw(st.integers(0, len(answer)))]:
        assert ours.take(one) == 0
    for _ in range(2):  # it asks again, and again
        for one in full.lacking(ours.held):
            ours.take(one)
    assert ours.ids == full.ids
    assert ours.is_complete
    assert state_of(ours) == state_of(case)
    assert full.lacking(ours.held) == []


def in_part(one):
    return one._replace(tensors={name: value for name, value in one.tensors.items() if name in ("head", "own")})


@given(stages(), st.data())
def test_what_came_in_part_and_is_needed_is_asked_for_and_completed_in_its_place(case, data):
    """The end of a task may come in part from one that is further on, and an opening stand after it already."""
    whole, ours = case.past(), case.history()
    parts = data.draw(st.lists(st.booleans(), min_size=len(case.commits), max_size=len(case.commits)))
    for one, part in zip(case.commits, parts, strict=True):
        assert ours.take(in_part(one) if part else one) == 0
    ids, first = ours.ids, max((n for n in range(len(parts)) if n not in case.openings), default=0)
    lacking = [number for number in range(first, len(parts)) if parts[number]]
    assert ours.is_complete == (not lacking)
    assert ours.held == ids[: min(lacking, default=len(parts)) + 1]
    for number, one in enumerate(case.commits):
        assert ours.is_completed_by(one) == ours.accepts(one) == (number in lacking)
        assert not ours.is_completed_by(in_part(one))
    for one in whole.lacking(ours.held):
        ours.add_candidate(one)
    assert {one.id for one in ours.candidates} == {case.commits[number].id for number in lacking}
    for one in data.draw(st.permutations(ours.candidates)):
        assert ours.take(one) == 0
        assert ours.ids == ids  # nothing that came after it is lost
    assert ours.is_complete
    assert ours.candidates == []
    assert state_of(ours) == state_of(case)


@given(stages(), st.data())
def test_the_commit_of_the_larger_part_replaces_an_opening_or_an_end_and_all_after_it(case, data):
    ours = case.past()
    stage = data.draw(st.integers(0, len(case.commits) - 1))
    other = commit(stage, 2, {2, 3, 4}, ours.ids[stage], left(100 + stage, stage in case.openings))
    assert ours.is_replaced_by(other)
    assert ours.take(other) == len(case.commits) - stage
    assert ours.ids == [*case.past(stage).ids, other.id]
    assert state_of(ours)[2] == (bits(other.tensors) if stage in case.openings else {})
    theirs = case.past(stage)
    theirs.take(other)
    for one in theirs.lacking(ours.held):  # the end before an opening was kept in part only, and is needed again
        ours.take(one)
    assert ours.is_complete
    assert state_of(ours) == state_of(theirs)


@given(stages(), st.data())
def test_what_is_loaded_again_makes_a_state_whatever_was_damaged(case, data):
    ours, again = case.past(), case.history()
    with tempfile.TemporaryDirectory() as folder:
        ours.save(Path(folder))
        damaged = data.draw(st.none() | st.integers(1, len(case.commits)))
        if damaged:
            (Path(folder) / f"{damaged}.safetensors").write_bytes(b"no tensors")
        again.load(Path(folder), FLEET, AGENTS, check)
    assert again.is_complete
    assert again.ids == ours.ids[: len(again.ids)]
    if damaged is None:
        assert again.ids == ours.ids
        assert state_of(again) == state_of(case)
    else:
        assert len(again.commits) < damaged


# small things


def test_what_a_neighbour_does_not_take_is_bounded():
    """The oldest rows make room; a neighbour that takes nothing else either loses its link."""
    link = Link(1, 4, Counter())
    for number in range(10):
        link.put(b"%d" % number, may_drop=True)
    assert [data for data, _ in link._out] == [b"6", b"7", b"8", b"9"]
    for _ in range(MAX_WAITING - 4):
        link.put(b"", may_drop=False)
    assert (link.open, link.waiting) == (True, MAX_WAITING - 4)
    link.put(b"", may_drop=False)
    assert (link.open, link.waiting, link.why) == (False, 0, "it takes nothing")
    assert list(link.frames()) == []


@given(st.sets(st.tuples(st.integers(0, 30), st.integers(0, 3))))
def test_spans_are_the_steps_that_were_missed(missed):
    found = peer.spans(missed)
    again = {
        (step, int(who)) for who, spans in found.items() for first, last in spans for step in range(first, last + 1)
    }
    assert again == missed
    for spans in found.values():
        assert all(first <= last for first, last in spans)
        assert all(left[1] + 1 < right[0] for left, right in itertools.pairwise(spans))


@given(st.integers(0, 2**40), st.integers(0, 50), st.integers(1, 20))
def test_succession_starts_with_the_chosen_and_names_everyone_once(seed, task, agents):
    order = seeding.succession(seed, task, agents)
    assert order[0] == seeding.choose(seed, task, agents)
    assert sorted(order) == list(range(agents))
    assert order == seeding.succession(seed, task, agents)


def test_a_commit_of_which_only_some_is_held_is_asked_for_and_completed():
    """A relay may strip tensors off: all of it takes the place of what is left."""
    ours, full = History(START, {"head"}), commit()
    assert ours.take(full._replace(tensors={"head": full.tensors["head"]})) == 0
    assert not ours.is_complete
    assert ours.held == [START]
    assert ours.is_completed_by(full)
    assert ours.take(full) == 0
    assert ours.is_complete
    assert ours.held == ours.ids == [START, full.id]


def test_a_history_that_is_saved_is_read_back_as_far_as_it_fits(tmp_path):
    ours, again, spoiled = past({0}, {1}, {2}), History(START, {"head"}), History(START, {"head"})
    ours.save(tmp_path)
    again.load(tmp_path, FLEET, AGENTS, check)
    assert again.ids == ours.ids
    assert [bits(one.tensors) for one in again.commits] == [bits(one.tensors) for one in ours.commits]
    (tmp_path / "3.safetensors").write_bytes(b"spoiled")
    spoiled.load(tmp_path, FLEET, AGENTS, check)
    assert spoiled.ids == [START]  # of the first two only heads were kept


# decisions

AHEAD = 10
positions = st.builds(Position, st.integers(0, 3), st.integers(0, 40))
ids = st.sampled_from([b"a", b"b"])


@given(positions, ids, positions, ids)
def test_a_row_is_kept_if_it_is_of_now_or_later_and_not_of_this_stage_after_another_commit(row, theirs, own, ours):
    fate = decisions.row_fate(row, theirs, own, ours, AHEAD)
    foreign = row.stage == own.stage and theirs != ours
    assert (fate is RowFate.FOREIGN) == foreign
    assert (fate is RowFate.KEEP) == (row >= own and not foreign)
    if fate is RowFate.BEHIND:
        assert row < own <= row._replace(step=row.step + AHEAD)
    if fate is RowFate.LATE:
        assert row < own
        assert row._replace(step=row.step + AHEAD) < own


@given(
    st.booleans(), st.sampled_from([None, True, False]), ids, st.integers(3, 4), st.sampled_from([0.0, np.nan, np.inf])
)
def test_a_row_is_mixed_if_it_fits_and_of_a_pair_both_or_neither(hears, we_hear, commit_id, size, value):
    row, own = ReceivedRow(torch.tensor([1.0, value, 2.0]), hears, b"a"), torch.zeros(size)
    usable = decisions.is_usable(row, commit_id, own, we_hear)
    assert not decisions.is_usable(row, commit_id, own.to(torch.uint8), we_hear)  # bytes are due
    assert usable == (commit_id == b"a" and size == 3 and value == 0 and (we_hear is None or (hears and we_hear)))
    back = ReceivedRow(row.row_D, bool(we_hear), b"a")  # what the other side sees of us
    if we_hear is not None:
        assert usable == decisions.is_usable(back, commit_id, own, hears)


@given(st.sets(st.integers(0, 6)), st.dictionaries(st.integers(0, 6), positions), positions, st.sets(st.integers(0, 6)))
def test_a_step_waits_for_live_neighbours_whose_row_has_not_come(neighbours, live, own, arrived):
    waited_for = decisions.awaited(neighbours, live, own, arrived)
    assert set(waited_for) == {peer for peer in neighbours - arrived if live.get(peer, Position(99, 0)) <= own}
    assert decisions.awaited(neighbours, live, own, arrived | set(waited_for)) == []
    later = own._replace(step=own.step + 1)
    assert set(decisions.awaited(neighbours, live, later, arrived)) >= set(waited_for)


@given(positions, positions, st.booleans(), st.floats(0, 100), st.floats(0, 100))
def test_who_is_excused_is_busy_behind_us_and_heard_just_now_and_not_for_ever(at, own, busy, age, waited):
    timeouts = PeersConfig(deadline=1, silence=9, meet=60)
    excused = decisions.is_excused(PeerStatus(at, b"", busy, heard_at=0), own, age, waited, timeouts)
    assert excused == (busy and at < own and age < 3 and waited <= 60)
    assert not decisions.is_excused(None, own, age, waited, timeouts)


@given(st.lists(positions, min_size=2, max_size=6))
def test_of_nodes_that_wait_for_those_behind_the_last_goes_on(nodes):
    waits_for = [
        decisions.far_behind({j: at for j, at in enumerate(nodes) if j != i}, own, AHEAD) for i, own in enumerate(nodes)
    ]
    assert waits_for[nodes.index(min(nodes))] == []  # so nobody waits in a circle
    for i, behind in enumerate(waits_for):
        assert all(nodes[j] < nodes[i] and i not in waits_for[j] for j in behind)
        same_stage = [j for j, at in enumerate(nodes) if at.stage == nodes[i].stage]
        assert {j for j in behind if j in same_stage} == {
            j for j in same_stage if nodes[i].step - nodes[j].step > AHEAD
        }


statuses = st.builds(PeerStatus, positions, ids, st.booleans(), st.just(0.0))
newest_rows = st.builds(NewestRow, st.integers(0, 40), st.just(torch.ones(2)))


@given(
    positions,
    ids,
    st.lists(statuses, max_size=5),
    st.lists(newest_rows, max_size=4),
    st.integers(1, 40),
    st.integers(1, 3),
)
def test_a_returning_agent_joins_after_a_row_that_was_sent_or_at_the_end(own, ours, others, newest, steps, each):
    training = steps * each
    rounds = Rounds(training, training + 3, 2, step=each)
    point = decisions.join_point(own, ours, others, newest, rounds)
    steps = [other.position.step for other in others if (other.position.stage, other.commit) == (own.stage, ours)]
    if point is None:
        return
    assert steps
    assert all(other.position.stage <= own.stage for other in others)  # commits come first
    if point.agreed:
        assert point.step == rounds.all <= max(steps)
    elif point.step:
        ahead = [point.step - row.step - decisions.JOIN_AHEAD for row in newest]
        assert any(0 <= more < each for more in ahead)
        assert point.step % each == 0  # a step's first round
        assert point.step < training
    else:
        assert max(steps) <= 1


@given(st.dictionaries(st.integers(0, 6), st.floats(0.1, 0.5), max_size=5), st.data())
def test_whoever_is_not_heard_has_no_weight_and_there_is_a_sender_whoever_is_heard(weights, data):
    heard = {peer: torch.tensor([peer + 10, 0], dtype=torch.uint8) for peer in weights if data.draw(st.booleans())}
    sent = SentRow(torch.tensor([99, 0], dtype=torch.uint8), weights, {})
    packed_HB, senders_AK, weights_AK = as_heard(sent, heard, torch.zeros(3, dtype=torch.float64))
    assert packed_HB.shape == (1 + len(heard), 2)
    assert senders_AK.shape == weights_AK.shape == (1, max(1, len(weights)))
    assert weights_AK.dtype == torch.float64
    found = zip(weights, packed_HB[senders_AK[0], 0].tolist(), weights_AK[0].tolist(), strict=False)
    expected = [(peer, peer + 10, weight) if peer in heard else (peer, 99, 0) for peer, weight in weights.items()]
    assert list(found) == expected
    if not heard:
        assert weights_AK.sum() == 0


ROWS = {
    "whole": torch.ones(2),
    "not finite": torch.tensor([1.0, np.nan]),
    "short": torch.ones(1),
    "bytes": torch.ones(2, dtype=torch.uint8),
}


@given(st.dictionaries(positions, st.tuples(ids, st.sampled_from(list(ROWS)))), positions, ids)
def test_the_newest_row_is_the_furthest_that_one_can_start_from(rows, own, ours):
    received = {at: ReceivedRow(ROWS[what], True, theirs) for at, (theirs, what) in rows.items()}
    fitting = [
        at for at, (theirs, what) in rows.items() if what == "whole" and theirs == ours and at.stage == own.stage
    ]
    newest = decisions.newest_row(received, own, ours, Rounds(1, 1, 2))
    assert (newest.step if newest else None) == max((at.step for at in fitting if at >= own), default=None)


def test_of_rows_that_are_not_coordinates_none_is_started_from():
    received = {Position(0, step): ReceivedRow(ROWS["whole"], True, b"a") for step in (4, 5, 6, 7)}
    tracking = Rounds(40, 43, 2, step=4, coords=2)  # two rounds of coordinates, two of what is tracked
    assert decisions.newest_row(received, Position(0, 0), b"a", tracking).step == 5
    assert decisions.newest_row(received, Position(0, 6), b"a", tracking) is None
    agreeing = {Position(0, 42): ReceivedRow(ROWS["whole"], True, b"a")}
    assert decisions.newest_row(agreeing, Position(0, 6), b"a", tracking).step == 42


@given(st.lists(ids, max_size=6), st.lists(ids, max_size=6))
def test_what_a_neighbour_lacks_is_all_after_the_common_start(ours, theirs):
    length = decisions.common_length(ours, theirs)
    assert ours[:length] == theirs[:length]
    assert ours[length : length + 1] != theirs[length : length + 1] or length == len(ours) == len(theirs)
    assert length == decisions.common_length(theirs, ours)


@given(st.sets(st.integers(0, 9), min_size=1), st.sets(st.integers(0, 9), min_size=1))
def test_the_commit_of_the_larger_part_stands_then_that_with_the_lowest_agent(ours, theirs):
    ranks = [
        decisions.commit_rank(sorted(part), min(part), bytes([number])) for number, part in enumerate((ours, theirs))
    ]
    if len(ours) != len(theirs):
        assert (ranks[0] < ranks[1]) == (len(ours) > len(theirs))
    elif min(ours) != min(theirs):
        assert (ranks[0] < ranks[1]) == (min(ours) < min(theirs))
