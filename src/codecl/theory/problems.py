"""Small problems whose constants are known or bounded, for the package's own loop.

A loss ℓ > 0 that depends on an example and a point w can be written as a cross entropy: that of the outputs
(0, log(e^ℓ - 1)) and the first class is ℓ. So a problem is a module and its examples are images, all of one class, and
nothing in the loop has to know.

Shapes: N agents, P examples of an agent, E numbers of an example, D dimensions of a point, F free ones.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

Loss = Callable[[Tensor, Tensor], Tensor]  # of a point [D] and examples [..., E]
LIFT = 100.0  # what is added to a quadratic so that it stays above 0; it has no gradient
BEND = 0.05  # of the non-convex term Σ w² / (1 + w²), whose second derivative lies in [-1/2, 2]


class Constants(NamedTuple):
    """What the bounds ask of a problem, in the coordinates of a basis."""

    smooth: float  # L: of every agent's objective
    noise: float  # σ²: of an agent's gradient, at most
    spread: float  # ζ² (δ² in the whole space): of agents' gradients at one point, at most
    lowest: float  # h*: the objective is not below it


class Problem(NamedTuple):
    """Agent i minimises the mean of `loss` over its examples; all of them, the mean over agents."""

    name: str
    loss: Loss
    examples_NPE: Tensor
    start_D: Tensor
    free_DF: Tensor  # where agents may move: start + c freeᵀ
    constants: Callable[[Tensor], Constants]  # in the coordinates of a basis

    @property
    def free(self) -> Constants:
        return self.constants(self.free_DF)

    @property
    def whole(self) -> Constants:
        return self.constants(torch.eye(len(self.start_D), dtype=self.start_D.dtype))

    def objective(self, point_D: Tensor) -> Tensor:
        return self.loss(point_D, self.examples_NPE).mean()

    def gradients(self, points_D: Tensor) -> Tensor:
        """∇f at each of these points [..., D], in the whole space."""
        flat = points_D.reshape(-1, points_D.shape[-1])
        return torch.func.vmap(torch.func.grad(self.objective), chunk_size=4096)(flat).view_as(points_D)

    def own_gradients(self, points_ND: Tensor) -> Tensor:
        """∇f_i at agent i's point [..., N, D]."""

        def objective(point_D: Tensor, examples_PE: Tensor) -> Tensor:
            return self.loss(point_D, examples_PE).mean()

        flat = points_ND.reshape(-1, *points_ND.shape[-2:])
        by_agent = torch.func.vmap(torch.func.grad(objective))
        grads = torch.func.vmap(lambda row_ND: by_agent(row_ND, self.examples_NPE), chunk_size=512)(flat)
        return grads.view_as(points_ND)

    def at(self, coords_F: Tensor) -> Tensor:
        """The points with these coordinates."""
        return self.start_D + coords_F @ self.free_DF.mT


class AsModule(nn.Module):
    """A problem's loss as a model that the package trains: see the top of this file."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        dimensions = len(problem.start_D)
        self.loss = problem.loss
        self.point = nn.Linear(dimensions, 1, bias=False)
        self.point.weight.data = problem.start_D[None].clone()
        self.register_buffer("axes", torch.eye(dimensions, dtype=torch.float64))

    def forward(self, examples_BE: Tensor) -> Tensor:
        loss_B = self.loss(self.point(self.axes).squeeze(-1), examples_BE)
        second_B = loss_B + torch.log1p(-torch.exp(-loss_B))  # log(e^ℓ - 1), without overflow
        return torch.stack([torch.zeros_like(second_B), second_B], 1)


def basis(dimensions: int, free: int, seed: int) -> Tensor:
    """A random orthonormal basis [D, F]."""
    generator = torch.Generator().manual_seed(seed)
    square = torch.randn(dimensions, dimensions, generator=generator, dtype=torch.float64)
    return torch.linalg.qr(square).Q[:, :free].contiguous()


def quadratic(name: str, hessian_DD: Tensor, pulls_NPD: Tensor, free_DF: Tensor) -> Problem:
    """ℓ = ½ wᵀAw + v·w: a common Hessian A, an example is its own pull v; noise is added, so it is bounded everywhere.

    (Least squares on sampled rows would not do: its noise grows with w.)"""

    def loss(point_D: Tensor, pull: Tensor) -> Tensor:
        return point_D @ hessian_DD @ point_D / 2 + pull @ point_D + LIFT

    def constants(basis_DF: Tensor) -> Constants:
        """L and h* of the objective on start + the span of the basis; start is 0."""
        curved, pull_NF = basis_DF.mT @ hessian_DD @ basis_DF, pulls_NPD.mean(1) @ basis_DF
        values, mean_F = torch.linalg.eigvalsh(curved), pull_NF.mean(0)
        lowest = LIFT - float(mean_F @ torch.linalg.solve(curved, mean_F)) / 2 if values[0] > 0 else -math.inf
        noise = (pulls_NPD @ basis_DF - pull_NF[:, None]).square().sum(-1).mean(1).max()
        spread = (pull_NF - mean_F).square().sum(-1).mean()
        return Constants(float(values.abs().max()), float(noise), float(spread), lowest)

    return Problem(name, loss, pulls_NPD, torch.zeros(len(hessian_DD), dtype=torch.float64), free_DF, constants)


def logistic(name: str, examples_NPE: Tensor, free_DF: Tensor) -> Problem:
    """ℓ = log(1 + e^(-y x·w)) + 0.05 Σ w² / (1 + w²): an example is (x, y), y = ±1. Not convex."""
    x_NPD = examples_NPE[..., :-1]

    def loss(point_D: Tensor, example: Tensor) -> Tensor:
        bent = BEND * (point_D.square() / (1 + point_D.square())).sum()
        return functional.softplus(-example[..., -1] * (example[..., :-1] @ point_D)) + bent + 1e-3

    def constants(basis_DF: Tensor) -> Constants:
        """The logistic part of an example's gradient is -t y x with t from 0 to 1: half of -y x, and at most ½‖x‖ away
        from it. With λ the largest eigenvalue of an agent's mean of x xᵀ, its Hessian is at most λ/4, and the mean of
        what is away at most ½√λ."""
        inside_NPF = x_NPD @ basis_DF
        largest_N = torch.linalg.eigvalsh(inside_NPF.mT @ inside_NPF / inside_NPF.shape[1])[:, -1]
        pull_NF = -(examples_NPE[..., -1:] * inside_NPF).mean(1) / 2
        apart = (pull_NF - pull_NF.mean(0)).square().sum(-1).mean().sqrt() + largest_N.mean().sqrt() / 2
        alike = bool((examples_NPE == examples_NPE[0]).all())
        noise = inside_NPF.square().sum(-1).mean(1).max()
        return Constants(float(largest_N.max()) / 4 + 2 * BEND, float(noise), 0.0 if alike else float(apart) ** 2, 0.0)

    return Problem(name, loss, examples_NPE, torch.zeros(x_NPD.shape[-1], dtype=torch.float64), free_DF, constants)
