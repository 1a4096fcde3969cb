"""The convolutions of all agents in one launch: an implicit matrix product that reads patches where they lie.

cuDNN has no good plan for many small convolutions with a weight each: grouped, it pays for changes of layout, and one
by one for launches. Here agents are one more dimension of the grid. Channels lie last in memory, so that one row of
taps reads a single run of values, columns and channels together.

Shapes: A agents, B images, C channels of the source, O channels that come out, (H, W) a map, (y, x) a place in it,
m = (b, y, x) a row of the product, (i, j) a tap, r = (j, c) a place in the run of one row of taps.
"""

from math import gcd
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

# Tuned on an H200. Blocks of r and o are at most these; a grid of fewer programs than `fill` takes smaller tiles. Short
# runs go through L1, where patches overlap (one stage); longer ones are copied ahead, past it. WEIGH keeps o under 64:
# from there on tf32 goes through wgmma, which wants rows m to lie together, and turning them copies value by value.
CORRELATE = {"block_m": 128, "block_r": 32, "block_o": 64, "fill": 264, "short": 60, "stages": 3}
WEIGH = {"block_m": 128, "block_r": 64, "block_o": 32, "fill": 528, "stages": 2}
VECTOR = 16  # bytes that a thread reads at once


class Shape(NamedTuple):
    """Kernel size, stride and padding, rows then columns."""

    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    def output(self, source: tuple[int, ...]) -> list[int]:
        whole = zip(source, self.size, self.stride, self.padding, strict=True)
        return [(length + 2 * pad - size) // stride + 1 for length, size, stride, pad in whole]


# A layer compiles its own kernels, as channels that are known let a thread read 16 bytes at once; batches vary.
@triton.jit(do_not_specialize=["images"])
def _correlate(
    source, weight, out, images,
    C: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    OUTS: tl.constexpr, OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr,
    SIZE_Y: tl.constexpr, SIZE_X: tl.constexpr, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr,
    PAD_Y: tl.constexpr, PAD_X: tl.constexpr, TRANSPOSED: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_O: tl.constexpr, GRAIN: tl.constexpr,
):  # fmt: skip
    """out[m, o] = Σ_i,r source[m, i, r] weight[o, i, r] for one agent.

    Transposed, places with the same (y + pad) % stride use the same taps, every stride-th: such a phase is a plain
    correlation of stride 1 with these taps backwards, and has programs of its own.
    """
    agent = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    if TRANSPOSED:
        phase, block = tl.program_id(1) % (STRIDE_Y * STRIDE_X), tl.program_id(1) // (STRIDE_Y * STRIDE_X)
        phase_y, phase_x = phase // STRIDE_X, phase % STRIDE_X
        taps_y, taps_x = (SIZE_Y - phase_y + STRIDE_Y - 1) // STRIDE_Y, (SIZE_X - phase_x + STRIDE_X - 1) // STRIDE_X
        ROWS: tl.constexpr = (OUT_HEIGHT + STRIDE_Y - 1) // STRIDE_Y
        COLUMNS: tl.constexpr = (OUT_WIDTH + STRIDE_X - 1) // STRIDE_X
        image = m // (ROWS * COLUMNS)
        row = m // COLUMNS % ROWS + (PAD_Y - phase_y + STRIDE_Y - 1) // STRIDE_Y
        column = m % COLUMNS + (PAD_X - phase_x + STRIDE_X - 1) // STRIDE_X
        y, x = row * STRIDE_Y + phase_y - PAD_Y, column * STRIDE_X + phase_x - PAD_X
        top, left = row - taps_y + 1, column - taps_x + 1
        known = (image < images) & (y < OUT_HEIGHT) & (x < OUT_WIDTH)
    else:
        block, taps_y, taps_x = tl.program_id(1), SIZE_Y, SIZE_X
        image, y, x = m // (OUT_HEIGHT * OUT_WIDTH), m // OUT_WIDTH % OUT_HEIGHT, m % OUT_WIDTH
        top, left = y * STRIDE_Y - PAD_Y, x * STRIDE_X - PAD_X
        known = image < images
    o = block * BLOCK_O + tl.arange(0, BLOCK_O)
    run = taps_x * C
    blocks = (run + BLOCK_R - 1) // BLOCK_R
    source += agent * images * (HEIGHT * WIDTH * C)
    weight += agent * (OUTS * SIZE_Y * SIZE_X * C)
    corner = tl.multiple_of(((image * HEIGHT + top) * WIDTH + left) * C, GRAIN)
    total = tl.zeros((BLOCK_M, BLOCK_O), dtype=tl.float32)
    for step in range(taps_y * blocks):
        i, r = step // blocks, step % blocks * BLOCK_R + tl.arange(0, BLOCK_R)
        here, across = known & (top + i >= 0) & (top + i < HEIGHT), left[:, None] + (r // C)[None, :]
        inside = here[:, None] & (across >= 0) & (across < WIDTH) & (r < run)[None, :]
        patch = tl.load(source + (corner + i * (WIDTH * C))[:, None] + r[None, :], mask=inside, other=0.0)
        if TRANSPOSED:
            tap = (phase_y + (taps_y - 1 - i) * STRIDE_Y) * SIZE_X + phase_x + (taps_x - 1) * STRIDE_X
            place = tap * C + r - r // C * ((STRIDE_X + 1) * C)
        else:
            place = i * (SIZE_X * C) + r
        real = (o < OUTS)[:, None] & (r < run)[None, :]
        taps = tl.load(weight + o[:, None] * (SIZE_Y * SIZE_X * C) + place[None, :], mask=real, other=0.0)
        total = tl.dot(patch, tl.trans(taps), total, input_precision=PRECISION)
    out += agent * images * (OUT_HEIGHT * OUT_WIDTH * OUTS)
    spot = ((image * OUT_HEIGHT + y) * OUT_WIDTH + x) * OUTS
    tl.store(
        out + spot[:, None] + o[None, :], total.to(out.dtype.element_ty), mask=known[:, None] & (o < OUTS)[None, :]
    )


@triton.jit(do_not_specialize=["images", "length"])
def _weigh(
    source, grad, out, images, length,
    C: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    OUTS: tl.constexpr, OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr,
    SIZE_Y: tl.constexpr, SIZE_X: tl.constexpr, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr,
    PAD_Y: tl.constexpr, PAD_X: tl.constexpr, PRECISION: tl.constexpr, LAST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_O: tl.constexpr, GRAIN: tl.constexpr,
):  # fmt: skip
    """out[part, o, c, i, j] = Σ_m grad[m, o] source[m, i, r], over a part of the rows, for one agent and tap row.

    LAST: channels lie last in it too, out[part, o, i, j, c].
    """
    RUN: tl.constexpr = SIZE_X * C
    BLOCKS: tl.constexpr = (RUN + BLOCK_R - 1) // BLOCK_R
    part, agent = tl.program_id(0), tl.program_id(2).to(tl.int64)
    i, tile = tl.program_id(1) % SIZE_Y, tl.program_id(1) // SIZE_Y
    r = tile % BLOCKS * BLOCK_R + tl.arange(0, BLOCK_R)
    o = tile // BLOCKS * BLOCK_O + tl.arange(0, BLOCK_O)
    source += agent * images * (HEIGHT * WIDTH * C)
    grad += agent * images * (OUT_HEIGHT * OUT_WIDTH * OUTS)
    total = tl.zeros((BLOCK_O, BLOCK_R), dtype=tl.float32)
    for start in range(part * length, (part + 1) * length, BLOCK_M):
        m = start + tl.arange(0, BLOCK_M)
        image, y, x = m // (OUT_HEIGHT * OUT_WIDTH), m // OUT_WIDTH % OUT_HEIGHT, m % OUT_WIDTH
        row, left = y * STRIDE_Y - PAD_Y + i, x * STRIDE_X - PAD_X
        here, across = (image < images) & (row >= 0) & (row < HEIGHT), left[:, None] + (r // C)[None, :]
        inside = here[:, None] & (across >= 0) & (across < WIDTH) & (r < RUN)[None, :]
        corner = tl.multiple_of(((image * HEIGHT + row) * WIDTH + left) * C, GRAIN)
        patch = tl.load(source + corner[:, None] + r[None, :], mask=inside, other=0.0)
        real = (o < OUTS)[:, None] & (image < images)[None, :]
        above = tl.load(grad + o[:, None] + m[None, :] * OUTS, mask=real, other=0.0)
        total = tl.dot(above, patch, total, input_precision=PRECISION)
    out += (part * tl.num_programs(2) + agent) * (OUTS * SIZE_Y * RUN)
    place = i * RUN + r if LAST else (r % C * SIZE_Y + i) * SIZE_X + r // C
    tl.store(out + o[:, None] * (SIZE_Y * RUN) + place[None, :], total, mask=(o < OUTS)[:, None] & (r < RUN)[None, :])


def _block(length: int, most: int) -> int:
    return min(most, max(16, triton.next_power_of_2(length)))


def correlate(
    source_ABHWC: Tensor, weight_A: Tensor, shape: Shape, maps: list[int], precision: str, transposed: bool
) -> Tensor:
    """[A, B, *maps, O]: each agent's maps with its own weights [A, O, C, i, j]; the source lies as written."""
    agents, images, height, width, channels = source_ABHWC.shape
    outs, phase_y, phase_x = weight_A.shape[1], *(shape.stride if transposed else (1, 1))
    out = source_ABHWC.new_empty(agents, images, *maps, outs)
    rows = images * triton.cdiv(maps[0], phase_y) * triton.cdiv(maps[1], phase_x)
    run, copies, wide = shape.size[1] * channels, phase_y * phase_x * agents, 64 < outs <= 128
    block_m, block_o = CORRELATE["block_m"], _block(outs, 128 if wide else CORRELATE["block_o"])
    if triton.cdiv(rows, block_m) * triton.cdiv(outs, block_o) * copies < CORRELATE["fill"]:
        block_m, block_o = min(block_m, 64), min(block_o, 32)
    _correlate[(triton.cdiv(rows, block_m), phase_y * phase_x * triton.cdiv(outs, block_o), agents)](
        source_ABHWC, weight_A.permute(0, 1, 3, 4, 2).contiguous(), out, images,
        channels, height, width, outs, *maps, *shape.size, *shape.stride, *shape.padding, transposed, precision,
        BLOCK_M=block_m, BLOCK_R=_block(run, CORRELATE["block_r"]), BLOCK_O=block_o,
        GRAIN=gcd(channels, VECTOR // out.element_size()),
        num_warps=8 if block_o > 64 else 4, num_stages=1 if run <= CORRELATE["short"] else CORRELATE["stages"],
    )  # fmt: skip
    return out


def weigh(source_ABHWC: Tensor, grad_ABHWO: Tensor, shape: Shape, precision: str, last: bool) -> Tensor:
    """[A, O, C, i, j]: the gradient by each agent's weights; with `last`, channels lie last in it."""
    agents, images, height, width, channels = source_ABHWC.shape
    maps, outs = grad_ABHWO.shape[2:4], grad_ABHWO.shape[4]
    run, rows, block_m = shape.size[1] * channels, images * maps[0] * maps[1], WEIGH["block_m"]
    block_r, block_o = _block(run, WEIGH["block_r"]), _block(outs, WEIGH["block_o"])
    tiles = shape.size[0] * triton.cdiv(run, block_r) * triton.cdiv(outs, block_o)
    parts = min(triton.cdiv(WEIGH["fill"], tiles * agents), triton.cdiv(rows, 4 * block_m))
    length = triton.cdiv(triton.cdiv(rows, parts), block_m) * block_m
    order = (*shape.size, channels) if last else (channels, *shape.size)
    out = source_ABHWC.new_empty(parts, agents, outs, *order, dtype=torch.float32)
    _weigh[(parts, tiles, agents)](
        source_ABHWC, grad_ABHWO, out, images, length,
        channels, height, width, outs, *maps, *shape.size, *shape.stride, *shape.padding, precision, last,
        BLOCK_M=block_m, BLOCK_R=block_r, BLOCK_O=block_o,
        GRAIN=gcd(channels, VECTOR // source_ABHWC.element_size()), num_stages=WEIGH["stages"],
    )  # fmt: skip
    total = out.sum(0) if parts > 1 else out[0]
    return total.permute(0, 1, 4, 2, 3) if last else total


class Stacked(torch.autograd.Function):
    """Convolution of [A, B, C, H, W] with a weight for each agent, giving [A, B, O, H, W]; channels lie last."""

    @staticmethod
    def forward(ctx: Any, images_AB: Tensor, weight_A: Tensor, shape: Shape, precision: str) -> Tensor:
        source_ABHWC = images_AB.permute(0, 1, 3, 4, 2).contiguous()
        ctx.save_for_backward(source_ABHWC, weight_A)
        ctx.shape, ctx.precision, maps = shape, precision, shape.output(images_AB.shape[3:])
        return correlate(source_ABHWC, weight_A, shape, maps, precision, False).permute(0, 1, 4, 2, 3)

    @staticmethod
    def backward(ctx: Any, grad_AB: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        source_ABHWC, weight_A = ctx.saved_tensors
        grad_ABHWO, by_images, by_weight = grad_AB.permute(0, 1, 3, 4, 2).contiguous(), None, None
        if ctx.needs_input_grad[0]:
            maps, turned_A = list(source_ABHWC.shape[2:4]), weight_A.transpose(1, 2)
            by_source = correlate(grad_ABHWO, turned_A, ctx.shape, maps, ctx.precision, True)
            by_images = by_source.permute(0, 1, 4, 2, 3)
        if ctx.needs_input_grad[1]:
            last = weight_A.permute(0, 1, 3, 4, 2).is_contiguous()  # then whoever made the weight wants it so
            by_weight = weigh(source_ABHWC, grad_ABHWO, ctx.shape, ctx.precision, last).to(weight_A.dtype)
        return by_images, by_weight, None, None
