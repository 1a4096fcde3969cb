"""A step of all agents (Algorithm 1, lines 4-15): device work only.

Shapes: A agents of this process, D coordinates of an agent, B images of a batch, K numbers that pick an image and its
variation.
"""

from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch import Tensor

from codecl.data.sources import Picked
from codecl.data.task import TaskData
from codecl.errors import ConfigError
from codecl.methods.base import LR
from codecl.space.directions import space
from codecl.train import corrections
from codecl.train.agents import AgentLoss, Agents
from codecl.train.optimizers import correction_size, make_descend
from codecl.train.privacy import PrivateGradient, drawn
from codecl.train.shared_norms import make_settle
from codecl.train.state import Carry, Setup, State

# carry, images by their indices [A, B, K] or as they were read ahead, lr -> carry, loss [A]
Step = Callable[[Carry, Picked, LR], tuple[Carry, Tensor]]
Gradient = Callable[[Tensor, Picked], tuple[Tensor, Tensor]]  # coords [A, D], images -> loss [A], gradient [A, D]


def make_step(setup: Setup, state: State, data: TaskData, agents: Agents, first: int = 0) -> Step:
    """The step of this task, in the order of mixing that the config says. `first`: the number of the next one."""
    method, exchange = setup.method, setup.exchange
    constants: Any = method.prepare(space(state.memory, state.directions), agents.layout)
    descending, sending = make_descend(setup.train, agents.layout), setup.messages(data.index)
    optimized_D, settle = make_settle(agents.layout)

    def descend(state_AV: Tensor, coords_AD: Tensor, grad_AD: Tensor, lr: LR) -> tuple[Tensor, Tensor]:
        own_AD = grad_AD if optimized_D is None else grad_AD * optimized_D
        direction_AD, state_AV = descending(state_AV, coords_AD, own_AD)
        return settle(direction_AD, grad_AD, lr), state_AV

    private = make_private(setup, data, agents, first) if setup.privacy.is_on else None

    def gradient(coords_AD: Tensor, picked: Picked) -> tuple[Tensor, Tensor]:
        if private is not None:
            return private(coords_AD, picked)
        built = agents.build(coords_AD)  # weights are built while the batch is put together
        return agents.gradient_at(built, *data.batch(picked))

    def moved(base_AD: Tensor, coords_AD: Tensor, direction_AD: Tensor, lr: LR) -> Tensor:
        new_AD = method.step(constants, base_AD, coords_AD, direction_AD, lr)
        if not isinstance(new_AD, Tensor) or new_AD.shape != base_AD.shape:
            raise ConfigError(_wrong_step(type(method).__name__, new_AD, base_AD))
        return new_AD

    def combine_then_adapt(carry: Carry, picked: Picked, lr: LR) -> tuple[Carry, Tensor]:
        coords_AD, velocity_AV, memory_AM, watched_AW = carry
        pending = sending.start(exchange, coords_AD, memory_AM, "train")  # they travel while the gradient is computed
        loss_A, grad_AD = gradient(coords_AD, picked)
        direction_AD, velocity_AV = descend(velocity_AV, coords_AD, grad_AD, lr)
        mixed_AD, memory_AM = pending.wait()
        new_AD = moved(mixed_AD, coords_AD, direction_AD, lr)
        memory_AM = sending.moved(memory_AM, mixed_AD, new_AD)
        return Carry(new_AD, velocity_AV, memory_AM, watched_AW), loss_A

    def adapt_then_combine(carry: Carry, picked: Picked, lr: LR) -> tuple[Carry, Tensor]:
        coords_AD, state_AV, memory_AM, watched_AW = carry
        remembered = correction_size(setup.train, coords_AD.shape[1])
        velocity_AV, corrected_AC = state_AV.split([state_AV.shape[1] - remembered, remembered], 1)
        loss_A, grad_AD = gradient(coords_AD, picked)
        direction_AD, velocity_AV = descend(velocity_AV, coords_AD, grad_AD, lr)

        after_AM = memory_AM

        def mix(rows_AD: Tensor) -> Tensor:  # all rows of a step in the same turns of the graph
            nonlocal after_AM
            moved_AM = sending.moved(memory_AM, coords_AD, rows_AD)
            mixed_AD, after_AM = sending.start(exchange, rows_AD, moved_AM, "train").wait()
            return mixed_AD

        def local(base_AD: Tensor, direction_AD: Tensor) -> Tensor:
            return moved(base_AD, base_AD, direction_AD, lr)

        about = corrections.Step(coords_AD, direction_AD, corrected_AC, lr, setup.train.momentum, local, mix)
        new_AD, corrected_AC = corrections.CORRECTIONS[setup.train.correction].rule(about)
        state_AV = torch.cat([velocity_AV, corrected_AC], 1) if remembered else velocity_AV
        return Carry(new_AD, state_AV, after_AM, watched_AW), loss_A

    return combine_then_adapt if setup.train.order == "paper" else adapt_then_combine


def make_private(setup: Setup, data: TaskData, agents: Agents, first: int) -> Gradient:
    """Clipped gradients of single images with noise, from step `first` on."""
    loss = AgentLoss(setup.module, agents.layout, half=agents.loss.half, function=agents.loss.function)
    gradient = PrivateGradient(loss, agents.layout, setup.privacy, agents.execution, setup.train.precision)
    steps = count(first)

    def private(coords_AD: Tensor, picked: Picked) -> tuple[Tensor, Tensor]:
        noise_AD, step = torch.zeros_like(coords_AD), next(steps)
        if setup.privacy.noise:
            noise_AD = drawn(setup.noise, setup.exchange.agents, data.index, step, coords_AD)
        out = gradient(coords_AD, *data.batch(picked), noise_AD)
        agents.execution = gradient.execution
        return out

    return private


def _wrong_step(name: str, found: Any, base_AD: Tensor) -> str:
    what = f"a tensor of shape {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
    agents, size = base_AD.shape
    return (
        f"method: step of {name} gives {what}; it should give the new coordinates of all agents, a tensor of shape"
        f" [{agents}, {size}]"
    )
