"""THE loop: every method and every exchange trains here. It yields facts; others print, record and plot them.

Shapes: A agents of this process, D coordinates of an agent, E what a step hands to the next (coordinates, and beside
them the velocity where there is momentum), S steps of an epoch, B images of a batch, K numbers that pick an image.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from codecl.data.task import TaskData
from codecl.errors import RunFailed
from codecl.methods.base import LR
from codecl.space import chart as charts
from codecl.space import norms
from codecl.space.layout import layout
from codecl.space.tracing import evaluating
from codecl.train.agents import Agents, Execution, accuracy
from codecl.train.cuda_graph import Step, Stepping, epochs
from codecl.train.events import EpochEnded, Evaluated, Event, Stepped, TaskOpened
from codecl.train.state import Setup, State, TaskPosition
from codecl.train.task_end import close_task


def train(setup: Setup, state: State, position: TaskPosition | None = None) -> Iterator[Event]:
    """Learn one task after another (Algorithm 1), from `state` on, or from a position inside the task after it (all
    agents' rows)."""
    exchange, config = setup.exchange, setup.train
    for data in setup.tasks[len(state.heads) :]:
        agents = open_task(setup, state, data)
        step, here = stepping(setup, state, data, agents), start(setup, agents, position)
        watched = stepping(setup, state, data, agents, watched=True) if _constrained(setup, state) else None
        first, carry_AE, position = here.epoch, here.carry_AE, None
        coords_AD = carry_AE[:, : agents.layout.size]
        yield _opened(setup, data, agents)
        indices_SABK, run_epoch = (
            data.indices(first, exchange.agents, config.batch_size)[here.step :],
            None,
        )  # an old graph goes
        graph = exchange.on_device and carry_AE.is_cuda
        run_epoch = epochs(step, carry_AE, indices_SABK, exchange.traffic, graph, watched)
        for epoch in range(first, config.epochs):
            began, losses = time.perf_counter(), []
            for carry_AE, loss_A in run_epoch(carry_AE, indices_SABK, config.lr_at(epoch)):  # noqa: B020
                losses.append(loss_A)
                coords_AD = carry_AE[:, : agents.layout.size]
                yield Stepped(task=data.index, epoch=epoch, loss_A=loss_A, coords_AD=coords_AD)
            indices_SABK = data.indices(
                epoch + 1, exchange.agents, config.batch_size
            )  # while the device is still at work
            live = Live(epoch, state, carry_AE, coords_AD, torch.stack(losses), run_epoch.seen_A, agents.execution)
            yield _epoch(setup, data, live, began)
        setup = setup._replace(execution=agents.execution)
        state = yield from close_task(setup, state, data, agents, coords_AD, agreed=here.agreed)
        yield evaluate(setup, state, data.index)


def open_task(setup: Setup, state: State, data: TaskData) -> Agents:
    """The agents, in the coordinates of this task."""
    free = setup.method.free(state.memory, setup.roles.layers)
    plan = layout(setup.roles, state.parameters, free, setup.heads[data.index], first=data.index == 0)
    count = len(setup.exchange.agents)
    how = (setup.train.batch_size, setup.execution, setup.train.precision, setup.train.label_smoothing)
    return Agents(setup.module, plan, count, *how)


def start(setup: Setup, agents: Agents, position: TaskPosition | None = None) -> TaskPosition:
    """Where the agents of this process begin a task: at the anchor, at rest, or where they were."""
    here = setup.exchange.agents
    if position:
        return position._replace(carry_AE=position.carry_AE[list(here)])
    coords_AD = agents.layout.start().repeat(len(here), 1)
    return TaskPosition(
        0, torch.cat([coords_AD, torch.zeros_like(coords_AD)], 1) if setup.train.momentum else coords_AD
    )


def stepping(setup: Setup, state: State, data: TaskData, agents: Agents, watched: bool = False) -> Step:
    """A step of all agents (Algorithm 1, lines 4-15): device work only. `watched`: it also tells μ."""
    method, exchange = setup.method, setup.exchange
    constants: Any = method.prepare(state.memory, agents.layout)
    size, beta = agents.layout.size, setup.train.momentum
    bases = _constrained(setup, state)

    def gradient(coords_AD: Tensor, indices_ABK: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        built = agents.build(coords_AD, whole=watched)  # weights are built while the batch is put together
        if not watched:
            return *agents.gradient_at(built, *data.batch(indices_ABK)), None
        loss_A, grad_AD, grads = agents.gradients_at(built, *data.batch(indices_ABK))
        return loss_A, grad_AD, charts.constrained(grads, bases)

    def moved(carry_AE: Tensor, grad_AD: Tensor) -> Tensor:
        return beta * carry_AE[:, size:] + grad_AD if beta else grad_AD

    def carried(coords_AD: Tensor, move_AD: Tensor) -> Tensor:
        return torch.cat([coords_AD, move_AD], 1) if beta else coords_AD

    def in_the_papers_order(carry_AE: Tensor, indices_ABK: Tensor, lr: LR) -> Stepping:
        coords_AD = carry_AE[:, :size]
        pending = exchange.start(coords_AD, "train")  # messages travel while the gradient is computed
        loss_A, grad_AD, mu_A = gradient(coords_AD, indices_ABK)
        move_AD = moved(carry_AE, grad_AD)
        return carried(method.step(constants, pending.wait(), coords_AD, move_AD, lr), move_AD), loss_A, mu_A

    def adapt_then_combine(carry_AE: Tensor, indices_ABK: Tensor, lr: LR) -> Stepping:
        coords_AD = carry_AE[:, :size]
        loss_A, grad_AD, mu_A = gradient(coords_AD, indices_ABK)
        move_AD = moved(carry_AE, grad_AD)
        half_AD = method.step(constants, coords_AD, coords_AD, move_AD, lr)
        return carried(exchange.start(half_AD, "train").wait(), move_AD), loss_A, mu_A

    return in_the_papers_order if setup.train.order == "paper" else adapt_then_combine


def _constrained(setup: Setup, state: State) -> Mapping[str, Sequence[Tensor]]:
    """Layers whose gradient is projected, with the bases of their free space."""
    return setup.method.within(state.memory, setup.roles.layers)


def _opened(setup: Setup, data: TaskData, agents: Agents) -> TaskOpened:
    plan = agents.layout
    live = sum(slot.size for slot in plan.slots if slot.kind in ("head", "first"))
    heads = sum(value.numel() for head in setup.heads for value in head.values())
    norms = sum(setup.module.get_parameter(name).numel() for name in setup.roles.first)
    return TaskOpened(
        task=data.index,
        name=data.name,
        classes=data.classes,
        steps=data.steps(setup.train.batch_size),
        coordinates=plan.size,
        full=plan.whole,
        reference_extra=heads + norms - live,
        kept=sum(value.numel() for value in setup.heads[data.index].values()),
        itemsize=data.dtype.itemsize,
        free=plan.free,
        factored=sorted(agents.factored),
        agents=agents,
    )


class Live(NamedTuple):
    """What an epoch leaves behind."""

    epoch: int
    state: State  # from which the task started
    carry_AE: Tensor
    coords_AD: Tensor
    losses_SA: Tensor
    mu_A: Tensor | None  # of its last step; None: nothing is constrained
    execution: Execution


def _epoch(setup: Setup, data: TaskData, here: Live, began: float) -> EpochEnded:
    """Losses are read once an epoch; one that is not finite ends the run."""
    epoch, losses = here.epoch, setup.exchange.gather(here.losses_SA.mT).mT.cpu()
    lr, steps = setup.train.lr_at(epoch), data.steps(setup.train.batch_size)
    bad = (~losses.isfinite()).nonzero()
    if len(bad):
        at, row = bad[0].tolist()
        agent = row if losses.shape[1] > 1 else setup.exchange.agents[row]
        raise RunFailed(
            f"task {data.index + 1} ({data.name}), step {(epoch + 1) * steps - len(losses) + at + 1}, agent {agent}:"
            f" the loss is {losses[at, row].item()}; lower train.lr (it is {lr:g})"
        )
    error = setup.exchange.consensus_error(here.coords_AD)
    if not math.isfinite(error):
        raise RunFailed(f"task {data.index + 1} ({data.name}), epoch {epoch + 1}: weights overflow; lower train.lr")
    mu_mean, mu_max = _mu(setup, here.mu_A)
    return EpochEnded(
        task=data.index,
        epoch=epoch,
        step=(epoch + 1) * steps,
        loss=losses.mean(0).tolist(),
        lr=lr,
        consensus_error=error,
        mu_mean=mu_mean,
        mu_max=mu_max,
        execution=here.execution,
        seconds=time.perf_counter() - began,
        live=here,
        **setup.exchange.traffic.take("train"),
    )


def _mu(setup: Setup, mu_A: Tensor | None) -> tuple[float, float]:
    """Mean and maximum over agents; 1 where nothing is constrained: there the projected gradient is the gradient."""
    if mu_A is None:
        return 1.0, 1.0
    found = setup.exchange.gather(mu_A)
    return float(found.mean()), float(found.max())


def evaluate(setup: Setup, state: State, task: int) -> Evaluated:
    """Accuracy of the flooded model on every task so far."""
    began, scores = time.perf_counter(), []
    with evaluating(setup.module):
        for data, head, statistics in zip(setup.tasks, state.heads, state.norms, strict=False):
            with norms.normalising(setup.module, statistics):
                parameters = {**state.parameters, **head}
                scores.append(accuracy(setup.module, parameters, *data.held_out(), setup.train.test_batch_size))
    return Evaluated(task=task, accuracy=scores, seconds=time.perf_counter() - began, state=state)
