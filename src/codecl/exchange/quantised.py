"""Rows in few bits: integers modulo 2^b, which a neighbour unwraps around its own value. Pure functions; each law is a
test of the same name.

    x̂ = h ⌊x/h + u⌋                     stochastic rounding to a pitch h of each chunk of a row
    x_i ← x_i + γ Σ_j w_ij (x̂_j - x̂_i)   keeps the mean of all agents, for any pitches

Sent are ⌊x/h + u⌋ mod 2^b, the pitch, and a check sum of what was cut off. Neighbours are near one another, so that a
receiver knows the rest; where it does not, the check sum tells, and the chunk counts as lost. All agents draw the same
u: where neighbours agree, so do their roundings, and the noise in x̂_j - x̂_i goes with h |x_j - x_i| instead of h².

Shapes: A agents that send, H rows that are heard, K senders that an agent hears at most, D numbers of a row,
C chunks of a row, L numbers of a chunk, B bytes of a packed row.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

CHUNK = 1024  # numbers with one pitch and one check sum
STEPS = 4  # pitches of an octave: 2^(code / 4)
LEAST, MOST = -128, 127  # codes of a pitch
RESOLUTION = {torch.float32: 20, torch.float64: 40}  # bits below a chunk's largest number that a pitch may go
MARGIN = 1.25  # of the range over the largest difference that is expected
TAIL = 5.0  # the largest difference of a chunk over the mean one, at least
WIDER = 4.0  # after a chunk that could not be unwrapped
SPREAD = 0.75  # of what a neighbour expects: so that word of a wide chunk gets round
DECAY = 0.8  # of what was expected, where less was seen
MASK = 0xFFFFFFFF
HEADER = 5  # bytes of a chunk beside its numbers: code of the pitch and check sum


class Rows(NamedTuple):
    """Rows as they are sent."""

    integers_HD: Tensor  # int64: whole at the sender, modulo 2^b at a receiver
    codes_HC: Tensor  # int64: of pitches
    sums_HC: Tensor  # int64, 32 bits: check sums of what modulo cuts off


def chunks(size: int) -> int:
    return math.ceil(size / CHUNK)


def packed_bytes(size: int, bits: int) -> int:
    """B: what a message of so many numbers has. Law: it is what `pack` gives."""
    return math.ceil(size * bits / 8) + HEADER * chunks(size)


def in_chunks(rows_HD: Tensor) -> Tensor:
    """[H, D] -> [H, C, L], padded with zeros."""
    size = rows_HD.shape[-1]
    padded = functional.pad(rows_HD, (0, chunks(size) * CHUNK - size))
    return padded.view(*rows_HD.shape[:-1], chunks(size), CHUNK)


def over_chunks(values_HC: Tensor, size: int) -> Tensor:
    """[H, C] -> [H, D]: each number's, of its chunk."""
    return values_HC.repeat_interleave(CHUNK, -1)[..., :size]


def largest(rows_HD: Tensor) -> Tensor:
    """[H, C]: the largest magnitude of each chunk."""
    return in_chunks(rows_HD.abs()).amax(-1)


