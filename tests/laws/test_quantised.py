"""The laws of rows in few bits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codecl.exchange import quantised
from codecl.exchange.quantised import Rows
from codecl.exchange.topology import TopologyConfig, build

BITS = (16, 8, 4, 3, 2)
UNIFORM = [2455192, 365357, 9471521, 2379968]
some_bits, sizes, seeds = st.sampled_from(BITS), st.integers(1, 2500), st.integers(0, 10**6)


def drawn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def sent(rows, expected, bits, round=0):
    """(what leaves, the uniform numbers) of rows whose neighbours are expected to be so far apart."""
    uniform = quantised.uniform(7, torch.tensor(round), rows.shape[1], rows.dtype)
    expected = torch.full((len(rows), quantised.chunks(rows.shape[1])), expected, dtype=rows.dtype)
    codes = quantised.codes(rows, expected, bits)
    return quantised.round_off(rows, codes, uniform, bits), uniform


def arrived(rows, bits):
    return quantised.unpack(quantised.pack(rows, bits), rows.integers_HD.shape[1], bits)


@given(some_bits, sizes, seeds, st.floats(1e-6, 10))
def test_packed_and_unpacked_integers_are_equal(bits, size, seed, expected):
    rows, _ = sent(drawn(2, size, seed=seed), expected, bits)
    packed = quantised.pack(rows, bits)
    assert packed.dtype == torch.uint8
    assert packed.shape == (2, quantised.packed_bytes(size, bits))
    found = quantised.unpack(packed, size, bits)
    assert torch.equal(found.integers_HD, rows.integers_HD & (2**bits - 1))
    assert torch.equal(found.codes_HC, rows.codes_HC)
    assert torch.equal(found.sums_HC, rows.sums_HC)


def test_a_message_is_little_longer_than_its_numbers():
    assert quantised.packed_bytes(1024, 4) == 512 + 5
    assert quantised.packed_bytes(1025, 3) == 385 + 10


@given(some_bits, sizes, seeds, st.floats(1e-4, 10), st.sampled_from([torch.float32, torch.float64]))
def test_neighbours_within_reach_are_unwrapped_exactly(bits, size, seed, expected, dtype):
    theirs = drawn(2, size, seed=seed, dtype=dtype)
    rows, uniform = sent(theirs, expected, bits)
    within = (2 * torch.rand(2, size, generator=torch.Generator().manual_seed(seed), dtype=dtype) - 1) * expected
    found, right = quantised.unwrapped(arrived(rows, bits), theirs + within, uniform, bits)
    assert right.all()
    assert torch.equal(found, quantised.values(rows, dtype))


@pytest.mark.parametrize("bits", BITS)
def test_what_is_unwrapped_wrongly_is_detected(bits):
    """12,800 random cases a width, from a little out of reach to far: none is silently wrong."""
    for seed, times in enumerate((1, 2, 4, 20)):
        theirs = drawn(3200, 300, seed=seed)
        rows, uniform = sent(theirs, 0.01, bits)
        near = theirs + 0.01 * times * drawn(3200, 300, seed=seed + 50)
        found, right = quantised.unwrapped(arrived(rows, bits), near, uniform, bits)
        truth = (found == quantised.values(rows, torch.float64)).all(1)
        assert torch.equal(right[:, 0], truth)
        assert times < 4 or not truth.all(), "some were out of reach"


@given(some_bits, seeds, st.integers(0, 1023))
def test_one_wrong_number_shows_in_the_check_sum(bits, seed, place):
    integers = torch.randint(-(10**6), 10**6, (1, 1024), generator=torch.Generator().manual_seed(seed))
    wrong = integers.clone()
    wrong[0, place] += 2**bits
    assert not torch.equal(quantised.check_sums(integers, bits), quantised.check_sums(wrong, bits))


@given(some_bits, st.floats(1e-6, 1e3), seeds)
def test_a_pitch_reaches_what_is_expected_and_no_further_than_it_has_to(bits, expected, seed):
    rows = drawn(1, 1024, seed=seed)
    wanted = torch.full((1, 1), expected, dtype=torch.float64)
    pitch = quantised.pitches(quantised.codes(rows, wanted, bits), torch.float64)
    needed = max(quantised.MARGIN * expected / quantised.reach(bits), float(rows.abs().max()) * 2.0**-40, 2.0**-32)
    assert needed * (1 - 1e-12) <= float(pitch) <= needed * 2**0.25 * (1 + 1e-12)


def test_pitches_are_powers_of_the_fourth_root_of_two_in_both_types():
    codes = torch.arange(-128, 128)
    exact = 2.0 ** (codes.double() / 4)
    for dtype, off in ((torch.float32, 1e-7), (torch.float64, 1e-15)):
        torch.testing.assert_close(quantised.pitches(codes, dtype).double(), exact, rtol=off, atol=0)


def test_the_uniform_numbers_are_these_on_every_machine():
    found = quantised.uniform(7, torch.tensor(3), 4, torch.float64)
    assert (found * 2**24).long().tolist() == UNIFORM
    many = quantised.uniform(1, torch.tensor(0), 100_000, torch.float64)
    assert abs(float(many.mean()) - 0.5) < 0.005
    assert 0 <= float(many.min()) < 1e-3
    assert 0.999 < float(many.max()) < 1
    other = quantised.uniform(1, torch.tensor(1), 100_000, torch.float64)
    assert abs(float(torch.corrcoef(torch.stack([many, other]))[0, 1])) < 0.02


def test_rounding_is_right_in_the_mean():
    x = torch.full((1, 1000), 0.3, dtype=torch.float64)
    rounded = [quantised.values(sent(x, 1.0, 3, round)[0], torch.float64) for round in range(200)]
    assert abs(float(torch.cat(rounded).mean()) - 0.3) < 0.003


def gossip(topology, bits, rounds=1, agents=8, size=1500, apart=0.01, wide=1.0):
    """Rows before and after rounds of mixing, all agents in one place; how many chunks were lost."""
    graph = build(TopologyConfig(name=topology), agents, 0)
    senders, weights = (torch.tensor(part) for part in graph.heard_by(range(agents)))
    before = rows = drawn(1, size) + apart * drawn(agents, size, seed=1)
    expected = wide * quantised.largest((rows - rows.mean(0)).abs().amax(0, keepdim=True) * 2).expand(agents, -1)
    lost = 0
    for round in range(rounds):
        uniform = quantised.uniform(5, torch.tensor(round), size, rows.dtype)
        own = quantised.round_off(rows, quantised.codes(rows, expected, bits), uniform, bits)
        heard = arrived(own, bits)
        for column in senders.mT:
            some = Rows(*(part[column] for part in heard))
            lost += int((~quantised.unwrapped(some, rows, uniform, bits)[1]).sum())
        step = {3: 0.5, 2: 0.3}.get(bits, 1.0)
        rows, expected = quantised.mix(rows, own, heard, senders, weights.double() * step, expected, uniform, bits)
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
    edges = 8 * 60 * 2 * {"ring": 1, "torus": 4, "star": 7, "complete": 7}[topology]
    assert lost <= (0 if bits > 4 else 0.03 * edges), "chunks"


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_a_pitch_that_was_too_narrow_widens_until_neighbours_are_heard(bits):
    before, after, lost = gossip("ring", bits, rounds=80, wide=0.01)
    assert lost > 0
    spread = [float((rows - rows.mean(0)).square().mean()) for rows in (before, after)]
    assert spread[1] < 0.3 * spread[0]


def test_a_chunk_that_cannot_be_unwrapped_leaves_its_weight_with_the_agent():
    rows = torch.zeros(2, 1500, dtype=torch.float64)
    rows[1, :1024] = 100.0  # far from what is expected; the second chunk is near
    rows[1, 1024:] = 0.01
    own, uniform = sent(rows, 0.05, 4)
    weights, senders = torch.full((2, 1), 0.5, dtype=torch.float64), torch.tensor([[1], [0]])
    expected = torch.full((2, 2), 0.05, dtype=torch.float64)
    mixed, next_expected = quantised.mix(rows, own, arrived(own, 4), senders, weights, expected, uniform, 4)
    assert torch.equal(mixed[:, :1024], rows[:, :1024])
    assert (mixed[:, 1024:] - rows[:, 1024:]).abs().max() > 0
    assert (next_expected[:, 0] > 3 * expected[:, 0]).all(), "the next pitch is wider"
