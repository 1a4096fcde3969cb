"""The laws of what peers send, believe and keep; no network here."""

import copy
import hashlib
import itertools
import json
import random
import time
import tracemalloc
from types import SimpleNamespace

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
from codecl.peers import frames, links
from codecl.peers import history as charts
from codecl.peers import membership as members
from codecl.peers.frames import BadFrame, Kind
from codecl.peers.history import Archive, Chart
from codecl.peers.membership import STEPS, Members
from codecl.peers.neighbours import Neighbours

pytestmark = pytest.mark.alone

MOST = 1 << 20
START = bytes(32)
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
numbers = st.integers(0, 2**64 - 1)


# frames


@st.composite
def tensors(draw, most=4):
    """Of every type that travels; bytes of any kind, so with every value that there is."""
    out = {}
    for name in draw(st.lists(words, max_size=most, unique=True)):
        kind = draw(st.sampled_from(list(frames.DTYPES.values())))
        shape = draw(st.lists(st.integers(0, 3), max_size=4))
        data = torch.randint(0, 256, (int(np.prod(shape)) * kind.itemsize,), dtype=torch.uint8)
        out[name] = data.view(kind).view(shape)
    return out


fields = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("sender", "task", "step", "root", "number"), numbers),
        **dict.fromkeys(("chart", "manifest", "signature"), st.binary(max_size=40)),
        **dict.fromkeys(("busy", "degraded", "hears"), st.booleans()),
        **dict.fromkeys(("beats", "places"), st.lists(numbers, max_size=4)),
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


@given(st.sampled_from(Kind), tensors(), fields)
def test_decode_undoes_encode(kind, values, about):
    data = frames.encode(kind, values, **about)
    found = frames.decode(data, MOST)
    assert found.kind is kind
    assert bits(found.tensors) == bits(values)
    assert {name: getattr(found.header, name) for name in about} == about
    assert found.size == sum(value.numel() * value.element_size() for value in values.values())
    assert found.at == (about.get("task", 0), about.get("step", 0))


def test_what_is_decoded_is_ones_own():
    """Nothing that is done to a tensor reaches the bytes that it came in."""
    data = frames.encode(Kind.ROW, {"row": torch.ones(3)})
    frames.decode(data, MOST).tensors["row"].zero_()
    assert frames.decode(data, MOST).tensors["row"].tolist() == [1, 1, 1]


def frame_or_refused(data):
    """Whether it is a frame. What refuses it can be logged: one line, and not a long one."""
    try:
        return isinstance(frames.decode(data, MOST), frames.Frame)
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
    about = {"fleet": "0123456789ab", "sender": 3, "task": 1, "step": 300, "chart": START, "beats": [1, 2**40, 3]}
    yield frames.encode(Kind.BEAT, **about, places=[5, 6, 7], busy=True)
    yield frames.encode(Kind.ROW, {"row": torch.randn(20)}, **about)
    yield frames.encode(Kind.CHART, some, **about, manifest=b'{"task": 1}', signature=bytes(70))
    yield frames.encode(Kind.WANT, **about, history=[START, bytes(range(32))], number=1)
    yield frames.encode(Kind.SUM, some, **about, root=2, number=9)


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
    kinds = frames._kinds()
    forms = [kinds["Form"](name=str(n), dtype=dtype, shape=shape) for n, shape in enumerate(shapes)]
    header = kinds["Header"](kind=Kind.ROW, tensors=forms).SerializeToString()
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
            frames.decode(data, MOST)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(data) + 100_000
    finally:
        tracemalloc.stop()


def test_a_tensor_that_is_named_twice_is_refused():
    data = frames.encode(Kind.SUM, {"a": torch.ones(1), "b": torch.ones(1)})
    assert frames.decode(data, MOST).tensors.keys() == {"a", "b"}
    with pytest.raises(BadFrame, match="twice"):
        frames.decode(data.replace(b"\n\x01b", b"\n\x01a"), MOST)


# the graph of the living


@st.composite
def graphs(draw, least=2):
    """A connected graph, directed or not, and some who died; at least one lives."""
    agents, seed = draw(st.integers(least, 9)), draw(st.integers(0, 10**6))
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
        assert died.died == sorted(dead - {me})
        back = one.heal(())
        assert (back.returned, back.linked, back.unlinked) == (died.died, died.unlinked, died.linked)
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
    return clock, [Members(3, me, silence, clock) for me in range(3)]


def tell(sender, hearer):
    return hearer.merge(**sender.known())


def test_who_is_silent_is_dead_until_it_is_heard_again():
    clock, (zero, one, two) = three()
    one.beat((0, 1))
    assert tell(one, zero) == [1]
    clock.now += 9
    two.beat((0, 2))
    assert tell(two, zero) == [2]
    assert zero.dead == frozenset()
    clock.now += 2
    assert zero.dead == {1}
    assert tell(one, zero) == []  # the same sign again is none
    assert zero.dead == {1}
    one.beat((0, 1))
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
        assert (zero.beats[1], *zero.places[1]) == newest


