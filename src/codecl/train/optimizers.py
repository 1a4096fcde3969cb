"""From an agent's gradient to the direction of its step: SGD with momentum, or AdamW, both in coordinates.

Law: one agent alone in the first task, where coordinates are the weights, moves as torch.optim moves it.
Shapes: A agents of this process, D coordinates of an agent, V numbers that its optimizer remembers.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from codecl.space import chart as charts
from codecl.space.layout import Layout
from codecl.train.corrections import CORRECTIONS

if TYPE_CHECKING:
    from codecl.train.config import TrainConfig

TINY = 1e-6  # beside a norm that is divided by, as in torch.nn.utils.clip_grad_norm_
Descend = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # state, coords, gradient -> direction, state
Rule = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]  # state, gradient, decay -> direction, state


class Optimizer(NamedTuple):
    rule: Callable[["TrainConfig"], Rule]
    rows: Callable[["TrainConfig"], int]  # of D numbers that it remembers
    counts: bool  # its steps as well, in a column of their own


def sgd(config: "TrainConfig") -> Rule:
    """v ← βv + g + decay; the direction is v. As torch.optim.SGD(momentum=β, weight_decay=λ)."""
    beta = config.local_momentum

    def rule(state_AV: Tensor, grad_AD: Tensor, decay_AD: Tensor | None) -> tuple[Tensor, Tensor]:
        if decay_AD is not None:
            grad_AD = grad_AD + decay_AD
        if not beta:
            return grad_AD, state_AV
        velocity_AD = beta * state_AV + grad_AD
        return velocity_AD, velocity_AD

    return rule


def adamw(config: "TrainConfig") -> Rule:
    """m ← β₁m + (1 - β₁)g, v ← β₂v + (1 - β₂)g²; the direction is m̂ / (√v̂ + ε) + decay, with m̂ = m / (1 - β₁ᵗ) and
    v̂ = v / (1 - β₂ᵗ). As torch.optim.AdamW. Nothing in it waits for the device: t is a tensor."""
    (beta, beta_square), eps = config.betas, config.eps

    def rule(state_AV: Tensor, grad_AD: Tensor, decay_AD: Tensor | None) -> tuple[Tensor, Tensor]:
        size = grad_AD.shape[1]
        mean_AD, square_AD, count_A1 = state_AV.split([size, size, 1], 1)
        mean_AD = beta * mean_AD + (1 - beta) * grad_AD
        square_AD = beta_square * square_AD + (1 - beta_square) * grad_AD.square()
        count_A1 = count_A1 + 1
        root_AD = (square_AD / _seen(beta_square, count_A1)).sqrt()
        direction_AD = mean_AD / _seen(beta, count_A1) / (root_AD + eps)
        if decay_AD is not None:
            direction_AD = direction_AD + decay_AD
        return direction_AD, torch.cat([mean_AD, square_AD, count_A1], 1)

    return rule


def _seen(beta: float, count_A1: Tensor) -> Tensor:
    """1 - βᵗ, also where β is nearly 1 and numbers are short."""
    return -torch.expm1(count_A1 * (math.log(beta) if beta else -math.inf))


OPTIMIZERS = {
    "sgd": Optimizer(sgd, lambda config: 1 if config.local_momentum else 0, counts=False),
    "adamw": Optimizer(adamw, lambda config: 2, counts=True),
}


def state_size(config: "TrainConfig", coordinates: int) -> int:
    """V: what an agent of so many coordinates remembers from step to step, its correction last."""
    optimizer = OPTIMIZERS[config.optimizer]
    return optimizer.rows(config) * coordinates + optimizer.counts + correction_size(config, coordinates)


def correction_size(config: "TrainConfig", coordinates: int) -> int:
    return CORRECTIONS[config.correction].rows * coordinates


def make_descend(config: "TrainConfig", layout: Layout) -> Descend:
    """The direction of a step: the gradient clipped, then what the optimizer makes of it and of the weight decay."""
    rule, max_norm = OPTIMIZERS[config.optimizer].rule(config), config.clip_norm
    decayed = make_decay(config, layout)

    def descend(state_AV: Tensor, coords_AD: Tensor, grad_AD: Tensor) -> tuple[Tensor, Tensor]:
        if max_norm is not None:
            grad_AD = clipped(grad_AD, max_norm)
        return rule(state_AV, grad_AD, decayed(coords_AD))

    return descend


def make_decay(config: "TrainConfig", layout: Layout) -> Callable[[Tensor], Tensor | None]:
    """What weight decay adds at some coordinates: λ(W0 O + c), or λc; None where there is none."""
    strength = config.weight_decay
    if not strength:
        return lambda coords_AD: None
    if config.decay == "coordinates":
        return lambda coords_AD: strength * coords_AD
    anchor_D = anchor_coordinates(layout)
    return lambda coords_AD: strength * (coords_AD + anchor_D)


def clipped(grad_AD: Tensor, max_norm: float) -> Tensor:
    """Each agent's gradient, no longer than this. As torch.nn.utils.clip_grad_norm_ of the projected gradient."""
    norm_A1 = grad_AD.norm(dim=1, keepdim=True)
    return grad_AD * (max_norm / (norm_A1 + TINY)).clamp(max=1)


def anchor_coordinates(layout: Layout) -> Tensor:
    """W0 O [D], 0 where coordinates are the weights themselves. Law: c + W0 O is the gradient of ½‖W0 + c Oᵀ‖²."""
    parts = []
    for slot in layout.slots:
        chart = slot.chart
        if chart.free_GNF is None:
            parts.append(torch.zeros_like(charts.start(chart)))
        else:
            parts.append(charts.flatten(chart.anchor_GON @ chart.free_GNF, chart))
    return torch.cat(parts)
