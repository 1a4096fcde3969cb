"""What one member can make another keep or wait for is bounded."""

import threading
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("grpc")

from codecl.peers import frames, history, limits
from codecl.peers.frames import BadFrame, FrameKind
from codecl.peers.history import Commit, History
from codecl.peers.link import MAX_WAITING, Link
from codecl.peers.membership import Membership
from codecl.peers.patience import MAX_LATES, Patience
from codecl.peers.rows import ReceivedRows


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@given(
    limit=st.floats(0.5, 100),
    parts=st.lists(st.tuples(st.booleans(), st.floats(0.01, 3)), max_size=200),
)
def test_no_agent_costs_a_stage_more_than_the_limit_and_as_long_again(limit, parts):
    """A stage of work and of waiting for agent 1, as long as it is waited for."""
    clock = Clock()
    patience = Patience(limit, clock)
    worked = waited = 0.0
    for works, seconds in parts:
        if works:
            worked += seconds
        elif not patience.is_over(1):
            waited += seconds
            patience.charge([1], seconds)
        else:
            continue
        clock.now += seconds
    assert waited <= limit + worked + 3  # one more part is waited for before it is seen
    assert not patience.is_over(2)


def test_patience_begins_anew_with_a_stage_and_may_be_without_end():
    clock = Clock()
    patience = Patience(1, clock)
    clock.now = 10
    patience.charge([1, 2], 9)
    assert [patience.is_over(agent) for agent in (1, 2, 3)] == [True, True, False]
    clock.now = 30  # as long again
    assert not patience.is_over(1)
    clock.now = 10
    patience.new_stage()
    assert not patience.is_over(1)
    endless = Patience(None, clock)
    endless.charge([1], 1e9)
    assert not endless.is_over(1)


def test_all_wait_as_long_for_a_commit_whoever_should_grow_it():
    """So that who gave up on one does not give up on the next while others still wait for the first."""
    clock = Clock()
    patience = Patience(4, clock)
    clock.now = 10
    patience.charge([1], 9)
    assert not patience.is_over_for_commit(13.9)
    clock.now = 24
    assert patience.is_over_for_commit(14.1)
    assert not patience.is_over_for_commit(13.9)  # the next, who begins later, has as long
    clock.now = 40
    assert patience.is_over_for_commit(14.1)
    assert not Patience(None, clock).is_over_for_commit(1e9)


def test_one_who_always_says_that_we_are_late_is_not_always_heeded():
    patience = Patience(1)
    for _ in range(MAX_LATES):
        assert patience.heeds(1)
        patience.joined_again(1)
    patience.joined_again(None)
    assert (patience.heeds(1), patience.heeds(2)) == (False, True)


# what waits


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


def test_a_link_is_closed_when_too_many_bytes_wait():
    cancelled = []
    link = Link(1, 4, Counter(), max_bytes=1000)
    link.cancel = lambda: cancelled.append(True)
    for _ in range(20):
        link.put(bytes(400), may_drop=True)  # of rows there are four at most
    assert link.has_room()
    link.put(bytes(600))
    assert not link.has_room()
    assert link.open
    link.put(bytes(600))
    assert (link.open, link.why, cancelled) == (False, "it takes nothing", [True])


def test_what_was_taken_makes_room():
    link = Link(1, 4, Counter(), max_bytes=1000)
    out = link.frames()
    for _ in range(20):
        link.put(bytes(600))
        assert not link.has_room()
        next(out)
        assert link.has_room()
    assert link.open


@pytest.mark.parametrize(("size", "seconds", "stays"), [(10, 1.0, True), (10, 31.0, False), (10_000_000, 31.0, True)])
def test_a_frame_may_be_on_its_way_as_long_as_its_size_allows(monkeypatch, size, seconds, stays):
    clock = Clock()
    monkeypatch.setattr("codecl.peers.link.time", SimpleNamespace(monotonic=clock))
    link = Link(1, 4, Counter())
    out = link.frames()
    link.put(bytes(size))
    next(out)
    clock.now = seconds
    link.put(b"")
    assert link.open is stays


def test_a_link_with_nothing_on_its_way_may_be_silent(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("codecl.peers.link.time", SimpleNamespace(monotonic=clock))
    link, taken = Link(1, 4, Counter()), []
    reader = threading.Thread(target=lambda: [taken.append(data) for data in link.frames()])
    reader.start()
    for number in range(5):
        clock.now += 1000
        link.put(b"%d" % number)
        assert link.open
        while len(taken) <= number or link._until != float("inf"):
            pass
    link.close()
    reader.join()
    assert len(taken) == 5


def row_frame(step, numbers, stage=0):
    fields = {"fleet": "f", "sender": 1, "stage": stage, "step": step, "commit": bytes(32)}
    return frames.decode(frames.encode(FrameKind.ROW, {"row": torch.ones(numbers)}, **fields), 1 << 30)


@given(sizes=st.lists(st.integers(1, 50), max_size=60))
def test_rows_of_a_neighbour_are_bounded_in_bytes(sizes):
    """Those of a later stage may be larger than ours; the newest is always kept."""
    rows = ReceivedRows(2, torch.float32, 8)
    rows.max_row_bytes = 400
    rows.expect(torch.ones(10))
    for step, size in enumerate(sizes):
        rows.keep(1, row_frame(step, size, stage=1))
        held = sum(row.row_D.nbytes for row in rows.of[1].values())
        assert held <= max(8 * 40, 4 * size)
        assert (1, step) in rows.of[1]


def test_a_row_larger_than_any_task_has_is_refused():
    rows = ReceivedRows(2, torch.float32, 8)
    rows.max_row_bytes = 400
    rows.check(torch.ones(100), of_this_stage=False)
    with pytest.raises(BadFrame, match="404 bytes; 400 are the most"):
        rows.check(torch.ones(101), of_this_stage=False)
    with pytest.raises(BadFrame, match="404 bytes; 400 are the most"):
        rows.keep_full(1, row_frame(0, 101))


def commit(number, size):
    about = f'{{"fleet": "f", "stage": {number}, "grower": 0, "part": [0], "before": "", "tensors": {{"w": ""}}}}'
    return Commit(about.encode(), b"", {"w": torch.zeros(size, dtype=torch.uint8)})


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 500)), max_size=80))
def test_candidates_of_a_neighbour_are_bounded_in_number_and_bytes(sent):
    ours = History(bytes(32), ())
    ours.max_bytes = 1000
    for number, (sender, size) in enumerate(sent):
        ours.add_candidate(commit(number, size), sender)
        assert ours.candidates[-1].facts.stage == number
    for sender in range(3):
        numbers = [number for number, (who, _) in enumerate(sent) if who == sender]
        held = [one for one in ours.candidates if one.facts.stage in numbers]
        assert len(held) <= history.MAX_CANDIDATES
        assert len(held) <= 1 or sum(one.tensors["w"].nbytes for one in held) <= 1000
        assert bool(held) == bool(numbers)  # nobody's make room for another's
    ours.forget_of([0])
    assert ours.candidates == []


def test_who_is_revoked_is_dead_whatever_is_heard_of_it():
    ours = Membership(3, 0, silence=10)
    ours.revoked = frozenset({1})
    assert ours.merge([0, 5, 5], [0, 7, 7]) == [2]
    assert ours.dead == {1}
    ours.revoked = frozenset()
    assert ours.merge([0, 6, 6], [0, 7, 7]) == [1]
    assert ours.dead == frozenset()


def test_the_server_keeps_files_for_the_agent_itself():
    options = dict(limits.server_options())
    assert 0 < options["grpc.max_allowed_incoming_connections"] <= limits.open_files() // 2
