"""The laws of what a peer decides: which rows it keeps and mixes, whom it waits for, where it joins. No network."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("grpc")

from codecl import seeding
from codecl.peers import agent as peer
from codecl.peers import decisions
from codecl.peers.decisions import NewestRow, PeersConfig, PeerStatus, ReceivedRow, Rounds, RowFate
from codecl.peers.frames import Position
from codecl.peers.rounds import SentRow, as_heard

START = bytes(32)


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
