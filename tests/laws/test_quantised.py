"""The laws of rows in few bits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codecl.exchange import packing, pitches, quantised, rounding
from codecl.exchange.base import Heard
from codecl.exchange.quantised import Memory, Pace
from codecl.exchange.rounding import Dither
from codecl.exchange.row_parts import Part, part_size
from codecl.exchange.topology import TopologyConfig, build

BITS = (16, 8, 4, 3, 2)
SEED, PACE = 7, Pace(1.0, 4)
UNIFORM = [2288726, 198891, 9305055, 2213502]
some_bits, sizes, seeds = st.sampled_from(BITS), st.integers(1, 2500), st.integers(0, 10**6)


def drawn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def dithered(round=0, seed=SEED):
    return Dither(seed, torch.tensor(round))


def memory(rows, expected, round=0):
    expected = torch.as_tensor(expected, dtype=rows.dtype)
    start = Memory.new(rows, round)
    return start._replace(expected_AC=expected.expand_as(start.expected_AC)).joined()


def pair(packed):
    """Two agents that hear each other."""
    return Heard(packed, torch.tensor([[1], [0]]), torch.full((2, 1), 0.5, dtype=torch.float64))


def encoded(rows, expected, bits, round=0):
    """What leaves of rows whose neighbours are expected to be so far apart."""
    return quantised.encode(rows, memory(rows, expected, round), SEED, bits)


def integers(rows, codes, round=0):
    uniform = rounding.uniform(dithered(round), 0, codes.shape[1], rows.dtype)
    return rounding.whole(rounding.scaled(rounding.in_chunks(rows), codes, uniform))


def unwrapped(packed, near, bits, round=0):
    """(integers as a receiver unwraps them, whether each chunk is right)."""
    low, codes, _, sums = packing.decode(packed, near.shape[1], bits)
    uniform = rounding.uniform(dithered(round), 0, codes.shape[1], near.dtype)
    found = rounding.unwrapped(low, rounding.scaled(rounding.in_chunks(near), codes, uniform), bits)
    return rounding.corrected(found, sums, bits)


@given(some_bits, st.integers(1, 3), seeds)
def test_packed_and_unpacked_integers_are_equal(bits, count, seed):
    drawn = torch.randint(-(2**20), 2**20, (2, count, 1024), generator=torch.Generator().manual_seed(seed))
    packed = packing.pack(drawn, bits)
    assert packed.dtype == torch.uint8
    assert packed.shape == (2, count, 128 * bits)
    assert torch.equal(packing.unpack(packed, bits), (drawn & (2**bits - 1)).int())


@given(some_bits, sizes, seeds, st.floats(1e-6, 10), st.sampled_from([torch.float32, torch.float64]))
def test_what_is_encoded_is_decoded(bits, size, seed, expected, dtype):
    """Numbers, pitches and check sums, for any length; a message is as long as it says."""
    rows = drawn(2, size, seed=seed, dtype=dtype)
    packed = encoded(rows, expected, bits)
    assert packed.shape == (2, packing.packed_bytes(size, bits))
    low, codes, least, sums = packing.decode(packed, size, bits)
    wanted = torch.full_like(codes, expected, dtype=dtype)
    assert torch.equal(codes, pitches.codes(rounding.in_chunks(rows).abs().amax(-1), wanted, bits))
    assert (least == pitches.LEAST).all()
    whole = integers(rows, codes)
    there = rounding.in_chunks(torch.ones(1, size)) > 0  # what is after a row's end is not sent
    assert torch.equal(low, ((whole & (2**bits - 1)) * there).int())
    assert torch.equal(sums, rounding.check_sums(whole, bits))


def test_a_message_is_little_longer_than_its_numbers():
    assert packing.packed_bytes(1024, 4) == 512 + 6
    assert packing.packed_bytes(1025, 3) == 385 + 12


@given(some_bits, sizes, seeds, st.floats(1e-4, 10), st.sampled_from([torch.float32, torch.float64]))
def test_neighbours_within_reach_are_unwrapped_exactly(bits, size, seed, expected, dtype):
    theirs = drawn(2, size, seed=seed, dtype=dtype)
    packed = encoded(theirs, expected, bits)
    within = (2 * torch.rand(2, size, generator=torch.Generator().manual_seed(seed), dtype=dtype) - 1) * expected
    found, right = unwrapped(packed, theirs + within, bits)
    assert right.all()
    assert torch.equal(found, integers(theirs, packing.decode(packed, size, bits).codes_HC))


@pytest.mark.parametrize("bits", BITS)
def test_what_is_unwrapped_wrongly_is_detected(bits):
    """12,800 random cases a width, from a little out of reach to far: none is silently wrong."""
    for seed, times in enumerate((1, 2, 4, 20)):
        theirs = drawn(3200, 300, seed=seed)
        packed = encoded(theirs, 0.01, bits)
        found, right = unwrapped(packed, theirs + 0.01 * times * drawn(3200, 300, seed=seed + 50), bits)
        truth = (found == integers(theirs, packing.decode(packed, 300, bits).codes_HC)).all(-1)
        assert torch.equal(right, truth)
        assert times < 4 or not truth.all(), "some were out of reach"


@given(some_bits, seeds, st.integers(0, 1023), st.sampled_from([-1, 1]), st.sampled_from([torch.int32, torch.int64]))
def test_one_number_out_of_reach_is_put_right(bits, seed, place, way, dtype):
    right = torch.randint(-(10**6), 10**6, (2, 3, 1024), generator=torch.Generator().manual_seed(seed)).to(dtype)
    sums, wrong = rounding.check_sums(right, bits), right.clone()
    wrong[0, 1, place] += way * 2**bits
    found, is_right = rounding.corrected(wrong.clone(), sums, bits)
    assert is_right.all()
    assert torch.equal(found, right)
    wrong[0, 1, place - 7] += 2**bits
    found, is_right = rounding.corrected(wrong, sums, bits)
    assert is_right.tolist() == [[True, False, True], [True, True, True]], "two are too many"


def test_the_factors_of_a_check_sum_tell_numbers_apart():
    odd = rounding._odd(torch.device("cpu")).tolist()
    assert len({*odd, *((-factor) % 2**32 for factor in odd)}) == 2048
    assert 1 not in odd, "what spoils a check sum on purpose"
    assert 2**32 - 1 not in odd


@given(some_bits, seeds, st.integers(0, 1023), st.sampled_from([torch.int32, torch.int64]))
def test_one_wrong_number_shows_in_the_check_sum(bits, seed, place, dtype):
    right = torch.randint(-(10**6), 10**6, (1, 1, 1024), generator=torch.Generator().manual_seed(seed)).to(dtype)
    wrong = right.clone()
    wrong[..., place] += 2**bits
    assert not torch.equal(rounding.check_sums(right, bits), rounding.check_sums(wrong, bits))
    assert torch.equal(rounding.check_sums(right, bits), rounding.check_sums(right.long(), bits))


@given(some_bits, st.floats(1e-6, 1e3), st.floats(1e-3, 1e3), st.sampled_from([torch.float32, torch.float64]))
def test_a_pitch_reaches_what_is_expected_and_no_further_than_it_has_to(bits, expected, largest, dtype):
    wanted, most = (torch.full((1, 1), value, dtype=dtype) for value in (expected, largest))
    pitch = float(pitches.pitches(pitches.codes(most, wanted, bits), torch.float64))
    finest = largest * 2.0 ** -pitches.RESOLUTION[dtype]
    needed = max(pitches.margin(bits) * expected / pitches.reach(bits), finest, 2.0**-32)
    assert needed * (1 - 1e-6) <= pitch <= needed * 2**0.25 * (1 + 1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_misleads_nobody(bad):
    """It is sent on the finest pitch, cannot be read, and widens no pitch."""
    rows = torch.full((2, 1024), 0.5)
    rows[1, 3] = bad
    before = memory(rows, 0.01)
    packed = quantised.encode(rows, before, SEED, 4)
    mixed, after = quantised.mix(rows, packed, pair(packed), before, PACE, SEED, 4)
    assert torch.equal(mixed[0], rows[0])
    assert Memory.split(after).unread_AC[0] == 1
    assert Memory.split(after).expected_AC[0] <= 0.01


def test_pitches_are_powers_of_the_fourth_root_of_two_in_both_types():
    codes = torch.arange(-128, 128)
    exact = 2.0 ** (codes.double() / 4)
    for dtype, off in ((torch.float32, 1e-7), (torch.float64, 1e-15)):
        torch.testing.assert_close(pitches.pitches(codes, dtype).double(), exact, rtol=off, atol=0)


def test_the_uniform_numbers_are_these_on_every_machine():
    found = rounding.uniform(dithered(3), 2, 1, torch.float64)
    assert (found[0, :4] * 2**24).long().tolist() == UNIFORM
    many = [rounding.uniform(dithered(round, 1), 0, 100, torch.float64).flatten() for round in (0, 1)]
    assert abs(float(many[0].mean()) - 0.5) < 0.005
    assert 0 <= float(many[0].min()) < 1e-3
    assert 0.999 < float(many[0].max()) < 1
    others = [many[1], many[0].roll(1), many[0].roll(1024)]  # other rounds, other places, other chunks
    alike = torch.corrcoef(torch.stack([many[0], *others]))[0, 1:].abs()
    assert alike[:2].max() < 0.02
    assert alike[2] < 0.1, "a hundred chunks: they share the hash of a place"


def test_rounding_is_right_in_the_mean():
    x, code = torch.full((1, 1024), 0.3, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.int32)
    rounded = [integers(x, code, round).double() for round in range(200)]
    assert abs(float(torch.cat(rounded).mean()) - 0.3) < 0.003


@pytest.mark.parametrize("size", [1, 3000, 65 * 1024 + 1, 70 * 1024 - 5])
def test_how_far_chunks_moved(size):
    """All numbers of a short row count, an eighth of those of a long one."""
    before = drawn(2, size)
    after = before + 0.1 * drawn(2, size, seed=1)
    start = Memory.new(before, 3)
    start = start._replace(expected_AC=start.expected_AC + 5, unread_AC=start.unread_AC + 1)
    expected, found, least, unread, round = Memory.split(quantised.moved(start.joined(), before, after))
    assert [part.unique().item() for part in (expected, least, unread, round)] == [5, pitches.LEAST, 1, 3]
    exact = rounding.in_chunks((after - before).abs()).amax(-1)
    assert found.shape == exact.shape
    assert (found <= exact).all()
    assert torch.equal(found, exact) == (size < 65 * 1024)
    assert (found[:, :-1] >= 0.5 * exact[:, :-1]).all()
    assert float(Memory.split(quantised.moved(start.joined(), before, before)).moved_AC.max()) == 0


def gossip(topology, bits, rounds=1, agents=8, size=1500, apart=0.01, wide=1.0):
    """Rows before and after rounds of mixing, all agents in one place; how many chunks were lost."""
    graph = build(TopologyConfig(name=topology), agents, 0)
    senders, weights = (torch.tensor(part) for part in graph.heard_by(range(agents)))
    before = rows = drawn(1, size) + apart * drawn(agents, size, seed=1)
    furthest = 2 * rounding.in_chunks((rows - rows.mean(0)).abs()).amax((0, 2))
    known, lost, pace = memory(rows, wide * furthest), 0, Pace({3: 0.5, 2: 0.3}.get(bits, 1.0), 4)
    for _ in range(rounds):
        packed = quantised.encode(rows, known, SEED, bits)
        heard = Heard(packed, senders, weights.double())
        rows, known = quantised.mix(rows, packed, heard, known, pace, SEED, bits)
        lost += int((Memory.split(known).unread_AC > 0).sum())
    return before, rows, lost


@pytest.mark.parametrize("topology", ["ring", "torus", "star", "complete"])
@pytest.mark.parametrize("bits", BITS)
def test_the_mean_of_all_agents_is_kept(bits, topology):
    before, after, lost = gossip(topology, bits)
    assert lost == 0
    assert not torch.equal(after, before)
    torch.testing.assert_close(after.mean(0), before.mean(0), rtol=0, atol=1e-14)


@pytest.mark.parametrize("topology", ["ring", "torus", "star", "complete"])
@pytest.mark.parametrize("bits", BITS)
def test_agents_come_together(bits, topology):
    before, after, lost = gossip(topology, bits, rounds=60)
    spread = [float((rows - rows.mean(0)).square().mean()) for rows in (before, after)]
    assert spread[1] < 0.02 * spread[0]
    assert lost <= (0 if bits > 4 else 0.03 * 8 * 60 * 2), "chunks"


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_a_pitch_that_was_too_narrow_widens_until_neighbours_are_heard(bits):
    before, after, lost = gossip("ring", bits, rounds=80, wide=0.01)
    assert lost > 0
    spread = [float((rows - rows.mean(0)).square().mean()) for rows in (before, after)]
    assert spread[1] < 0.3 * spread[0]


def test_a_chunk_that_cannot_be_unwrapped_leaves_its_weight_with_the_agent():
    rows = torch.zeros(2, 1500, dtype=torch.float64)
    rows[1, :1024] = 100.0  # far from what is expected, all of them; the second chunk is near
    rows[1, 1024:] = 0.01
    packed = encoded(rows, 0.05, 4)
    mixed, after = quantised.mix(rows, packed, pair(packed), memory(rows, 0.05), PACE, SEED, 4)
    assert torch.equal(mixed[:, :1024], rows[:, :1024])
    assert (mixed[:, 1024:] - rows[:, 1024:]).abs().max() > 0
    assert Memory.split(after).unread_AC.tolist() == [[1, 0]] * 2
    codes = packing.decode(packed, 1500, 4).codes_HC[:, 0]
    assert torch.equal(Memory.split(after).least_AC[:, 0], codes + 8.0 - 1), "a wider pitch is asked for"
    assert (Memory.split(after).least_AC[:, 1] == pitches.LEAST).all()
    asked = packing.decode(quantised.encode(rows, after, SEED, 4), 1500, 4)
    assert torch.equal(asked.codes_HC[:, 0], codes + 7)
    assert torch.equal(asked.least_HC[:, 0], codes + 7)


def test_who_hears_nobody_does_not_expect_others_nearer():
    rows = drawn(2, 1500)
    known = Memory.split(memory(rows, 0.05))._replace(moved_AC=torch.full((2, 2), 0.01).double()).joined()
    packed = quantised.encode(rows, known, SEED, 4)
    heard = pair(packed)._replace(weights_AK=torch.tensor([[0.0], [0.5]]).double())
    mixed, after = quantised.mix(rows, packed, heard, known, PACE, SEED, 4)
    assert torch.equal(mixed[0], rows[0])
    torch.testing.assert_close(Memory.split(after).expected_AC[0], torch.full((2,), 0.05).double())
    assert (Memory.split(after).unread_AC[0] == 0).all()


@given(some_bits, st.integers(7 * 1024, 20 * 1024))
def test_blocks_of_chunks_give_what_the_whole_gives(bits, size):
    rows = drawn(1, size, dtype=torch.float32) + 0.01 * drawn(2, size, seed=1, dtype=torch.float32)
    known = memory(rows, 0.1)
    runs = []
    for block in (8, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(quantised, "BLOCK", block)
            packed = quantised.encode(rows, known, SEED, bits)
            runs.append([packed, *quantised.mix(rows, packed, pair(packed), known, PACE, SEED, bits)])
    assert all(map(torch.equal, *runs))


@given(st.integers(1, 9000), st.integers(2, 6), seeds)
def test_each_number_has_its_turn_once(size, parts, seed):
    rows = drawn(2, size, seed=seed)
    known = Memory.new(rows, 0)
    turns = torch.zeros(size)
    for round in range(parts, 2 * parts):
        start = known._replace(round_A1=known.round_A1 + round).joined()
        part = Part.of(rows, start, parts)
        assert part.rows_AD.shape == (2, part_size(size, parts))
        same = part.put_back(part.rows_AD, part.memory_AM)
        assert torch.equal(same[0], rows)
        assert torch.equal(same[1], start)
        other, after = part.put_back(part.rows_AD + 1, part.memory_AM + 1)
        turns += (other != rows).all(0)
        assert (Memory.split(after).unread_AC.sum(1) == (part.chunks_C < rounding.chunks(size)).sum()).all()
    assert (turns == 1).all()


@pytest.mark.parametrize("bits", [8, 3])
def test_rows_in_parts_keep_the_mean_and_come_together(bits):
    graph = build(TopologyConfig(name="ring"), 8, 0)
    senders, weights = (torch.tensor(part) for part in graph.heard_by(range(8)))
    before = rows = drawn(1, 3500) + 0.01 * drawn(8, 3500, seed=1)
    known, pace = memory(rows, 0.1), Pace(0.5, 4, parts=4)
    for _ in range(4 * 60):
        part = Part.of(rows, known, 4)
        packed = quantised.encode(part.rows_AD, part.memory_AM, SEED, bits)
        heard = Heard(packed, senders, weights.double())
        rows, known = part.put_back(*quantised.mix(part.rows_AD, packed, heard, part.memory_AM, pace, SEED, bits))
    if bits == 8:  # of fewer a chunk may be lost
        torch.testing.assert_close(rows.mean(0), before.mean(0), rtol=0, atol=1e-13)
    spread = [float((some - some.mean(0)).square().mean()) for some in (before, rows)]
    assert spread[1] < 0.02 * spread[0]
