"""Messages in few bits on a GPU: `encode`, `mix` and `moved` of `quantised` in a launch each, equal bit for bit.

A program works on a chunk of an agent. Products and sums are rounded one by one, as PyTorch's are.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from codecl.exchange.base import Heard
from codecl.exchange.packing import group, packed_bytes
from codecl.exchange.pitches import LEAST, MOST, RESOLUTION, margin, reach
from codecl.exchange.quantised import APART, DECAY, FEW, JUMP, MOVED, SAMPLE, SPREAD, TAIL, WIDER, Pace
from codecl.exchange.rounding import CHUNK, FURTHEST, chunks

FLOAT = torch.float32
EXACTLY = {"enable_fp_fusion": False, "num_warps": 4}
SAMPLED = 8  # chunks of a program that looks at a part of each


@triton.jit
def _hashed(value):
    value = value ^ (value >> 16)
    value = value * 0x85EBCA6B
    value = value ^ (value >> 13)
    value = value * 0xC2B2AE35
    return value ^ (value >> 16)


@triton.jit
def _uniform(seed, turn, chunk, L: tl.constexpr):
    """The uniform numbers of a chunk in this round."""
    key = _hashed(seed.to(tl.uint32) + turn.to(tl.int32).to(tl.uint32) * 0x9E3779B9)
    base = _hashed(key + _hashed(tl.arange(0, L).to(tl.uint32)))
    shift = _hashed(key ^ _hashed((chunk + L).to(tl.uint32)))
    return (((base >> 8) + (shift >> 8)) & 0xFFFFFF).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def _pitch(code):
    """2^(code / 4)."""
    pitch = (((code >> 2) + 127) << 23).to(tl.float32, bitcast=True)
    step = code & 3
    pitch = tl.where(step == 1, pitch * 1.189207115002721, pitch)
    pitch = tl.where(step == 2, pitch * 1.4142135623730951, pitch)
    return tl.where(step == 3, pitch * 1.681792830507429, pitch)


@triton.jit
def _code(wanted, LEAST: tl.constexpr, MOST: tl.constexpr):
    """The smallest pitch that is at least this."""
    bits = wanted.to(tl.int32, bitcast=True)
    octave = (bits >> 23) - 127
    part = ((bits & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True)
    above = (part > 1.0).to(tl.int32) + (part > 1.189207115002721).to(tl.int32)
    above += (part > 1.4142135623730951).to(tl.int32) + (part > 1.681792830507429).to(tl.int32)
    code = tl.minimum(tl.maximum(4 * octave + above, LEAST), MOST)
    return tl.where(octave > 127, LEAST, code)


@triton.jit
def _signed(byte):
    return (tl.load(byte).to(tl.int32) ^ 128) - 128


@triton.jit
def _whole(scaled, FURTHEST: tl.constexpr):
    return tl.minimum(tl.maximum(tl.floor(scaled), -FURTHEST), FURTHEST).to(tl.int32)


@triton.jit
def _odd(L: tl.constexpr):
    return (_hashed((tl.arange(0, L) + 1).to(tl.uint32)) | 1).to(tl.int32, bitcast=True)


@triton.jit(do_not_specialize=["seed", "size", "bytes", "numbers", "width"])
def _encode(
    rows, memory, packed, seed, size, bytes, numbers, width,
    BITS: tl.constexpr, GROUP: tl.constexpr, OCTETS: tl.constexpr, L: tl.constexpr,
    MOVED: tl.constexpr, MARGIN: tl.constexpr, FINEST: tl.constexpr, FURTHEST: tl.constexpr, LEAST: tl.constexpr,
    MOST: tl.constexpr,
):  # fmt: skip
    """`bytes`: of a packed row, `numbers`: of those without codes and check sums, `width`: of a memory."""
    chunk, agent, count = tl.program_id(0), tl.program_id(1).to(tl.int64), (size + L - 1) // L
    place = chunk * L + tl.arange(0, L)
    x = tl.load(rows + agent * size + place, mask=place < size, other=0.0)
    finite = tl.sum((tl.abs(x) < float("inf")).to(tl.int32), 0) == L
    largest = tl.max(tl.abs(x), 0)
    own = memory + agent * width
    before, asked = tl.load(own + chunk), tl.load(own + 2 * count + chunk).to(tl.int32)
    expected = before + tl.load(own + count + chunk) * MOVED
    code = _code(tl.maximum(expected * MARGIN, largest * FINEST), LEAST, MOST)
    code = tl.maximum(tl.where(finite, code, LEAST), asked)
    finer = _pitch(-code)
    scaled = x * finer + _uniform(seed, tl.load(own + width - 1), chunk, L)
    integers = _whole(scaled, FURTHEST)
    low = tl.reshape(integers & ((1 << BITS) - 1), (L // GROUP, GROUP))
    words = tl.sum(low << (tl.arange(0, GROUP) * BITS)[None, :], 1)
    out = packed + agent * bytes
    first = chunk * (L // GROUP * OCTETS) + tl.arange(0, L // GROUP) * OCTETS
    for octet in tl.static_range(OCTETS):
        value = ((words >> (8 * octet)) & 255).to(tl.uint8)
        tl.store(out + first + octet, value, mask=first + octet < numbers)
    tl.store(out + numbers + chunk, (code & 255).to(tl.uint8))
    tl.store(out + numbers + count + chunk, (asked & 255).to(tl.uint8))
    spoiled = tl.where(finite & (largest * finer < FURTHEST), 0, 1)
    check = tl.sum((integers >> BITS) * _odd(L), 0) ^ spoiled
    for octet in tl.static_range(4):
        tl.store(out + numbers + 2 * count + 4 * chunk + octet, ((check >> (8 * octet)) & 255).to(tl.uint8))


@triton.jit(do_not_specialize=["seed", "size", "bytes", "numbers", "width", "senders_count", "step", "pause", "parts"])
def _mix(
    rows, packed, heard, senders, weights, memory, mixed, after,
    seed, size, bytes, numbers, width, senders_count, step, pause, parts,
    BITS: tl.constexpr, L: tl.constexpr, HALF: tl.constexpr, TAIL: tl.constexpr, DECAY: tl.constexpr,
    SPREAD: tl.constexpr, WIDER: tl.constexpr, JUMP: tl.constexpr, FURTHEST: tl.constexpr,
    LEAST: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """`SPREAD`: in pitches of the sender."""
    chunk, agent, count = tl.program_id(0), tl.program_id(1).to(tl.int64), (size + L - 1) // L
    place = chunk * L + tl.arange(0, L)
    x = tl.load(rows + agent * size + place, mask=place < size, other=0.0)
    own, turn = memory + agent * width, tl.load(memory + agent * width + width - 1)
    uniform = _uniform(seed, turn, chunk, L)
    code = _signed(packed + agent * bytes + numbers + chunk)
    rounded = _whole(x * _pitch(-code) + uniform, FURTHEST).to(tl.float32) * _pitch(code)
    before, right, alone = tl.load(own + chunk), tl.full((), 1, tl.int32), tl.full((), 1, tl.int32)
    result, expected = x, before * DECAY
    least = tl.load(own + 2 * count + chunk).to(tl.int32)
    odd, at = _odd(L), tl.arange(0, L) * BITS
    byte, shift = chunk * (L // 8 * BITS) + (at >> 3), at & 7
    for number in range(senders_count):
        sender = tl.load(senders + agent * senders_count + number)
        weight = tl.load(weights + agent * senders_count + number) * step
        row = heard + sender * bytes
        theirs_code, asked = _signed(row + numbers + chunk), _signed(row + numbers + count + chunk)
        low = tl.load(row + byte, mask=byte < numbers, other=0).to(tl.int32)
        if BITS == 16 or BITS == 3:  # what crosses a byte's end
            low = low | (tl.load(row + byte + 1, mask=byte + 1 < numbers, other=0).to(tl.int32) << 8)
        low = (low >> shift) & ((1 << BITS) - 1)
        scaled = x * _pitch(-theirs_code) + uniform
        lowest = _whole(scaled + HALF, FURTHEST)
        theirs = ((low - lowest) & ((1 << BITS) - 1)) + lowest
        check = tl.full((), 0, tl.int32)
        for octet in tl.static_range(4):
            check |= tl.load(row + numbers + 2 * count + 4 * chunk + octet).to(tl.int32) << (8 * octet)
        is_heard = weight != 0
        alone = alone & (weight == 0).to(tl.int32)
        off = check - tl.sum((theirs >> BITS) * odd, 0)
        wrong = (odd == off).to(tl.int32) - (odd == -off).to(tl.int32)  # one number, too low or too high
        theirs += wrong << BITS
        is_right = (off == 0) | (tl.sum(tl.abs(wrong), 0) > 0) | (weight == 0)
        pitch = _pitch(theirs_code)
        share = tl.where(is_right, weight, 0.0)
        result = result + (theirs.to(tl.float32) * pitch - rounded) * share
        differ = tl.abs(theirs - _whole(scaled, FURTHEST))
        mean = tl.sum(differ, 0).to(tl.float32) * TAIL
        apart = tl.maximum((tl.max(differ, 0) - 1).to(tl.float32), mean)
        seen = pitch * tl.maximum(apart, SPREAD)
        expected = tl.maximum(expected, tl.where(is_heard & is_right, seen, 0.0))
        asked = tl.where(is_right, asked, tl.maximum(asked, theirs_code + WIDER))
        least = tl.maximum(least, tl.where(is_heard, tl.minimum(asked, code + JUMP), LEAST))
        right = right & is_right.to(tl.int32)
    tl.store(mixed + agent * size + place, result, mask=place < size)
    out = after + agent * width
    tl.store(out + chunk, tl.where(alone == 1, before, expected))
    tl.store(out + count + chunk, 0.0)
    least = tl.minimum(tl.maximum(least - tl.where(turn.to(tl.int32) // parts % pause == 0, 1, 0), LEAST), MOST)
    tl.store(out + 2 * count + chunk, least.to(tl.float32))
    tl.store(out + 3 * count + chunk, tl.where(right == 1, 0.0, tl.load(own + 3 * count + chunk) + 1))
    if chunk == 0:
        tl.store(out + width - 1, turn + 1)


@triton.jit(do_not_specialize=["size", "count", "width"])
def _moved(
    memory, before, rows, after, size, count, width,
    CHUNKS: tl.constexpr, LOOKED: tl.constexpr, SAMPLE: tl.constexpr, APART: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """`LOOKED`: numbers of a chunk that are looked at, `CHUNKS`: of a program."""
    chunk, agent = tl.program_id(0) * CHUNKS + tl.arange(0, CHUNKS), tl.program_id(1).to(tl.int64)
    number = tl.arange(0, LOOKED)
    place = chunk[:, None] * L + (number // SAMPLE * APART + number % SAMPLE)[None, :]
    if LOOKED == L:
        real = place < size
    else:
        place = tl.minimum(place, size - 1)
        real = (chunk < count)[:, None] & (place < size)
    old = tl.load(before + agent * size + place, mask=real, other=0.0)
    new = tl.load(rows + agent * size + place, mask=real, other=0.0)
    own, out, there = memory + agent * width, after + agent * width, chunk < count
    tl.store(out + chunk, tl.load(own + chunk, mask=there), mask=there)
    so_far = tl.load(own + count + chunk, mask=there, other=0.0)
    tl.store(out + count + chunk, so_far + tl.max(tl.abs(new - old), 1), mask=there)
    tl.store(out + 2 * count + chunk, tl.load(own + 2 * count + chunk, mask=there), mask=there)
    tl.store(out + 3 * count + chunk, tl.load(own + 3 * count + chunk, mask=there), mask=there)
    if tl.program_id(0) == 0:
        tl.store(out + width - 1, tl.load(own + width - 1))


def encode(rows_AD: Tensor, memory_AM: Tensor, seed: int, bits: int) -> Tensor:
    """As `quantised.encode`."""
    (agents, size), (together, octets) = rows_AD.shape, group(bits)
    packed_AB = torch.empty(agents, packed_bytes(size, bits), dtype=torch.uint8, device=rows_AD.device)
    _encode[chunks(size), agents](
        rows_AD.contiguous(), memory_AM.contiguous(), packed_AB, seed, *_sizes(packed_AB, memory_AM, size, bits),
        BITS=bits, GROUP=together, OCTETS=octets, L=CHUNK, MOVED=MOVED, MARGIN=margin(bits) / reach(bits),
        FINEST=2.0 ** -RESOLUTION[FLOAT], FURTHEST=FURTHEST[FLOAT], LEAST=LEAST, MOST=MOST, **EXACTLY,
    )  # fmt: skip
    return packed_AB


def mix(
    rows_AD: Tensor, packed_AB: Tensor, heard: Heard, memory_AM: Tensor, pace: Pace, seed: int, bits: int
) -> tuple[Tensor, Tensor]:
    """As `quantised.mix`."""
    agents, size = rows_AD.shape
    mixed_AD, after_AM = torch.empty_like(rows_AD, memory_format=torch.contiguous_format), torch.empty_like(memory_AM)
    apart = reach(bits) / margin(bits)
    _mix[chunks(size), agents](
        rows_AD.contiguous(), packed_AB, heard.packed_HB, heard.senders_AK, heard.weights_AK, memory_AM.contiguous(),
        mixed_AD, after_AM, seed, *_sizes(packed_AB, memory_AM, size, bits), heard.senders_AK.shape[1], *pace,
        BITS=bits, L=CHUNK, HALF=0.5 - 2 ** (bits - 1), TAIL=TAIL / CHUNK, DECAY=DECAY,
        SPREAD=SPREAD * apart, WIDER=WIDER, JUMP=JUMP, FURTHEST=FURTHEST[FLOAT], LEAST=LEAST, MOST=MOST, **EXACTLY,
    )  # fmt: skip
    return mixed_AD, after_AM


def moved(memory_AM: Tensor, before_AD: Tensor, after_AD: Tensor) -> Tensor:
    """As `quantised.moved`."""
    (agents, size), out_AM = before_AD.shape, torch.empty_like(memory_AM)
    count, few = chunks(size), chunks(size) <= FEW
    tiles: dict[str, Any] = {"CHUNKS": 1, "LOOKED": CHUNK, "SAMPLE": CHUNK, "APART": CHUNK}
    if not few:
        tiles = {"CHUNKS": SAMPLED, "LOOKED": CHUNK // APART * SAMPLE, "SAMPLE": SAMPLE, "APART": APART}
    _moved[math.ceil(count / tiles["CHUNKS"]), agents](
        memory_AM.contiguous(), before_AD.contiguous(), after_AD.contiguous(), out_AM, size, count, memory_AM.shape[1],
        L=CHUNK, **tiles, **EXACTLY,
    )  # fmt: skip
    return out_AM


def _sizes(packed_AB: Tensor, memory_AM: Tensor, size: int, bits: int) -> tuple[int, int, int, int]:
    return size, packed_AB.shape[1], math.ceil(size * bits / 8), memory_AM.shape[1]
