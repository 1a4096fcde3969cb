"""A step of all agents (Algorithm 1, lines 4-15): device work only.

Shapes: A agents of this process, D coordinates of an agent, B images of a batch, K numbers that pick an image and its
variation.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from codecl.data.sources import Picked
from codecl.data.task import TaskData
from codecl.methods.base import LR
from codecl.space.directions import space
from codecl.train.agents import Agents
from codecl.train.state import Carry, Setup, State

# carry, images by their indices [A, B, K] or as they were read ahead, lr -> carry, loss [A]
Step = Callable[[Carry, Picked, LR], tuple[Carry, Tensor]]


def make_step(setup: Setup, state: State, data: TaskData, agents: Agents) -> Step:
    """The step of this task, in the order of mixing that the config says."""
    method, exchange = setup.method, setup.exchange
    constants: Any = method.prepare(space(state.memory, state.directions), agents.layout)
    beta, sending = setup.train.momentum, setup.messages(data.index)

    def gradient(coords_AD: Tensor, picked: Picked) -> tuple[Tensor, Tensor]:
        built = agents.build(coords_AD)  # weights are built while the batch is put together
        return agents.gradient_at(built, *data.batch(picked))

    def velocity(before_AV: Tensor, grad_AD: Tensor) -> Tensor:
        return beta * before_AV + grad_AD if beta else grad_AD

    def combine_then_adapt(carry: Carry, picked: Picked, lr: LR) -> tuple[Carry, Tensor]:
        coords_AD, before_AV, memory_AM, watched_AW = carry
        pending = sending.start(exchange, coords_AD, memory_AM, "train")  # they travel while the gradient is computed
        loss_A, grad_AD = gradient(coords_AD, picked)
        velocity_AD = velocity(before_AV, grad_AD)
        mixed_AD, memory_AM = pending.wait()
        new_AD = method.step(constants, mixed_AD, coords_AD, velocity_AD, lr)
        memory_AM = sending.moved(memory_AM, mixed_AD, new_AD)
        return Carry(new_AD, velocity_AD if beta else before_AV, memory_AM, watched_AW), loss_A

    def adapt_then_combine(carry: Carry, picked: Picked, lr: LR) -> tuple[Carry, Tensor]:
        coords_AD, before_AV, memory_AM, watched_AW = carry
        loss_A, grad_AD = gradient(coords_AD, picked)
        velocity_AD = velocity(before_AV, grad_AD)
        half_AD = method.step(constants, coords_AD, coords_AD, velocity_AD, lr)
        memory_AM = sending.moved(memory_AM, coords_AD, half_AD)
        mixed_AD, memory_AM = sending.start(exchange, half_AD, memory_AM, "train").wait()
        return Carry(mixed_AD, velocity_AD if beta else before_AV, memory_AM, watched_AW), loss_A

    return combine_then_adapt if setup.train.order == "paper" else adapt_then_combine
