"""How fast the gradient falls: slopes of log E‖∇F(x̄)‖² against log K and log N, at η = 2 √(N/K).

Measured over the second half of the steps (the transient of the first has that slope even without noise), on a logistic
problem whose labels no model explains, with batches of one drawn with replacement. Shapes: R seeds, S copies.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from codecl.data.partition import replacement
from codecl.exchange.topology import Matrix
from codecl.theory.check import DIMENSIONS, graph, labelled
from codecl.theory.problems import Problem, logistic
from codecl.theory.walks import Walk, same_draws, side_by_side, walked

POINTS, EVERY, LOWEST, HIGHEST = 512, 4, -0.6, -0.4
WHOLE = torch.eye(DIMENSIONS, dtype=torch.float64)


class Slope(NamedTuple):
    """The mean squared gradient at each x, of each seed, and the slopes of their logarithms."""

    what: str
    along: str  # K or N
    x: tuple[int, ...]
    values_RX: Tensor
    must_fail: bool = False  # a control

    @property
    def slopes(self) -> list[float]:
        logs = np.log(self.values_RX.numpy())
        return [float(np.polyfit(np.log(self.x), row, 1)[0]) for row in logs]

    @property
    def mean(self) -> float:
        return float(np.mean(self.slopes))

    @property
    def std(self) -> float:
        return float(np.std(self.slopes, ddof=1))

    @property
    def inside(self) -> bool:
        """Whether the mean slope is that of the rate, -1/2, give or take a tenth."""
        return LOWEST <= self.mean <= HIGHEST

    @property
    def as_it_should(self) -> bool:
        return self.inside != self.must_fail


class Size(NamedTuple):
    """How much is measured."""

    seeds: int = 5
    copies: int = 4  # of each seed, for less noise
    steps: tuple[int, ...] = (256, 512, 1024, 2048, 4096)
    agents: tuple[int, ...] = (1, 2, 4, 8, 16)
    at_steps: int = 4096  # along N
    at_agents: int = 8  # along K


QUICK = Size(seeds=3, steps=(128, 256, 512, 1024), agents=(2, 4, 8), at_steps=512)


def slopes(size: Size) -> list[Slope]:
    """Along K with the same examples everywhere and with labels dealt apart; along N; and the controls."""
    along_K, along_N = size.steps, size.agents
    ring, apart = graph("ring", size.at_agents), np.eye(size.at_agents)

    def by_steps(what: str, mixing: Matrix, sorted_labels: bool, must_fail: bool = False) -> Slope:
        values = [second_half(size, mixing, steps, sorted_labels=sorted_labels) for steps in along_K]
        return Slope(what, "K", along_K, torch.stack(values, 1), must_fail)

    def by_agents(what: str, alike: bool, must_fail: bool = False) -> Slope:
        values = [second_half(size, graph("ring", agents), size.at_steps, alike=alike) for agents in along_N]
        return Slope(what, "N", along_N, torch.stack(values, 1), must_fail)

    return [
        by_steps("same examples", ring, False),
        by_steps("labels dealt apart", ring, True),
        by_steps("control: labels apart, no mixing", apart, True, must_fail=True),
        by_agents("same examples", False),
        by_agents("control: one minibatch for all", True, must_fail=True),
    ]


def second_half(size: Size, mixing: Matrix, steps: int, sorted_labels: bool = False, alike: bool = False) -> Tensor:
    """Mean squared gradient, all of it, at the average model over the second half of the steps, of each seed [R]."""
    agents, rate = len(mixing), 2 * math.sqrt(len(mixing) / steps)
    problems = [_problem(seed, agents, sorted_labels) for seed in range(size.seeds)]
    together = problems[0]._replace(examples_NPE=torch.cat([problem.examples_NPE for problem in problems]))
    sampler = same_draws(agents) if alike else replacement
    walk = Walk(together, side_by_side(mixing, size.seeds), rate, steps, size.copies, sampler=sampler)
    kept = [
        coords_SND.view(size.copies, size.seeds, agents, -1).mean(2)
        for step, coords_SND in enumerate(walked(walk))
        if steps // 2 <= step < steps and step % EVERY == 0
    ]
    points_RKSD = torch.stack(kept).permute(2, 0, 1, 3)
    grads_RKSD = [problem.gradients(points) for problem, points in zip(problems, points_RKSD, strict=True)]
    return torch.stack([grads.square().sum(-1).mean() for grads in grads_RKSD])


def _problem(seed: int, agents: int, sorted_labels: bool) -> Problem:
    """All agents have all points; or each a part of them, by label and then by the first number."""
    points_PE = labelled(POINTS, seed)
    if not sorted_labels:
        return logistic("rate", points_PE.expand(agents, -1, -1).contiguous(), WHOLE)
    order = (100 * points_PE[:, -1] + points_PE[:, 0]).argsort()
    return logistic("rate", points_PE[order].view(agents, POINTS // agents, -1), WHOLE)