@given(st.lists(numbers, max_size=6), st.lists(numbers, max_size=6))
def test_signs_of_another_number_of_agents_are_refused(beats, places):
    assume((len(beats), len(places)) != (3, 3))
    _, (zero, _, _) = three()
    before = copy.deepcopy(zero.known())
    with pytest.raises(BadFrame):
        zero.merge(beats, places)
    assert zero.known() == before


def test_signs_spread_from_neighbour_to_neighbour():
    clock, (zero, one, two) = three()
    two.beat((1, 7))
    tell(two, one)
    assert tell(one, zero) == [2]
    assert zero.places[2] == (1, 7)
    assert zero.unheard == [1]
    clock.now += 11
    two.beat((1, 8))
    assert zero.dead == {1, 2}
    tell(two, one)
    assert tell(one, zero) == [2]
    assert zero.dead == {1}


def test_signs_of_an_earlier_life_are_gone_on_from():
    _, (zero, one, _) = three()
    later = int(time.time() * 1000) + 5000
    zero.merge([0, later, 0], [0, 9, 0])
    tell(zero, one)
    one.beat((0, 0))
    assert one.beats[1] == later + 1
    assert tell(one, zero) == [1]
    assert zero.places[1] == (0, 0)


def test_nobody_is_silenced_by_a_sign_from_the_far_future(monkeypatch):
    """Whoever lies about the sign of another, or of us, changes for how long it is believed: not for ever."""
    clock, (zero, one, two) = three()
    monkeypatch.setattr(members, "time", SimpleNamespace(time=clock))
    two.merge([2**64 - 1] * 3, [0] * 3)
    tell(two, zero)
    tell(two, one)
    for number in range(1, 4):
        clock.now += 11
        assert zero.dead == {1, 2}
        one.beat((0, number))
        frames.encode(Kind.BEAT, **one.known())  # can still be sent
        assert tell(one, zero) == [1]
        assert zero.places[1] == (0, number)
        assert zero.dead == {2}


# charts

FLEET, AGENTS = "0123456789ab", 5


def signature(agent, data):
    return hashlib.sha256(b"%d " % agent + data).digest()


def check(agent, data, found):
    return signature(agent, data) == found


def chart(task=0, grower=0, part=(0, 1, 2), before=START, values=None, fleet=FLEET):
    values = {"w": torch.ones(2, 3), "head": torch.arange(3)} if values is None else values
    return charts.make(fleet, task, grower, part, before, values, lambda data: signature(grower, data))


def checked(one):
    return charts.checked(one, FLEET, AGENTS, check)


@given(st.integers(0, 9), st.integers(0, AGENTS - 1), st.sets(st.integers(0, AGENTS - 1), min_size=1), tensors())
def test_a_chart_that_is_made_is_one_that_fits(task, grower, part, values):
    one = chart(task, grower, part, START, values)
    assert checked(one) is one
    assert one.whole
    assert one.facts["part"] == sorted(part)
    fewer = dict(list(one.tensors.items())[1:])
    assert checked(one._replace(tensors=fewer)).whole == (not values)


@given(st.data())
def test_a_chart_that_is_altered_is_refused(data):
    one = chart(2, 3)
    manifest, sign = bytearray(one.manifest), bytearray(one.signature)
    at, way = data.draw(st.integers(0, len(manifest) - 1)), data.draw(st.integers(1, 255))
    manifest[at] ^= way
    sign[data.draw(st.integers(0, len(sign) - 1))] ^= way
    tensor, extra = one.tensors["w"].clone(), data.draw(st.binary(min_size=1, max_size=3))
    tensor.view(torch.uint8).view(-1)[data.draw(st.integers(0, 23))] ^= way
    for altered in (
        one._replace(manifest=bytes(manifest)),
        one._replace(manifest=one.manifest + extra),
        one._replace(manifest=one.manifest[:at]),
        one._replace(signature=bytes(sign)),
        one._replace(signature=b""),
        one._replace(signature=signature(2, one.manifest)),
        one._replace(tensors={**one.tensors, "w": tensor}),
        one._replace(tensors={**one.tensors, "w": one.tensors["w"].view(3, 2)}),
        one._replace(tensors={**one.tensors, "w": one.tensors["w"].view(torch.uint8)}),
        one._replace(tensors={**one.tensors, "more": torch.ones(1)}),
        one._replace(tensors={"w": one.tensors["head"]}),
    ):
        with pytest.raises(BadFrame):
            checked(altered)


@pytest.mark.parametrize(
    "changes",
    [{"fleet": "ba9876543210"}, {"grower": AGENTS}, {"part": []}, {"part": [0, AGENTS]}, {"task": 1 << 32}],
    ids=str,
)
def test_a_signed_chart_of_elsewhere_is_refused(changes):
    with pytest.raises(BadFrame, match="does not fit this fleet"):
        checked(chart(**changes))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=300)
