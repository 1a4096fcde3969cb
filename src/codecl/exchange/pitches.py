"""How coarse the integers of a chunk are. A pitch is 2^(code / 4), sent as its code.

Shapes: A agents that send, H rows that are heard, C chunks of a row, L numbers of a chunk.
"""

import torch
from torch import Tensor

STEPS = 4  # pitches of an octave: 2^(code / 4)
LEAST, MOST = -128, 127  # codes of a pitch
RESOLUTION = {torch.float32: 20, torch.float64: 40}  # bits below a chunk's largest number that a pitch may go
INTEGER = {torch.float32: torch.int32, torch.float64: torch.int64}
FRACTION = {torch.float32: 23, torch.float64: 52}  # bits of a number's fraction
BIAS = {torch.float32: 127, torch.float64: 1023}  # of its exponent
MARGIN, NARROW = 2.0, 1.5  # of the range over the largest difference that is expected; with two bits


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
