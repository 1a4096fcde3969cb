"""Batch norm of all agents on the statistics of the batch: two launches forward, two backward.

Channels lie last in memory. Rows are cut into chunks: a first launch reduces each, a second puts the chunks of its
channels together again in every program, which is cheaper than a launch between.

Shapes: A agents, B images, C channels, (H, W) a map, m = (b, y, x) one of M rows, K chunks of rows.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Tuned on an H200. Chunks are as many as fill the device with programs, and at most these.
NORM = {"block": 4096, "block_c": 32, "fill": 528, "chunks": 64}


@triton.jit
def _load(base, agent, m, c, rows, C: tl.constexpr):
    real = (m < rows)[:, None] & (c < C)[None, :]
    return tl.load(base + agent * rows * C + m[:, None] * C + c[None, :], mask=real, other=0.0).to(tl.float32)


@triton.jit
def _save(base, value, agent, m, c, rows, C: tl.constexpr):
    real = (m < rows)[:, None] & (c < C)[None, :]
    tl.store(base + agent * rows * C + m[:, None] * C + c[None, :], value.to(base.dtype.element_ty), mask=real)


@triton.jit
def _chunks(parts, agent, c, chunks, C: tl.constexpr, CHUNKS: tl.constexpr):
    """[K, c]: what the first launch left for these channels."""
    k = tl.arange(0, CHUNKS)
    real = (k < chunks)[:, None] & (c < C)[None, :]
    return tl.load(parts + (agent * chunks + k)[:, None] * C + c[None, :], mask=real, other=0.0)


@triton.jit(do_not_specialize=["rows", "length", "chunks"])
def _measure(
    x, means, squares, rows, length, chunks,
    C: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The mean of each chunk, and the sum of squares around it."""
    chunk, agent = tl.program_id(0), tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    begin, end = chunk * length, tl.minimum((chunk + 1) * length, rows)
    mean, square = tl.zeros((BLOCK_M, BLOCK_C), tl.float32), tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    count = tl.zeros((BLOCK_M,), tl.float32)
    for start in range(begin, end, BLOCK_M):  # every place of the tile on its own (Welford): no reduction in the loop
        m = start + tl.arange(0, BLOCK_M)
        value = _load(x, agent, m, c, rows, C)
        here = (m < end).to(tl.float32)
        count += here
        apart = (value - mean) * here[:, None]
        mean += apart * (1 / tl.maximum(count, 1.0))[:, None]
        square += apart * (value - mean)
    position = tl.sum(mean * count[:, None], 0) / (end - begin)
    apart = mean - position[None, :]
    place = (agent * chunks + chunk) * C + c
    tl.store(means + place, position, mask=c < C)
    tl.store(squares + place, tl.sum(square + apart * apart * count[:, None], 0), mask=c < C)