@given(st.sampled_from(["fleet", "task", "grower", "part", "before", "tensors", "all", "none"]), json_values)
def test_any_manifest_fits_or_is_refused(field, value):
    """Also one that its grower signed."""
    facts = chart().facts
    facts = value if field == "all" else {**facts, field: value}
    manifest = json.dumps(facts).encode()
    one = Chart(manifest, signature(0, manifest), {})
    try:
        assert checked(one) is one
    except BadFrame:
        return
    assert charts.preferred(one, one) is False
    assert isinstance(one.whole, bool)
    Archive(START, ()).take(one)


@pytest.mark.parametrize("manifest", [b"[" * 200_000, b'{"a":' * 200_000, b"9" * 10_000, b"\xff\xfe\x00", b""], ids=len)
def test_a_manifest_that_cannot_be_read_is_refused(manifest):
    with pytest.raises(BadFrame):
        checked(Chart(manifest, signature(0, manifest), {}))


some_charts = st.builds(
    chart,
    grower=st.integers(0, AGENTS - 1),
    part=st.sets(st.integers(0, AGENTS - 1), min_size=1),
    values=st.sampled_from([{"w": torch.ones(1)}, {"w": torch.zeros(1)}]),
)


@given(some_charts, some_charts, some_charts)
def test_of_different_charts_one_is_preferred_and_everyone_agrees(a, b, c):
    better = charts.preferred
    assert not better(a, a)
    assert (better(a, b) + better(b, a)) == (a.id != b.id)
    assert not (better(a, b) and better(b, c)) or better(a, c)
    if len(a.facts["part"]) < len(b.facts["part"]):
        assert better(a, b)


def archive(*parts, values=None):
    """A task each, grown by the lowest of these agents."""
    out = Archive(START, {"head"})
    for task, part in enumerate(parts):
        assert out.take(chart(task, min(part), part, out.ids[-1], values)) == 0
    return out


part = st.sets(st.integers(0, AGENTS - 1), min_size=1)


@given(st.lists(part, max_size=3), st.lists(part, max_size=3), st.lists(part, max_size=3))
def test_what_is_lacked_and_taken_makes_archives_equal(common, ours, theirs):
    a, b = archive(*common, *ours), archive(*common, *theirs)
    for _ in range(2):
        for source, sink in ((a, b), (b, a)):
            for one in source.lacks(sink.ids):
                sink.take(one)
    assert a.ids == b.ids
    assert a.lacks(b.ids) == []
    assert len(a.charts) >= len(common)


def test_an_empty_archive_lacks_all_and_takes_them_in_order():
    full, empty = archive({0}, {1}, {2}), Archive(START, {"head"})
    assert [one.facts["task"] for one in full.lacks(empty.ids)] == [0, 1, 2]
    assert empty.take(full.charts[1]) is None  # not the next
    assert [empty.take(one) for one in full.lacks(empty.ids)] == [0, 0, 0]
    assert [empty.take(one) for one in full.charts] == [None] * 3  # known
    assert empty.ids == full.ids


def test_the_chart_of_the_larger_part_replaces_and_counts_what_it_replaced():
    ours = archive({0, 1}, {0, 1}, {0, 1}, {0, 1})
    small, large = chart(1, 2, {2}, ours.ids[1]), chart(1, 2, {2, 3, 4}, ours.ids[1])
    before = ours.ids
    assert ours.take(small) is None
    assert ours.take(chart(1, 2, {2, 3, 4}, START)) is None  # another past
    assert ours.ids == before
    assert ours.take(large) == 3
    assert ours.ids == [*before[:2], large.id]


def test_of_old_charts_only_heads_are_kept():
    ours = archive({0}, {0}, {0})
    assert [set(one.tensors) for one in ours.charts] == [{"head"}, {"head"}, {"w", "head"}]
    assert [one.whole for one in ours.charts] == [False, False, True]
    assert all(checked(one) is one for one in ours.charts)


# small things


def test_what_a_neighbour_does_not_take_is_bounded():
    """The oldest rows make room; a neighbour that takes nothing else either loses its link."""
    link = links.Link(1, 4)
    for number in range(10):
        link.put(b"%d" % number, may_drop=True)
    assert [data for data, _ in link._out] == [b"6", b"7", b"8", b"9"]
    for _ in range(links.MAX_WAITING - 4):
        link.put(b"", may_drop=False)
    assert (link.open, link.waiting) == (True, links.MAX_WAITING - 4)
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


def test_a_chart_of_which_only_a_part_is_held_is_asked_for_and_completed():
    """A relay may strip tensors off: what is left is a part, and the whole takes its place."""
    archive = Archive(bytes(32), {"weights/head"})
    tensors = {"weights/head": torch.ones(2), "weights/body": torch.zeros(3)}
    chart = charts.make("f", 0, 0, [0], bytes(32), tensors, lambda data: b"")
    assert archive.take(chart._replace(tensors={"weights/head": tensors["weights/head"]})) == 0
    assert not archive.whole
    assert archive.asked == [bytes(32)]
    assert archive.completes(chart)
    assert archive.take(chart) == 0
    assert archive.whole
    assert archive.asked == archive.ids == [bytes(32), chart.id]