def uniform(seed: int, round: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """[D] numbers in [0, 1), by seed, round and place alone: the same for all agents, on every device and in every
    exchange (a counter through a mixing function of 32 bits)."""
    key = _mixed((seed + 0x9E3779B9 * round.long()) & MASK)
    places_D = torch.arange(size, device=round.device)
    return (_mixed((key + _mixed(places_D)) & MASK) >> 8).to(dtype) * 2.0**-24


def _mixed(values: Tensor) -> Tensor:
    """The last steps of MurmurHash3, on 32 bits in an int64."""
    values = values ^ (values >> 16)
    values = (values * 0x85EBCA6B) & MASK
    values = values ^ (values >> 13)
    values = (values * 0xC2B2AE35) & MASK
    return values ^ (values >> 16)


def reach(bits: int) -> float:
    """How many pitches neighbours may be apart."""
    return 2 ** (bits - 1) - 0.5


def codes(rows_AD: Tensor, expected_AC: Tensor, bits: int) -> Tensor:
    """[A, C]: the smallest pitches that reach as far as neighbours are expected to be apart, with a margin; not finer
    than what the numbers themselves resolve."""
    finest_AC = largest(rows_AD) * 2.0 ** -RESOLUTION[rows_AD.dtype]
    part_AC, octave_AC = torch.frexp(torch.maximum(MARGIN * expected_AC / reach(bits), finest_AC))  # part < 1
    above = sum((part_AC > 2.0 ** (step / STEPS - 1)).long() for step in range(1, STEPS))
    return (STEPS * (octave_AC.long() - 1) + 1 + above).clamp(LEAST, MOST)


def pitches(codes_HC: Tensor, dtype: torch.dtype) -> Tensor:
    """2^(code / 4), the same on every device: a constant times a power of two that is put together bit by bit."""
    octave_HC, step_HC = codes_HC >> 2, codes_HC & (STEPS - 1)
    bias, fraction, integer = (127, 23, torch.int32) if dtype == torch.float32 else (1023, 52, torch.int64)
    pitch_HC = ((octave_HC + bias) << fraction).to(integer).view(dtype)
    for step in range(1, STEPS):
        pitch_HC = torch.where(step_HC == step, pitch_HC * 2.0 ** (step / STEPS), pitch_HC)
    return pitch_HC


def round_off(rows_AD: Tensor, codes_AC: Tensor, uniform_D: Tensor, bits: int) -> Rows:
    """⌊x/h + u⌋, whole, with pitches and check sums."""
    scaled_AD = rows_AD / over_chunks(pitches(codes_AC, rows_AD.dtype), rows_AD.shape[1])
    integers_AD = (scaled_AD + uniform_D).floor().long()
    return Rows(integers_AD, codes_AC, check_sums(integers_AD, bits))


def check_sums(integers_HD: Tensor, bits: int) -> Tensor:
    """[H, C]: of what modulo 2^b cuts off, 32 bits. A number that is wrong by any multiple of 2^b shows."""
    cut_HCL = in_chunks(integers_HD >> bits)
    odd_L = _mixed(torch.arange(1, CHUNK + 1, device=integers_HD.device)) | 1
    return ((cut_HCL & MASK) * odd_L & MASK).sum(-1) & MASK


def values(rows: Rows, dtype: torch.dtype) -> Tensor:
    """x̂ of whole integers [H, D]."""
    integers_HD = rows.integers_HD
    return integers_HD.to(dtype) * over_chunks(pitches(rows.codes_HC, dtype), integers_HD.shape[1])


def unwrapped(heard: Rows, near_HD: Tensor, uniform_D: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """(x̂ [H, D], whether each chunk is right [H, C]) of rows modulo 2^b, near these numbers of a receiver.

    Laws: right, and x̂ the sender's, where |near - x| < reach · h; where it is not right, it says so."""
    size, dtype, period = near_HD.shape[1], near_HD.dtype, 2**bits
    limit = 2.0 ** (RESOLUTION[dtype] + 3)
    near_HD = near_HD / over_chunks(pitches(heard.codes_HC, dtype), size) + (uniform_D - 0.5)
    near_HD = near_HD.clamp(-limit, limit)
    low_HD = (heard.integers_HD & (period - 1)).to(dtype)
    integers_HD = (low_HD + ((near_HD - low_HD) / period).round() * period).long()
    right_HC = check_sums(integers_HD, bits) == heard.sums_HC
    return values(heard._replace(integers_HD=integers_HD), dtype), right_HC


def pack(rows: Rows, bits: int) -> Tensor:
    """[H, B] bytes. Law: `unpack` gives the integers modulo 2^b, pitches and check sums back."""
    count, size = rows.integers_HD.shape
    group, octets, groups = _groups(size, bits)
    low = functional.pad(rows.integers_HD & ((1 << bits) - 1), (0, groups * group - size)).view(count, groups, group)
    words = (low << _places(group, bits, low)).sum(-1, keepdim=True)
    numbers = ((words >> _places(octets, 8, low)) & 255).view(count, groups * octets)[:, : math.ceil(size * bits / 8)]
    sums = ((rows.sums_HC[..., None] >> _places(4, 8, low)) & 255).flatten(1)
    return torch.cat([numbers, rows.codes_HC & 255, sums], 1).to(torch.uint8)


def unpack(bytes_HB: Tensor, size: int, bits: int) -> Rows:
    count, parts, length = len(bytes_HB), chunks(size), math.ceil(size * bits / 8)
    group, octets, groups = _groups(size, bits)
    numbers, codes_HC, sums = bytes_HB.long().split([length, parts, 4 * parts], 1)
    numbers = functional.pad(numbers, (0, groups * octets - length)).view(count, groups, octets)
    words = (numbers << _places(octets, 8, numbers)).sum(-1, keepdim=True)
    low_HD = ((words >> _places(group, bits, words)) & ((1 << bits) - 1)).view(count, groups * group)[:, :size]
    sums_HC = (sums.view(count, parts, 4) << _places(4, 8, sums)).sum(-1)
    return Rows(low_HD, (codes_HC ^ 128) - 128, sums_HC)


def _groups(size: int, bits: int) -> tuple[int, int, int]:
    """(numbers that fill whole bytes together, those bytes, how many such groups)."""
    group = 8 // math.gcd(8, bits)
    return group, group * bits // 8, math.ceil(size / group)


def _places(count: int, bits: int, like: Tensor) -> Tensor:
    """By how many bits each of so many is shifted."""
    return torch.arange(count, device=like.device) * bits


def mix(
    rows_AD: Tensor,
    own: Rows,
    heard: Rows,
    senders_AK: Tensor,
    weights_AK: Tensor,
    expected_AC: Tensor,
    uniform_D: Tensor,
    bits: int,
) -> tuple[Tensor, Tensor]:
    """(x_i + Σ_j w_ij (x̂_j - x̂_i), how far apart neighbours are expected to be next [A, C]).

    `senders_AK`: rows of `heard`; a weight of zero: none. The weight of a chunk that is not right stays with the agent.
    Law: the mean of all agents is kept, where all chunks are right."""
    size, dtype = rows_AD.shape[1], rows_AD.dtype
    rounded_AD = values(own, dtype)
    mixed_AD, next_AC = rows_AD, DECAY * expected_AC
    for senders_A, weights_A in zip(senders_AK.mT, weights_AK.mT, strict=True):
        rows = Rows(*(part.index_select(0, senders_A) for part in heard))
        theirs_AD, right_AC = unwrapped(rows, rows_AD, uniform_D, bits)
        right_AC, is_heard_A1 = right_AC | (weights_A == 0)[:, None], (weights_A != 0)[:, None]
        share_AC = right_AC * weights_A[:, None]
        mixed_AD = mixed_AD + over_chunks(share_AC.to(dtype), size) * (theirs_AD - rounded_AD)
        pitch_AC = pitches(rows.codes_HC, dtype)
        alike_AD = values(round_off(rows_AD, rows.codes_HC, uniform_D, bits), dtype)  # on the sender's pitch
        mean_AC = in_chunks((theirs_AD - alike_AD).abs()).mean(-1)  # its expectation is that of |x_j - x_i|
        apart_AC = torch.maximum(largest(theirs_AD - rows_AD) - pitch_AC, TAIL * mean_AC)
        theirs_AC = pitch_AC * (reach(bits) / MARGIN)  # how far apart the sender expects neighbours to be
        seen_AC = torch.where(right_AC, torch.maximum(apart_AC, SPREAD * theirs_AC), WIDER * theirs_AC)
        next_AC = torch.maximum(next_AC, seen_AC * is_heard_A1)
    return mixed_AD, next_AC
