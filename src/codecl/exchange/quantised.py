"""Gossip with rows in few bits.

    x̂ = h ⌊x/h + u⌋                     rounded; sent modulo 2^b
    x_i ← x_i + γ Σ_j w_ij (x̂_j - x̂_i)   keeps the mean of all agents, for any pitches

A chunk that a neighbour could not read counts as lost, and it asks for a wider pitch. The noise in x̂_j - x̂_i goes
with h |x_j - x_i| instead of h², since all agents draw the same u.

`kernels` has `encode`, `mix` and `moved` for a GPU, equal bit for bit.

Shapes: A agents that send, H rows that are heard, K senders that an agent hears at most, D numbers of a row,
C chunks of a row, L numbers of a chunk, B bytes of a packed row, M numbers of an agent's memory.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from codecl.exchange.base import Heard
from codecl.exchange.packing import bytes_of, decode, fields, pack, packed_bytes, signed
from codecl.exchange.pitches import LEAST, MOST, codes, margin, pitches, reach
from codecl.exchange.rounding import (
    CHUNK,
    FURTHEST,
    Dither,
    check_sums,
    chunks,
    corrected,
    in_chunks,
    scaled,
    uniform,
    unwrapped,
    whole,
)

MOVED = 2.0  # two neighbours that both moved are apart by at most so much more
TAIL = 5.0  # the largest difference of a chunk over the mean one, at least
WIDER = 8  # codes: a chunk that could not be unwrapped should come with a pitch so much wider, four times as wide
JUMP = 8  # codes that a pitch widens at most in a round, whatever is asked for
SPREAD = 0.5  # of what a neighbour expects
DECAY = 0.8  # of what was expected, where less was seen
SAMPLE, APART = 32, 256  # to tell how far a chunk moved, so many numbers side by side are looked at, so far apart
FEW = 64  # chunks: of rows that are no longer all numbers are looked at
BLOCK = 256  # chunks at a time on a CPU: they stay in its cache


class Pace(NamedTuple):
    """How fast agents come together, and how long word of a chunk that could not be read lasts."""

    step: float  # γ
    pause: int  # turns after which the pitch that is asked for is lowered by a code: word gets round before it fades
    parts: int = 1  # rounds from one turn of a chunk to the next


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
    numbers, codes_AC, asked_AC, sums = fields(packed_AB, size, bits)
    for first, last in _blocks(rows_AD):
        rows_ACL = in_chunks(rows_AD[:, first * CHUNK : last * CHUNK])
        largest_AC = rows_ACL.abs().amax(-1)
        least_AC = memory.least_AC[:, first:last].to(torch.int32)
        of_block = torch.maximum(codes(largest_AC, expected_AC[:, first:last], bits), least_AC)
        integers_ACL = whole(scaled(rows_ACL, of_block, uniform(dither, first, last - first, rows_AD.dtype)))
        place = bytes_of(first, last, bits)
        numbers[:, place] = pack(integers_ACL, bits).flatten(1)[:, : numbers[:, place].shape[1]]
        codes_AC[:, first:last], asked_AC[:, first:last] = of_block & 255, least_AC & 255
        is_whole = largest_AC * pitches(-of_block, rows_AD.dtype) < FURTHEST[rows_AD.dtype]
        sums_AC = check_sums(integers_ACL, bits) ^ ~is_whole  # what is not finite is not to be read
        octets = [(sums_AC >> (8 * octet)) & 255 for octet in range(4)]
        sums[:, 4 * first : 4 * last] = torch.stack(octets, -1).flatten(1)
    return packed_AB


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
        own_AC = signed(fields(packed_AB, size, bits)[1][:, first:last])
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
