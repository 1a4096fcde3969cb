"""Rows in few bits: integers modulo 2^b, which a neighbour unwraps around its own value. Pure functions; each law is a
test of the same name.

    x̂ = h ⌊x/h + u⌋                     stochastic rounding to a pitch h of each chunk of a row
    x_i ← x_i + γ Σ_j w_ij (x̂_j - x̂_i)   keeps the mean of all agents, for any pitches

Sent are ⌊x/h + u⌋ mod 2^b, the pitch, and a check sum of what was cut off. Neighbours are near one another, so that a
receiver knows the rest. Where one number of a chunk is out of reach, the check sum tells which; where more are, it
tells that, and the chunk counts as lost. All agents draw the same u: where neighbours agree, so do their roundings, and
the noise in x̂_j - x̂_i goes with h |x_j - x_i| instead of h².

`kernels` has `encode`, `mix` and `moved` for a GPU, equal bit for bit.

Shapes: A agents that send, H rows that are heard, K senders that an agent hears at most, D numbers of a row,
C chunks of a row, L numbers of a chunk, B bytes of a packed row, M numbers of an agent's memory.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from codecl.exchange.base import Heard

CHUNK = 1024  # numbers with one pitch and one check sum
STEPS = 4  # pitches of an octave: 2^(code / 4)
LEAST, MOST = -128, 127  # codes of a pitch
RESOLUTION = {torch.float32: 20, torch.float64: 40}  # bits below a chunk's largest number that a pitch may go
INTEGER = {torch.float32: torch.int32, torch.float64: torch.int64}
FRACTION = {torch.float32: 23, torch.float64: 52}  # bits of a number's fraction
BIAS = {torch.float32: 127, torch.float64: 1023}  # of its exponent
FURTHEST = {torch.float32: 2.0**30, torch.float64: 2.0**60}  # in pitches: beyond, nothing can be right
MOVED = 2.0  # two neighbours that both moved are apart by at most so much more
MARGIN, NARROW = 2.0, 1.5  # of the range over the largest difference that is expected; with two bits
TAIL = 5.0  # the largest difference of a chunk over the mean one, at least
WIDER = 8  # codes: a chunk that could not be unwrapped should come with a pitch so much wider, four times as wide
JUMP = 8  # codes that a pitch widens at most in a round, whatever is asked for
SPREAD = 0.5  # of what a neighbour expects
DECAY = 0.8  # of what was expected, where less was seen
MASK = 0xFFFFFFFF
HEADER = 6  # bytes of a chunk beside its numbers: codes of the pitch and of the least pitch, and the check sum
SAMPLE, APART = 32, 256  # to tell how far a chunk moved, so many numbers side by side are looked at, so far apart
FEW = 64  # chunks: of rows that are no longer all numbers are looked at
BLOCK = 256  # chunks at a time on a CPU: they stay in its cache


class Dither(NamedTuple):
    """Where the uniform numbers of a round come from: the same for all agents, in every exchange."""

    seed: int
    round: Tensor  # a number


class Pace(NamedTuple):
    """How fast agents come together, and how long word of a chunk that could not be read lasts."""

    step: float  # γ
    pause: int  # turns after which the pitch that is asked for is lowered by a code: word gets round before it fades
    parts: int = 1  # rounds from one turn of a chunk to the next


class Parts(NamedTuple):
    """What packed rows hold."""

    integers_HCL: Tensor  # modulo 2^b
    codes_HC: Tensor  # of pitches
    least_HC: Tensor  # codes of pitches that neighbours are asked for
    sums_HC: Tensor  # 32 bits: check sums of what modulo cut off


class Memory(NamedTuple):
    """What an agent remembers from round to round, of each chunk."""

    expected_AC: Tensor  # how far apart neighbours were, and are expected to be
    moved_AC: Tensor  # how far the agent itself moved since
    least_AC: Tensor  # the least code of a pitch that is asked for, by whoever could not read a chunk
    unread_AC: Tensor  # for how many rounds now it could not be read
    round_A1: Tensor  # the number of the round

    @classmethod
    def new(cls, rows_AD: Tensor, round: int) -> "Memory":
        agents, count = len(rows_AD), chunks(rows_AD.shape[1])
        zeros_AC = rows_AD.new_zeros(agents, count)
        return cls(zeros_AC, zeros_AC, zeros_AC + LEAST, zeros_AC, rows_AD.new_full((agents, 1), round))

    @classmethod
    def split(cls, memory_AM: Tensor) -> "Memory":
        count = memory_AM.shape[1] // 4
        return cls(*memory_AM.split([count, count, count, count, 1], 1))

    def joined(self) -> Tensor:
        return torch.cat(self, 1)

    def dither(self, seed: int) -> Dither:
        return Dither(seed, self.round_A1[0, 0])


def chunks(size: int) -> int:
    return math.ceil(size / CHUNK)


def packed_bytes(size: int, bits: int) -> int:
    """B: what a message of so many numbers has. Law: it is what `encode` gives."""
    return math.ceil(size * bits / 8) + HEADER * chunks(size)


def in_chunks(rows_HD: Tensor) -> Tensor:
    """[H, D] -> [H, C, L], padded with zeros."""
    size = rows_HD.shape[-1]
    padded = functional.pad(rows_HD, (0, chunks(size) * CHUNK - size))
    return padded.view(*rows_HD.shape[:-1], chunks(size), CHUNK)


def uniform(dither: Dither, first: int, count: int, dtype: torch.dtype) -> Tensor:
    """[C, L] numbers in [0, 1) for chunks `first` and on, by seed, round and place alone: a hash of the place in the
    chunk, shifted by a hash of the chunk."""
    key = hashed((dither.seed + 0x9E3779B9 * dither.round.long()) & MASK)
    places_L = torch.arange(CHUNK, device=key.device)
    chunks_C = torch.arange(first, first + count, device=key.device)
    base_L, shift_C = hashed((key + hashed(places_L)) & MASK), hashed((key ^ hashed(chunks_C + CHUNK)) & MASK)
    sums_CL = (base_L >> 8).to(torch.int32) + (shift_C >> 8).to(torch.int32)[:, None]
    return (sums_CL & 0xFFFFFF).to(dtype) * 2.0**-24


def hashed(values: Tensor) -> Tensor:
    """The last steps of MurmurHash3, on 32 bits in an int64."""
    values = values ^ (values >> 16)
    values = (values * 0x85EBCA6B) & MASK
    values = values ^ (values >> 13)
    values = (values * 0xC2B2AE35) & MASK
    return values ^ (values >> 16)


def moved(memory_AM: Tensor, before_AD: Tensor, after_AD: Tensor) -> Tensor:
    """The memory after rows moved. Of long rows an eighth is looked at: all would cost as much as to mix."""
    size, device = before_AD.shape[1], before_AD.device
    if chunks(size) > FEW:
        starts = torch.arange(0, chunks(size) * CHUNK, APART, device=device)[:, None]
        which = (starts + torch.arange(SAMPLE, device=device)).clamp(max=size - 1).flatten()
        change_AS = after_AD.index_select(1, which) - before_AD.index_select(1, which)
        change_ACS = change_AS.view(len(change_AS), chunks(size), -1)
    else:
        change_ACS = in_chunks(after_AD - before_AD)
    memory = Memory.split(memory_AM)
    return memory._replace(moved_AC=memory.moved_AC + change_ACS.abs().amax(-1)).joined()


def reach(bits: int) -> float:
    """How many pitches neighbours may be apart."""
    return 2 ** (bits - 1) - 0.5


def margin(bits: int) -> float:
    """How much wider a pitch is than it has to be: numbers out of reach cost more than rounding does."""
    return NARROW if bits == 2 else MARGIN


def codes(largest_AC: Tensor, expected_AC: Tensor, bits: int) -> Tensor:
    """[A, C]: the smallest pitches that reach as far as neighbours are expected to be apart, with a margin; not finer
    than what numbers as large as `largest_AC` resolve. What is not finite gets the finest: nobody is misled by it."""
    dtype = largest_AC.dtype
    wanted_AC = torch.maximum(expected_AC * (margin(bits) / reach(bits)), largest_AC * 2.0 ** -RESOLUTION[dtype])
    bits_AC, fraction, bias = wanted_AC.view(INTEGER[dtype]), FRACTION[dtype], BIAS[dtype]
    octave_AC = (bits_AC >> fraction) - bias  # wanted = part · 2^octave, 1 <= part < 2
    part_AC = ((bits_AC & ((1 << fraction) - 1)) | (bias << fraction)).view(dtype)
    above = sum((part_AC > 2.0 ** (step / STEPS)).to(bits_AC.dtype) for step in range(STEPS))
    codes_AC = (STEPS * octave_AC + above).clamp(LEAST, MOST)
    return torch.where(octave_AC > bias, LEAST, codes_AC)


def pitches(codes_HC: Tensor, dtype: torch.dtype) -> Tensor:
    """2^(code / 4), the same on every device: a constant times a power of two that is put together bit by bit."""
    octave_HC, step_HC = codes_HC.to(INTEGER[dtype]) >> 2, codes_HC & (STEPS - 1)
    pitch_HC = ((octave_HC + BIAS[dtype]) << FRACTION[dtype]).view(dtype)
    for step in range(1, STEPS):
        pitch_HC = torch.where(step_HC == step, pitch_HC * 2.0 ** (step / STEPS), pitch_HC)
    return pitch_HC


def scaled(rows_HCL: Tensor, codes_HC: Tensor, uniform_CL: Tensor) -> Tensor:
    """x/h + u."""
    return (rows_HCL * pitches(-codes_HC, rows_HCL.dtype)[..., None]).add_(uniform_CL)


def whole(scaled_HCL: Tensor) -> Tensor:
    """⌊·⌋ as integers."""
    limit = FURTHEST[scaled_HCL.dtype]
    return scaled_HCL.floor().clamp_(-limit, limit).to(INTEGER[scaled_HCL.dtype])


def _odd(device: torch.device) -> Tensor:
    """[L] the factors of a check sum, 32 bits. Law: no two are equal, nor sum to zero."""
    return hashed(torch.arange(1, CHUNK + 1, device=device)) | 1


def check_sums(integers_HCL: Tensor, bits: int) -> Tensor:
    """[H, C]: of what modulo 2^b cuts off, 32 bits. A number that is wrong by any multiple of 2^b shows."""
    odd_L = _odd(integers_HCL.device)
    odd_L = torch.where(odd_L >> 31 > 0, odd_L - (1 << 32), odd_L).to(integers_HCL.dtype)  # signed, equal modulo 2^32
    return ((integers_HCL >> bits) * odd_L).sum(-1, dtype=torch.int64) & MASK


def unwrapped(low_HCL: Tensor, scaled_HCL: Tensor, bits: int) -> Tensor:
    """The integers that are `low` modulo 2^b and nearest to a receiver's own numbers on the sender's pitch.

    Law: the sender's, where |x_j - x_i| < reach · h."""
    least_HCL = whole(scaled_HCL + (0.5 - 2 ** (bits - 1)))
    return (low_HCL - least_HCL).bitwise_and_((1 << bits) - 1).add_(least_HCL)


