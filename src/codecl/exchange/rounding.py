"""Numbers as integers modulo 2^b, and back around a receiver's own. Pure functions; each law is a test of the same
name.

    ⌊x/h + u⌋ mod 2^b       stochastic rounding to a pitch h of each chunk of a row

Neighbours are near one another, so that a receiver knows what modulo cut off. Where one number of a chunk is out of
reach, a check sum tells which; where more are, it tells that. All agents draw the same u: where neighbours agree, so
do their roundings.

Shapes: A agents that send, H rows that are heard, C chunks of a row, L numbers of a chunk, D numbers of a row.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from codecl.exchange.pitches import INTEGER, pitches

CHUNK = 1024  # numbers with one pitch and one check sum
FURTHEST = {torch.float32: 2.0**30, torch.float64: 2.0**60}  # in pitches: beyond, nothing can be right
MASK = 0xFFFFFFFF


class Dither(NamedTuple):
    """Where the uniform numbers of a round come from: the same for all agents, in every exchange."""

    seed: int
    round: Tensor  # a number


def chunks(size: int) -> int:
    return math.ceil(size / CHUNK)


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


def scaled(rows_HCL: Tensor, codes_HC: Tensor, uniform_CL: Tensor) -> Tensor:
    """x/h + u."""
    return (rows_HCL * pitches(-codes_HC, rows_HCL.dtype)[..., None]).add_(uniform_CL)


def whole(scaled_HCL: Tensor) -> Tensor:
    """⌊·⌋ as integers."""
    limit = FURTHEST[scaled_HCL.dtype]
    return scaled_HCL.floor().clamp_(-limit, limit).to(INTEGER[scaled_HCL.dtype])


def unwrapped(low_HCL: Tensor, scaled_HCL: Tensor, bits: int) -> Tensor:
    """The integers that are `low` modulo 2^b and nearest to a receiver's own numbers on the sender's pitch.

    Law: the sender's, where |x_j - x_i| < reach · h."""
    least_HCL = whole(scaled_HCL + (0.5 - 2 ** (bits - 1)))
    return (low_HCL - least_HCL).bitwise_and_((1 << bits) - 1).add_(least_HCL)


def _odd(device: torch.device) -> Tensor:
    """[L] the factors of a check sum, 32 bits. Law: no two are equal, nor sum to zero."""
    return hashed(torch.arange(1, CHUNK + 1, device=device)) | 1


def check_sums(integers_HCL: Tensor, bits: int) -> Tensor:
    """[H, C]: of what modulo 2^b cuts off, 32 bits. A number that is wrong by any multiple of 2^b shows."""
    odd_L = _odd(integers_HCL.device)
    odd_L = torch.where(odd_L >> 31 > 0, odd_L - (1 << 32), odd_L).to(integers_HCL.dtype)  # signed, equal modulo 2^32
    return ((integers_HCL >> bits) * odd_L).sum(-1, dtype=torch.int64) & MASK


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
