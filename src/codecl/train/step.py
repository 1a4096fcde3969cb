"""A step of all agents (Algorithm 1, lines 4-15): device work only.

Shapes: A agents of this process, D coordinates of an agent, E what a step hands to the next (coordinates, and beside
them the velocity where there is momentum), B images of a batch, K numbers that pick an image and its variation.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from codecl.data.task import TaskData
from codecl.exchange.messages import messages
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
    sending = messages(setup.message, setup.seed, data.index)
    places = [size, size if beta else 0, sending.width(size)]  # coordinates, velocity, memory of messages

    def gradient(coords_AD: Tensor, indices_ABK: Tensor) -> tuple[Tensor, Tensor]:
        built = agents.build(coords_AD)  # weights are built while the batch is put together
        return agents.gradient_at(built, *data.batch(indices_ABK))

    def velocity(before_AD: Tensor, grad_AD: Tensor) -> Tensor:
        return beta * before_AD + grad_AD if beta else grad_AD

    def carried(coords_AD: Tensor, velocity_AD: Tensor, memory_AM: Tensor) -> Tensor:
        parts = [coords_AD, *([velocity_AD] if beta else []), *([memory_AM] if places[2] else [])]
        return torch.cat(parts, 1) if len(parts) > 1 else coords_AD

    def combine_then_adapt(carry_AE: Tensor, indices_ABK: Tensor, lr: LR) -> tuple[Tensor, Tensor]:
        coords_AD, before_AD, memory_AM = carry_AE.split(places, 1)
        pending = sending.start(exchange, coords_AD, memory_AM, "train")  # they travel while the gradient is computed
        loss_A, grad_AD = gradient(coords_AD, indices_ABK)
        velocity_AD = velocity(before_AD, grad_AD)
        mixed_AD, memory_AM = pending.wait()
        new_AD = method.step(constants, mixed_AD, coords_AD, velocity_AD, lr)
        return carried(new_AD, velocity_AD, sending.moved(memory_AM, mixed_AD, new_AD)), loss_A

    def adapt_then_combine(carry_AE: Tensor, indices_ABK: Tensor, lr: LR) -> tuple[Tensor, Tensor]:
        coords_AD, before_AD, memory_AM = carry_AE.split(places, 1)
        loss_A, grad_AD = gradient(coords_AD, indices_ABK)
        velocity_AD = velocity(before_AD, grad_AD)
        half_AD = method.step(constants, coords_AD, coords_AD, velocity_AD, lr)
        memory_AM = sending.moved(memory_AM, coords_AD, half_AD)
        mixed_AD, memory_AM = sending.start(exchange, half_AD, memory_AM, "train").wait()
        return carried(mixed_AD, velocity_AD, memory_AM), loss_A

    return combine_then_adapt if setup.train.order == "paper" else adapt_then_combine
