"""A step of all agents (Algorithm 1, lines 4-15): device work only.

Shapes: A agents of this process, D coordinates of an agent, E what a step hands to the next (coordinates, and beside
them the velocity where there is momentum), B images of a batch, K numbers that pick an image and its variation.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from codecl.data.task import TaskData
from codecl.methods.base import LR
from codecl.space.directions import space
from codecl.train.agents import Agents
from codecl.train.state import Setup, State

Step = Callable[[Tensor, Tensor, LR], tuple[Tensor, Tensor]]  # carry [A, E], indices [A, B, K], lr -> carry, loss [A]


def make_step(setup: Setup, state: State, data: TaskData, agents: Agents) -> Step:
    """The step of this task, in the order of mixing that the config says."""
    method, exchange = setup.method, setup.exchange
    constants: Any = method.prepare(space(state.memory, state.directions), agents.layout)
    size, beta = agents.layout.size, setup.train.momentum

    def gradient(coords_AD: Tensor, indices_ABK: Tensor) -> tuple[Tensor, Tensor]:
        built = agents.build(coords_AD)  # weights are built while the batch is put together
        return agents.gradient_at(built, *data.batch(indices_ABK))

    def velocity(carry_AE: Tensor, grad_AD: Tensor) -> Tensor:
        return beta * carry_AE[:, size:] + grad_AD if beta else grad_AD

    def carried(coords_AD: Tensor, velocity_AD: Tensor) -> Tensor:
        return torch.cat([coords_AD, velocity_AD], 1) if beta else coords_AD

    def combine_then_adapt(carry_AE: Tensor, indices_ABK: Tensor, lr: LR) -> tuple[Tensor, Tensor]:
        coords_AD = carry_AE[:, :size]
        pending = exchange.start(coords_AD, "train")  # messages travel while the gradient is computed
        loss_A, grad_AD = gradient(coords_AD, indices_ABK)
        velocity_AD = velocity(carry_AE, grad_AD)
        new_AD = method.step(constants, pending.wait(), coords_AD, velocity_AD, lr)
        return carried(new_AD, velocity_AD), loss_A

    def adapt_then_combine(carry_AE: Tensor, indices_ABK: Tensor, lr: LR) -> tuple[Tensor, Tensor]:
        coords_AD = carry_AE[:, :size]
        loss_A, grad_AD = gradient(coords_AD, indices_ABK)
        velocity_AD = velocity(carry_AE, grad_AD)
        half_AD = method.step(constants, coords_AD, coords_AD, velocity_AD, lr)
        return carried(exchange.start(half_AD, "train").wait(), velocity_AD), loss_A

    return combine_then_adapt if setup.train.order == "paper" else adapt_then_combine