@triton.jit(do_not_specialize=["rows", "length", "chunks", "epsilon"])
def _normalise(
    x, weight, bias, means, squares, out, mean_out, scale_out, rows, length, chunks, wa, wc, ba, bc, epsilon,
    C: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """(x - mean) / √(variance + ε) · weight + bias."""
    chunk, agent = tl.program_id(0), tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    first = tl.arange(0, CHUNKS) * length
    count = tl.maximum(tl.minimum(rows - first, length), 0).to(tl.float32)[:, None]
    middles = _chunks(means, agent, c, chunks, C, CHUNKS)  # put together as Chan does: nothing cancels
    mean = tl.sum(middles * count, 0) / rows
    apart = middles - mean[None, :]
    square = tl.sum(_chunks(squares, agent, c, chunks, C, CHUNKS) + apart * apart * count, 0)
    scale = 1 / tl.sqrt(square / rows + epsilon)
    if chunk == 0:
        tl.store(mean_out + agent * C + c, mean, mask=c < C)
        tl.store(scale_out + agent * C + c, scale, mask=c < C)
    gain = scale * tl.load(weight + agent * wa + c * wc, mask=c < C, other=0.0).to(tl.float32)
    shift = tl.load(bias + agent * ba + c * bc, mask=c < C, other=0.0).to(tl.float32)
    for start in range(chunk * length, tl.minimum((chunk + 1) * length, rows), BLOCK_M):
        m = start + tl.arange(0, BLOCK_M)
        value = _load(x, agent, m, c, rows, C)
        _save(out, (value - mean[None, :]) * gain[None, :] + shift[None, :], agent, m, c, rows, C)


@triton.jit(do_not_specialize=["rows", "length", "chunks"])
def _sums(
    grad, x, means, scales, sums, products, rows, length, chunks,
    C: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Σ g and Σ g x̂ of each chunk."""
    chunk, agent = tl.program_id(0), tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    mean = tl.load(means + agent * C + c, mask=c < C, other=0.0)[None, :]
    total, product = tl.zeros((BLOCK_M, BLOCK_C), tl.float32), tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for start in range(chunk * length, tl.minimum((chunk + 1) * length, rows), BLOCK_M):
        m = start + tl.arange(0, BLOCK_M)
        above = _load(grad, agent, m, c, rows, C)
        total += above
        product += above * (_load(x, agent, m, c, rows, C) - mean)
    scale = tl.load(scales + agent * C + c, mask=c < C, other=0.0)
    place = (agent * chunks + chunk) * C + c
    tl.store(sums + place, tl.sum(total, 0), mask=c < C)
    tl.store(products + place, tl.sum(product, 0) * scale, mask=c < C)


@triton.jit(do_not_specialize=["rows", "length", "chunks"])
def _backward(
    grad, x, weight, means, scales, sums, products, out, by_weight, by_bias, rows, length, chunks, wa, wc,
    C: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """weight · scale · (g - mean(g) - x̂ mean(g x̂)), and the gradients by weight and bias."""
    chunk, agent = tl.program_id(0), tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.sum(_chunks(sums, agent, c, chunks, C, CHUNKS), 0)
    product = tl.sum(_chunks(products, agent, c, chunks, C, CHUNKS), 0)
    if chunk == 0:
        tl.store(by_weight + agent * C + c, product, mask=c < C)
        tl.store(by_bias + agent * C + c, total, mask=c < C)
    mean = tl.load(means + agent * C + c, mask=c < C, other=0.0)[None, :]
    scale = tl.load(scales + agent * C + c, mask=c < C, other=0.0)
    gain = (scale * tl.load(weight + agent * wa + c * wc, mask=c < C, other=0.0).to(tl.float32))[None, :]
    position, slope = (total / rows)[None, :], (scale * product / rows)[None, :]
    for start in range(chunk * length, tl.minimum((chunk + 1) * length, rows), BLOCK_M):
        m = start + tl.arange(0, BLOCK_M)
        above, value = _load(grad, agent, m, c, rows, C), _load(x, agent, m, c, rows, C)
        _save(out, gain * (above - position - (value - mean) * slope), agent, m, c, rows, C)


def _last(x: Tensor) -> Tensor:
    """[A, B, ..., C] contiguous from [A, B, C, ...]."""
    return x.movedim(2, -1).contiguous()


def _grid(x_ABC: Tensor) -> tuple[tuple[int, int, int], int, int, dict[str, int]]:
    """Programs (chunks, blocks of channels, agents), rows, rows of a chunk, and tiles."""
    agents, channels = x_ABC.shape[0], x_ABC.shape[-1]
    rows = x_ABC.numel() // (agents * channels)
    block_c = min(NORM["block_c"], max(16, triton.next_power_of_2(channels)))
    block_m = min(NORM["block"] // block_c, max(16, triton.next_power_of_2(rows)))
    blocks = triton.cdiv(channels, block_c)
    chunks = min(NORM["chunks"], triton.cdiv(NORM["fill"], agents * blocks), triton.cdiv(rows, block_m))
    length = triton.cdiv(triton.cdiv(rows, chunks), block_m) * block_m
    tiles = {"C": channels, "BLOCK_M": block_m, "BLOCK_C": block_c}
    return (triton.cdiv(rows, length), blocks, agents), rows, length, tiles


class Stacked(torch.autograd.Function):
    """Batch norm of [A, B, C] or [A, B, C, H, W] with weight and bias [A, C]; channels lie last in what comes out."""

    @staticmethod
    def forward(ctx: Any, x_ABC: Tensor, weight_AC: Tensor, bias_AC: Tensor, epsilon: float) -> Tensor:
        x = _last(x_ABC)
        grid, rows, length, tiles = _grid(x)
        chunks, _, agents = grid
        parts = x.new_empty(2, agents, chunks, tiles["C"], dtype=torch.float32)
        out, saved = torch.empty_like(x), x.new_empty(2, agents, tiles["C"], dtype=torch.float32)
        _measure[grid](x, parts[0], parts[1], rows, length, chunks, **tiles)
        _normalise[grid](
            x, weight_AC, bias_AC, parts[0], parts[1], out, saved[0], saved[1], rows, length, chunks,
            *weight_AC.stride(), *bias_AC.stride(), epsilon, CHUNKS=max(16, triton.next_power_of_2(chunks)), **tiles,
        )  # fmt: skip
        ctx.save_for_backward(x, weight_AC, saved)
        ctx.bias_type = bias_AC.dtype
        return out.movedim(-1, 2)

    @staticmethod
    def backward(ctx: Any, grad_ABC: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight_AC, saved = ctx.saved_tensors
        grid, rows, length, tiles = _grid(x)
        chunks, _, agents = grid
        grad, out = _last(grad_ABC), torch.empty_like(x)
        parts, by = x.new_empty(2, agents, chunks, tiles["C"], dtype=torch.float32), torch.empty_like(saved)
        _sums[grid](grad, x, saved[0], saved[1], parts[0], parts[1], rows, length, chunks, **tiles)
        _backward[grid](
            grad, x, weight_AC, saved[0], saved[1], parts[0], parts[1], out, by[0], by[1], rows, length, chunks,
            *weight_AC.stride(), CHUNKS=max(16, triton.next_power_of_2(chunks)), **tiles,
        )  # fmt: skip
        return out.movedim(-1, 2), by[0].to(weight_AC.dtype), by[1].to(ctx.bias_type), None
