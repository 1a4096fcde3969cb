"""The laws of commits, and of which an agent holds; no network here."""

import hashlib
import itertools
import json
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("grpc")

from codecl.peers import history
from codecl.peers.frames import BadFrame
from codecl.peers.history import Commit, History, NodeIdentity
from tests.laws.test_frames import START, bits, tensors

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


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