def corrected(integers_HCL: Tensor, sums_HC: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """(integers, whether each chunk is right [H, C]): where the check sum is off by one number's factor, that number is
    one range too low or too high, and is put right in place.

    Laws: right where at most one number is wrong, by one range; where it is not right, it says so."""
    off_HC = (sums_HC - check_sums(integers_HCL, bits)) & MASK
    odd_L, order_L = _odd(sums_HC.device).sort()
    low, high = (torch.searchsorted(odd_L, value_HC).clamp(max=CHUNK - 1) for value_HC in (off_HC, -off_HC & MASK))
    too_low, too_high = odd_L[low] == off_HC, odd_L[high] == (-off_HC & MASK)
    place_HC = order_L[torch.where(too_low, low, high)]
    amount_HC = (too_low.to(integers_HCL.dtype) - too_high.to(integers_HCL.dtype)) << bits
    integers_HCL.scatter_add_(-1, place_HC[..., None], amount_HC[..., None])
    return integers_HCL, too_low | too_high | (off_HC == 0)


def pack(integers_HCL: Tensor, bits: int) -> Tensor:
    """[H, C, L] -> [H, C, bytes] of the integers modulo 2^b. Law: `unpack` gives them back."""
    count, octets = group(bits)
    low = (integers_HCL & ((1 << bits) - 1)).to(torch.int32).view(*integers_HCL.shape[:2], -1, count)
    words = low[..., 0].clone()
    for place in range(1, count):
        words |= low[..., place] << (place * bits)
    return torch.stack([words >> (8 * octet) for octet in range(octets)], -1).to(torch.uint8).flatten(2)


def unpack(bytes_HCB: Tensor, bits: int) -> Tensor:
    """[H, C, bytes] -> [H, C, L] integers from 0 to 2^b - 1, int32."""
    count, octets = group(bits)
    parts = bytes_HCB.to(torch.int32).view(*bytes_HCB.shape[:2], -1, octets)
    words = parts[..., 0].clone()
    for octet in range(1, octets):
        words |= parts[..., octet] << (8 * octet)
    return torch.stack([(words >> (place * bits)) & ((1 << bits) - 1) for place in range(count)], -1).flatten(2)


def group(bits: int) -> tuple[int, int]:
    """(numbers that fill whole bytes together, those bytes)."""
    count = 8 // math.gcd(8, bits)
    return count, count * bits // 8


def _blocks(like: Tensor) -> Iterator[tuple[int, int]]:
    """(first, last) of chunks that are worked on at a time."""
    count = chunks(like.shape[1])
    block = BLOCK if like.device.type == "cpu" else count
    return ((first, min(first + block, count)) for first in range(0, count, block))


def encode(rows_AD: Tensor, memory_AM: Tensor, seed: int, bits: int) -> Tensor:
    """[A, B] bytes: the numbers of all chunks, then the codes of their pitches and of
    those that are asked for, then their check sums."""
    agents, size = rows_AD.shape
    memory = Memory.split(memory_AM)
    dither, expected_AC = memory.dither(seed), memory.expected_AC + MOVED * memory.moved_AC
    packed_AB = torch.empty(agents, packed_bytes(size, bits), dtype=torch.uint8, device=rows_AD.device)
    numbers, codes_AC, asked_AC, sums = _fields(packed_AB, size, bits)
    for first, last in _blocks(rows_AD):
        rows_ACL = in_chunks(rows_AD[:, first * CHUNK : last * CHUNK])
        largest_AC = rows_ACL.abs().amax(-1)
        least_AC = memory.least_AC[:, first:last].to(torch.int32)
        of_block = torch.maximum(codes(largest_AC, expected_AC[:, first:last], bits), least_AC)
        integers_ACL = whole(scaled(rows_ACL, of_block, uniform(dither, first, last - first, rows_AD.dtype)))
        place = _bytes_of(first, last, bits)
        numbers[:, place] = pack(integers_ACL, bits).flatten(1)[:, : numbers[:, place].shape[1]]
        codes_AC[:, first:last], asked_AC[:, first:last] = of_block & 255, least_AC & 255
        is_whole = largest_AC * pitches(-of_block, rows_AD.dtype) < FURTHEST[rows_AD.dtype]
        sums_AC = check_sums(integers_ACL, bits) ^ ~is_whole  # what is not finite is not to be read
        octets = [(sums_AC >> (8 * octet)) & 255 for octet in range(4)]
        sums[:, 4 * first : 4 * last] = torch.stack(octets, -1).flatten(1)
    return packed_AB


def decode(packed_HB: Tensor, size: int, bits: int, first: int = 0, last: int | None = None) -> Parts:
    """What packed rows hold, of chunks from `first` to before `last`."""
    last = chunks(size) if last is None else last
    numbers, *both, sums = _fields(packed_HB, size, bits)
    part = numbers[:, _bytes_of(first, last, bits)]
    part = functional.pad(part, (0, (last - first) * CHUNK * bits // 8 - part.shape[1]))
    octets = sums[:, 4 * first : 4 * last].long().view(len(sums), -1, 4)
    sums_HC = sum(octets[..., octet] << (8 * octet) for octet in range(4))
    assert isinstance(sums_HC, Tensor)
    codes_HC, least_HC = (_signed(code[:, first:last]) for code in both)
    return Parts(unpack(part.view(len(part), last - first, -1), bits), codes_HC, least_HC, sums_HC)


def _fields(packed_HB: Tensor, size: int, bits: int) -> tuple[Tensor, ...]:
    """Views of numbers, codes of pitches, of least pitches, and check sums."""
    count = chunks(size)
    return packed_HB.split([math.ceil(size * bits / 8), count, count, 4 * count], 1)


def _signed(bytes_HC: Tensor) -> Tensor:
    return (bytes_HC.to(torch.int32) ^ 128) - 128


def _bytes_of(first: int, last: int, bits: int) -> slice:
    return slice(first * CHUNK * bits // 8, last * CHUNK * bits // 8)


def mix(
    rows_AD: Tensor, packed_AB: Tensor, heard: Heard, memory_AM: Tensor, pace: Pace, seed: int, bits: int
) -> tuple[Tensor, Tensor]:
    """(x_i + γ Σ_j w_ij (x̂_j - x̂_i), the memory for the next round). `packed_AB`: what the agents sent themselves. The
    weight of a chunk that is not right stays with the agent, and it asks for a wider pitch.

    Law: the mean of all agents is kept, where all chunks are right."""
    size, dtype = rows_AD.shape[1], rows_AD.dtype
    memory = Memory.split(memory_AM)
    dither, least_AC = memory.dither(seed), memory.least_AC.clone()
    alone_A1 = (heard.weights_AK == 0).all(1, keepdim=True)  # who hears nobody knows of nobody coming nearer
    next_AC = torch.where(alone_A1, memory.expected_AC, DECAY * memory.expected_AC)
    mixed_AD, right_AC = torch.empty_like(rows_AD), torch.ones_like(next_AC, dtype=torch.bool)
    weights_AK = heard.weights_AK * pace.step
    for first, last in _blocks(rows_AD):
        place = slice(first * CHUNK, last * CHUNK)
        rows_ACL = in_chunks(rows_AD[:, place])
        uniform_CL = uniform(dither, first, last - first, dtype)
        own_AC = _signed(_fields(packed_AB, size, bits)[1][:, first:last])
        rounded_ACL = whole(scaled(rows_ACL, own_AC, uniform_CL)).to(dtype) * pitches(own_AC, dtype)[..., None]
        mixed_ACL = rows_ACL.clone()
        arrived = decode(heard.packed_HB, size, bits, first, last)
        for senders_A, weights_A in zip(heard.senders_AK.mT, weights_AK.mT, strict=True):
            low_ACL, codes_AC, asked_AC, sums_AC = (part.index_select(0, senders_A) for part in arrived)
            pitch_AC = pitches(codes_AC, dtype)
            scaled_ACL = scaled(rows_ACL, codes_AC, uniform_CL)
            theirs_ACL, is_right_AC = corrected(unwrapped(low_ACL, scaled_ACL, bits), sums_AC, bits)
            heard_A1 = (weights_A != 0)[:, None]
            is_right_AC = is_right_AC | ~heard_A1
            share_AC = is_right_AC * weights_A[:, None]
            mixed_ACL += ((theirs_ACL.to(dtype) * pitch_AC[..., None]) - rounded_ACL) * share_AC[..., None]
            differ_ACL = (theirs_ACL - whole(scaled_ACL)).abs_()  # its expectation is that of |x_j - x_i| / h
            mean_AC = differ_ACL.sum(-1).to(dtype) * (TAIL / CHUNK)
            apart_AC = torch.maximum((differ_ACL.amax(-1) - 1).to(dtype), mean_AC)
            theirs = reach(bits) / margin(bits)  # how many pitches apart the sender expects neighbours to be
            seen_AC = pitch_AC * apart_AC.clamp(min=SPREAD * theirs) * (heard_A1 & is_right_AC)
            next_AC[:, first:last] = torch.maximum(next_AC[:, first:last], seen_AC)
            asked_AC = torch.where(is_right_AC, asked_AC, torch.maximum(asked_AC, codes_AC + WIDER))
            asked_AC = torch.minimum(asked_AC, own_AC + JUMP)
            least_AC[:, first:last] = torch.maximum(least_AC[:, first:last], torch.where(heard_A1, asked_AC, LEAST))
            right_AC[:, first:last] &= is_right_AC
        mixed_AD[:, place] = mixed_ACL.flatten(1)[:, : size - first * CHUNK]
    unread_AC = torch.where(right_AC, 0, memory.unread_AC + 1)
    least_AC = (least_AC - ((memory.round_A1 // pace.parts) % pace.pause == 0).to(dtype)).clamp(LEAST, MOST)
    after = Memory(next_AC, torch.zeros_like(next_AC), least_AC, unread_AC, memory.round_A1 + 1)
    return mixed_AD, after.joined()
