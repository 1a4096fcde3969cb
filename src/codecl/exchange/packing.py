"""Rows of integers as bytes: the numbers of all chunks, the codes of their pitches and of those that are asked for,
and their check sums.

Shapes: A agents that send, H rows that are heard, C chunks of a row, L numbers of a chunk, B bytes of a packed row.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from codecl.exchange.rounding import CHUNK, chunks

HEADER = 6  # bytes of a chunk beside its numbers: codes of the pitch and of the least pitch, and the check sum


class Parts(NamedTuple):
    """What packed rows hold."""

    integers_HCL: Tensor  # modulo 2^b
    codes_HC: Tensor  # of pitches
    least_HC: Tensor  # codes of pitches that neighbours are asked for
    sums_HC: Tensor  # 32 bits: check sums of what modulo cut off


def packed_bytes(size: int, bits: int) -> int:
    """B: what a message of so many numbers has. Law: it is what `encode` gives."""
    return math.ceil(size * bits / 8) + HEADER * chunks(size)


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


def decode(packed_HB: Tensor, size: int, bits: int, first: int = 0, last: int | None = None) -> Parts:
    """What packed rows hold, of chunks from `first` to before `last`."""
    last = chunks(size) if last is None else last
    numbers, *both, sums = fields(packed_HB, size, bits)
    part = numbers[:, bytes_of(first, last, bits)]
    part = functional.pad(part, (0, (last - first) * CHUNK * bits // 8 - part.shape[1]))
    octets = sums[:, 4 * first : 4 * last].long().view(len(sums), -1, 4)
    sums_HC = sum(octets[..., octet] << (8 * octet) for octet in range(4))
    assert isinstance(sums_HC, Tensor)
    codes_HC, least_HC = (signed(code[:, first:last]) for code in both)
    return Parts(unpack(part.view(len(part), last - first, -1), bits), codes_HC, least_HC, sums_HC)


def fields(packed_HB: Tensor, size: int, bits: int) -> tuple[Tensor, ...]:
    """Views of numbers, codes of pitches, of least pitches, and check sums."""
    count = chunks(size)
    return packed_HB.split([math.ceil(size * bits / 8), count, count, 4 * count], 1)


def signed(bytes_HC: Tensor) -> Tensor:
    return (bytes_HC.to(torch.int32) ^ 128) - 128


def bytes_of(first: int, last: int, bits: int) -> slice:
    return slice(first * CHUNK * bits // 8, last * CHUNK * bits // 8)
