"""Corrections for agents whose data differ. Plain gossip comes to rest where each agent's own pull balances its
neighbours', which is not where the average loss is least.

All mix after the local step, in coordinates, whatever the optimizer and the method make of a gradient.
Shapes: A agents of this process, D coordinates of an agent, C numbers that a correction remembers.
"""

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from codecl.exchange.topology import product

Name = Literal["none", "exact-diffusion", "gradient-tracking", "quasi-global"]
Mix = Callable[[Tensor], Tensor]  # rows -> their mix with neighbours': one message to each
Local = Callable[[Tensor, Tensor], Tensor]  # coords, direction -> coords after the local step
Matrix = Any  # of numpy
Mixings = Sequence[Matrix]
CURVATURES = np.geomspace(1e-3, 2, 200)  # of η · L, that are tried


class Step(NamedTuple):
    """What a rule works with."""

    coords_AD: Tensor
    direction_AD: Tensor  # of the optimizer
    state_AC: Tensor
    lr: float | Tensor
    momentum: float
    local: Local
    mix: Mix


Rule = Callable[[Step], tuple[Tensor, Tensor]]  # -> coords, state


def none(step: Step) -> tuple[Tensor, Tensor]:
    """x ← W (x - ηd)."""
    return step.mix(step.local(step.coords_AD, step.direction_AD)), step.state_AC


def exact_diffusion(step: Step) -> tuple[Tensor, Tensor]:
    """ψ = x - ηd; φ = ψ + x - ψ_before; x ← (φ + W φ) / 2 (Yuan et al. 2019). Remembered: x - ψ_before.

    Law: where it rests, the gradients' mean is 0."""
    psi_AD = step.local(step.coords_AD, step.direction_AD)
    phi_AD = psi_AD + step.state_AC
    new_AD = (phi_AD + step.mix(phi_AD)) / 2
    return new_AD, new_AD - psi_AD


def gradient_tracking(step: Step) -> tuple[Tensor, Tensor]:
    """y ← W y + d - d_before; x ← W (x - ηy). Remembered: W y, d. It sends two rows a step.

    Laws: y has the mean of d; where it rests, that is 0."""
    tracked_AD, before_AD = step.state_AC.chunk(2, 1)
    tracked_AD = tracked_AD + step.direction_AD - before_AD
    new_AD = step.mix(step.local(step.coords_AD, tracked_AD))
    return new_AD, torch.cat([step.mix(tracked_AD), step.direction_AD], 1)


def quasi_global(step: Step) -> tuple[Tensor, Tensor]:
    """Momentum on how far agents really moved, mixing included: m ← βm + (1 - β)(x - x_new)/η (Lin et al. 2021).
    Remembered: m. It lessens what differing data do, and rests where plain gossip rests."""
    new_AD = step.mix(step.local(step.coords_AD, step.direction_AD + step.momentum * step.state_AC))
    moved_AD = (step.coords_AD - new_AD) / step.lr
    return new_AD, step.momentum * step.state_AC + (1 - step.momentum) * moved_AD


class Correction(NamedTuple):
    rule: Rule
    rows: int  # of D numbers that it remembers
    sent: int  # rows that a step sends to each neighbour


CORRECTIONS: dict[Name, Correction] = {
    "none": Correction(none, 0, 1),
    "exact-diffusion": Correction(exact_diffusion, 1, 1),
    "gradient-tracking": Correction(gradient_tracking, 2, 2),
    "quasi-global": Correction(quasi_global, 1, 1),
}


def dynamics(correction: Name, mixed: complex, curvature: float, momentum: float = 0.0) -> Matrix:
    """What a step does to an error along an eigenvector of W, with eigenvalue `mixed`, where the loss has the same
    curvature (η · L) everywhere: a matrix on the error and what is remembered of it."""
    a, w = curvature, mixed
    if correction == "exact-diffusion":  # x, x_before
        half = (1 + w) / 2
        return np.array([[half * (2 - a), -half * (1 - a)], [1, 0]], dtype=complex)
    if correction == "gradient-tracking":  # x, ηWy, ηd_before
        return np.array([[w * (1 - a), -w, w], [w * a, w, -w], [a, 0, 0]], dtype=complex)
    if correction == "quasi-global":  # x, ηm
        left = 1 - momentum
        moved = np.array([w * (1 - a), -w * momentum])
        return np.array([moved, [left * (1 - moved[0]), momentum - left * moved[1]]], dtype=complex)
    return np.array([[w * (1 - a)]], dtype=complex)


def largest_modulus(mixings: Mixings, correction: Name, momentum: float = 0.0, curvature: float = 0.0) -> float:
    """Of the eigenvalues by which disagreement between agents is multiplied in a step; above 1 it grows. `mixings`: of
    one step after another, where they differ; of them together it is a step's share."""
    agents = len(mixings[0])
    if agents == 1:
        return 0.0
    if len(mixings) == 1:
        values = sorted(np.linalg.eigvals(mixings[0]), key=lambda value: abs(value - 1))[1:]  # the first is the mean's
        return max(modulus(dynamics(correction, value, curvature, momentum)) for value in values)
    apart = np.linalg.svd(np.ones((1, agents)))[2][1:]  # directions in which agents differ
    fixed = dynamics(correction, 0.0, curvature, momentum)
    mixed = dynamics(correction, 1.0, curvature, momentum) - fixed  # every entry is fixed + w · mixed
    own, among = np.eye(agents - 1), [apart @ mixing @ apart.T for mixing in mixings]
    steps: list[Matrix] = [np.kron(fixed, own) + np.kron(mixed, mixing) for mixing in among]
    return float(modulus(product(steps)) ** (1 / len(steps)))


def stable_below(mixings: Mixings, correction: Name, momentum: float = 0.0) -> float:
    """The largest η · L up to which neither the mean nor disagreement grows, as far as was tried."""

    def grows(curvature: float) -> bool:
        mean = modulus(dynamics(correction, 1.0, curvature, momentum))
        return max(mean, largest_modulus(mixings, correction, momentum, curvature)) > 1 + 1e-9

    return float(max(takewhile(lambda curvature: not grows(float(curvature)), CURVATURES), default=0.0))


def modulus(matrix: Matrix) -> float:
    """Of the largest eigenvalue."""
    return float(np.abs(np.linalg.eigvals(matrix)).max())
