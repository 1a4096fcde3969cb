"""The analysis as something that can be asked and run: see docs/theory.md, where the bounds are derived.

Here the right-hand sides. `consensus` and `gradient` hold for W doubly stochastic, agents that start alike and
η <= `largest_rate`; those that are `printed` stand in the paper. `s` is √ρ = ‖W - 11ᵀ/N‖₂, `smooth` is L, `noise` σ²,
`spread` ζ² (δ² in the paper), `rate` η. In the other files: problems with known constants, and checks on the package's
own loop.
"""

import math

import numpy as np

from codecl.exchange.topology import Matrix
from codecl.exchange.topology import contraction as contraction


def drift(mixing: Matrix) -> float:
    """How far columns are from summing to 1, at most: 0 where a round keeps the mean of the agents."""
    return float(np.abs(mixing.sum(0) - 1).max())


def largest_rate(smooth: float, s: float) -> float:
    """η <= (1 - s) / (2L): the condition of both bounds."""
    return (1 - s) / (2 * smooth)


def consensus(rate: float, noise: float, spread: float, agents: int, s: float) -> float:
    """E CE_k <= 2η²σ²(1 - 1/N) / (1 - s) + 4η²ζ² / (1 - s)², at every step k."""
    return 2 * rate**2 * noise * (1 - 1 / agents) / (1 - s) + 4 * rate**2 * spread / (1 - s) ** 2


def gradient(above: float, rate: float, steps: int, smooth: float, noise_of_mean: float, consensus: float) -> float:
    """(1/K) Σ E‖∇h(c̄_k)‖² <= 2 (h(c̄_0) - h*) / (ηK) + ηL σ²/N + L² · (the bound on CE); `above`: h(c̄_0) - h*,
    `noise_of_mean`: σ²/N."""
    return 2 * above / (rate * steps) + rate * smooth * noise_of_mean + smooth**2 * consensus


def printed_consensus(rate: float, mu: float, noise: float, spread: float, s: float, gradients: float) -> float:
    """Lemma 2, divided by K: mean CE <= η²μ²(3σ² + 3δ²) / (1 - s)² + 3η²μ² / (1 - s) · `gradients`, the mean over
    steps of E‖(1/N) Σ ∇f_i(x_i)‖², in the whole space."""
    return 3 * (rate * mu) ** 2 * ((noise + spread) / (1 - s) ** 2 + gradients / (1 - s))


def printed_window(smooth: float, mu: float, s: float) -> tuple[float, float]:
    """Theorem 1's step sizes, (1/L, η*] with η* = (√((1 - s)² + 12μ²) - (1 - s)) / (6Lμ²). Not empty if s > 3μ²."""
    return 1 / smooth, (math.sqrt((1 - s) ** 2 + 12 * mu**2) - (1 - s)) / (6 * smooth * mu**2)


def solved_window(smooth: float, mu: float, s: float) -> tuple[float, float]:
    """The same with η* as the condition of its proof, 3L²η²μ² / (1 - s) + ηL - 1 <= 0, is really solved: always
    empty."""
    root = math.sqrt((1 - s) ** 2 + 12 * mu**2 * (1 - s)) - (1 - s)
    return 1 / smooth, root / (6 * smooth * mu**2)


def printed_gradient(
    above: float, rate: float, steps: int, smooth: float, noise_of_mean: float, consensus: float
) -> float:
    """Theorem 1: (F(x̄_0) - F*) / (C₁K) + C₂ σ²/N + C₃ · `consensus`, the first term of Lemma 2; C₁ = (η - 1/L) / 2,
    C₂ = Lη² / 2C₁, C₃ = L²η / 2C₁. It needs η > 1/L."""
    first = (rate - 1 / smooth) / 2
    return (above / steps + smooth * rate**2 / 2 * noise_of_mean + smooth**2 * rate / 2 * consensus) / first
