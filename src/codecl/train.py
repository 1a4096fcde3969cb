"""THE loop: every method and every exchange trains here. It yields facts; others print, record and plot them.

Shapes: A agents of this process, D coordinates of an agent, E what a step hands to the next (coordinates, and beside
them the velocity where there is momentum), S steps of an epoch, B images of a batch, K numbers that pick an image.
"""

import math
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor, nn

from codecl import norms
from codecl.agents import Agents, Running, accuracy
from codecl.errors import RunFailed
from codecl.events import Agreed, Epoch, Evaluated, Event, Flooded, Grown, Stepped, TaskOpened
from codecl.exchange import Exchange, flooded
from codecl.growth import GrowthConfig
from codecl.layers import Survey
from codecl.layout import Parameters, layout
from codecl.methods import Method, TaskEnd
from codecl.methods.base import Rate
from codecl.precision import Precision
from codecl.replay import Step, epochs
from codecl.seeding import choose
from codecl.stream import TaskData
from codecl.topology import Topology
from codecl.watch import evaluating


class TrainConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    epochs: int = Field(10, gt=0, description="of each task")
    batch: int = Field(10, gt=0, description="images of an agent's batch")
    rate: float = Field(0.1, gt=0, allow_inf_nan=False, description="η, the learning rate, at a task's start")
    milestones: tuple[float, ...] = Field((0.5, 0.75), description="parts of the epochs after which η is multiplied")
    decay: float = Field(0.1, gt=0, le=1, description="what η is multiplied with at a milestone")
    schedule: Literal["steps", "cosine"] = Field("steps", description="η falls at milestones, or along a cosine to 0")
    warmup: int = Field(0, ge=0, description="epochs of each task in which η rises to its full value")
    momentum: float = Field(0, ge=0, lt=1, description="β, in coordinates: momentum on projected gradients")
    smoothing: float = Field(0, ge=0, lt=1, description="of labels: the part of a label spread over all classes")
    order: Literal["paper", "adapt-then-combine"] = Field("paper", description="mix before or after the local step")
    running: Running | Literal["auto"] = Field(
        "auto",
        description="how agents share a device: stacked, streams or loop; auto: what is fastest, measured once",
    )
    precision: Precision = Field("tf32", description="of products while training: highest, tf32 (on a GPU) or bf16")
    test_batch: int = Field(64, gt=0, description="images of a test batch")
    norm_statistics: Literal["batch", "task"] = Field(
        "batch", description="of batch norms when predicting: the batch's own, or the task's, measured when it ends"
    )

    @field_validator("milestones")
    @classmethod
    def _inside(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if any(not 0 < part < 1 for part in value):
            raise ValueError("parts of the epochs lie between 0 and 1")
        return value

    def rate_at(self, epoch: int) -> float:
        """η of this epoch, reset for each task. `steps`, as in the paper: ÷10 after 50 % and 75 % of the epochs."""
        rate = self.rate * min(1.0, (epoch + 1) / (self.warmup + 1))
        if self.schedule == "cosine":
            return rate * (1 + math.cos(math.pi * epoch / self.epochs)) / 2
        return rate * self.decay ** sum(epoch >= part * self.epochs for part in self.milestones)


class State(NamedTuple):
    """What every agent holds between tasks, equal bit for bit."""

    parameters: Parameters  # all but heads
    heads: tuple[Parameters, ...]  # of finished tasks
    memory: Mapping[str, Tensor]  # the method's
    norms: tuple[Parameters, ...] = ()  # statistics of batch norms, of finished tasks; empty: the batch's own


class Middle(NamedTuple):
    """Where a run stands inside a task."""

    epoch: int  # the next one
    carry_AE: Tensor


class Setup(NamedTuple):
    """Everything that a run needs, built and checked."""

    module: nn.Module
    survey: Survey
    tasks: Sequence[TaskData]
    heads: Sequence[Parameters]  # initial values, a task each
    topology: Topology
    exchange: Exchange
    method: Method
    train: TrainConfig
    growth: GrowthConfig
    seed: int
    running: Running


def train(setup: Setup, state: State, middle: Middle | None = None) -> Iterator[Event]:
    """Learn one task after another (Algorithm 1), from `state` on, or from the middle of the task after it (all
    agents' rows)."""
    exchange, config = setup.exchange, setup.train
    for data in setup.tasks[len(state.heads) :]:
        agents = open_task(setup, state, data)
        step, (first, carry_AE) = stepping(setup, state, data, agents), start(setup, agents, middle)
        middle, coords_AD = None, carry_AE[:, : agents.layout.size]
        yield _opened(setup, data, agents)
        picks_SABK, run_epoch = data.picks(first, exchange.agents, config.batch), None  # an old graph makes room
        run_epoch = epochs(step, carry_AE, picks_SABK, exchange.traffic, graph=exchange.on_device and carry_AE.is_cuda)
        for epoch in range(first, config.epochs):
            began, losses = time.perf_counter(), []
            for carry_AE, loss_A in run_epoch(carry_AE, picks_SABK, config.rate_at(epoch)):  # noqa: B020
                losses.append(loss_A)
                coords_AD = carry_AE[:, : agents.layout.size]
                yield Stepped(task=data.index, epoch=epoch, loss_A=loss_A, coords_AD=coords_AD)
            picks_SABK = data.picks(epoch + 1, exchange.agents, config.batch)  # while the device is still at work
            here = Live(epoch, state, carry_AE, coords_AD, torch.stack(losses), agents.running)
            yield _epoch(setup, data, here, began)
        setup = setup._replace(running=agents.running)
        state = yield from _close(setup, state, data, agents, coords_AD)
        yield _evaluate(setup, state, data.index)


def open_task(setup: Setup, state: State, data: TaskData) -> Agents:
    """The agents, in the coordinates of this task."""
    free = setup.method.free(state.memory, setup.survey.layers)
    plan = layout(setup.survey, state.parameters, free, setup.heads[data.index], first=data.index == 0)
    count = len(setup.exchange.agents)
    how = (setup.train.batch, setup.running, setup.train.precision, setup.train.smoothing)
    return Agents(setup.module, plan, count, *how)


def start(setup: Setup, agents: Agents, middle: Middle | None = None) -> Middle:
    """Where the agents of this process begin a task: at the anchor, at rest, or where they were."""
    here = setup.exchange.agents
    if middle:
        return Middle(middle.epoch, middle.carry_AE[list(here)])
    coords_AD = agents.layout.start().repeat(len(here), 1)
    return Middle(0, torch.cat([coords_AD, torch.zeros_like(coords_AD)], 1) if setup.train.momentum else coords_AD)


def stepping(setup: Setup, state: State, data: TaskData, agents: Agents) -> Step:
    """A step of all agents (Algorithm 1, lines 4-15): device work only."""
    method, exchange = setup.method, setup.exchange
    constants: Any = method.prepare(state.memory, agents.layout)
    size, beta = agents.layout.size, setup.train.momentum

    def moved(carry_AE: Tensor, grad_AD: Tensor) -> Tensor:
        return beta * carry_AE[:, size:] + grad_AD if beta else grad_AD

    def carried(coords_AD: Tensor, move_AD: Tensor) -> Tensor:
        return torch.cat([coords_AD, move_AD], 1) if beta else coords_AD

    def in_the_papers_order(carry_AE: Tensor, picks_ABK: Tensor, rate: Rate) -> tuple[Tensor, Tensor]:
        coords_AD = carry_AE[:, :size]
        pending = exchange.start(coords_AD, "train")  # messages travel while the gradient is computed
        built = agents.build(coords_AD)  # weights are built while the batch is put together
        loss_A, grad_AD = agents.gradient_at(built, *data.batch(picks_ABK))
        move_AD = moved(carry_AE, grad_AD)
        return carried(method.step(constants, pending.wait(), coords_AD, move_AD, rate), move_AD), loss_A

    def adapt_then_combine(carry_AE: Tensor, picks_ABK: Tensor, rate: Rate) -> tuple[Tensor, Tensor]:
        coords_AD = carry_AE[:, :size]
        built = agents.build(coords_AD)
        loss_A, grad_AD = agents.gradient_at(built, *data.batch(picks_ABK))
        move_AD = moved(carry_AE, grad_AD)
        half_AD = method.step(constants, coords_AD, coords_AD, move_AD, rate)
        return carried(exchange.start(half_AD, "train").wait(), move_AD), loss_A

    return in_the_papers_order if setup.train.order == "paper" else adapt_then_combine


def _close(
    setup: Setup, state: State, data: TaskData, agents: Agents, coords_AD: Tensor
) -> Generator[Event, None, State]:
    """Agree, grow, flood: afterwards every agent holds the same state."""
    exchange, task, rounds = setup.exchange, data.index, setup.topology.agree_rounds
    for _ in range(rounds):
        coords_AD = exchange.start(coords_AD, "agree").wait()
    left = exchange.consensus_error(coords_AD)
    yield Agreed(task=task, rounds=rounds, consensus_error=left, **exchange.traffic.take("agree"))

    began, chosen = time.perf_counter(), choose(setup.seed, task, setup.topology.agents)
    measured = _norms(setup, data, agents, coords_AD, chosen)
    end = TaskEnd(
        data, setup.module, agents, coords_AD, state.memory, exchange, chosen, setup.train.batch, setup.growth, measured
    )
    memory = setup.method.remember(end)
    yield Grown(task=task, chosen=chosen, seconds=time.perf_counter() - began, **exchange.traffic.take("pool"))

    payload = None
    if memory is not None:
        parameters = agents.layout.parameters(coords_AD[end.here[chosen]])
        payload = _payload(parameters, setup.survey.constant, memory)
    arrived, announced = flooded(exchange, chosen, payload, task)
    state = _unpack(setup, state, arrived)._replace(norms=(*state.norms, measured))
    yield Flooded(task=task, chosen=chosen, digest=announced, state=state, **exchange.traffic.take("flood"))
    return state


def _norms(setup: Setup, data: TaskData, agents: Agents, coords_AD: Tensor, chosen: int) -> Parameters:
    """The statistics by which this task's predictions are normalised; none: by their batch's own."""
    if setup.train.norm_statistics == "batch":
        return {}
    rows = (agents.layout.parameters(row) for row in coords_AD)
    return norms.agreed(setup.module, rows, data, setup.exchange, chosen, setup.train.test_batch)


def _payload(parameters: Parameters, constant: Sequence[str], memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a flood carries: weights, finished head, norms, and the method's memory."""
    weights = {f"weights/{name}": value.clone() for name, value in parameters.items() if name not in constant}
    payload = {**weights, **{f"memory/{name}": value for name, value in memory.items()}}
    return {name: value.contiguous() for name, value in payload.items()}  # as it will be after a wire or a file


def _unpack(setup: Setup, state: State, arrived: Mapping[str, Tensor]) -> State:
    def under(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in arrived.items() if name.startswith(prefix)}

    weights = under("weights/")
    head = {name: weights.pop(name) for name in setup.survey.head}
    return State({**state.parameters, **weights}, (*state.heads, head), under("memory/"), state.norms)


def _opened(setup: Setup, data: TaskData, agents: Agents) -> TaskOpened:
    plan = agents.layout
    live = sum(slot.size for slot in plan.slots if slot.kind in ("head", "first"))
    heads = sum(value.numel() for head in setup.heads for value in head.values())
    norms = sum(setup.module.get_parameter(name).numel() for name in setup.survey.first)
    return TaskOpened(
        task=data.index,
        name=data.name,
        classes=data.classes,
        steps=data.steps(setup.train.batch),
        coordinates=plan.size,
        whole=plan.whole,
        shared=heads + norms - live,
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
    running: Running


def _epoch(setup: Setup, data: TaskData, here: Live, began: float) -> Epoch:
    """Losses are read once an epoch; one that is not finite ends the run."""
    epoch, losses = here.epoch, setup.exchange.gather(here.losses_SA.mT).mT.cpu()
    rate, steps = setup.train.rate_at(epoch), len(losses)
    bad = (~losses.isfinite()).nonzero()
    if len(bad):
        at, agent = bad[0].tolist()
        raise RunFailed(
            f"task {data.index + 1} ({data.name}), step {epoch * steps + at + 1}, agent {agent}: the loss is"
            f" {losses[at, agent].item()}; lower train.rate (it is {rate:g})"
        )
    error = setup.exchange.consensus_error(here.coords_AD)
    if not math.isfinite(error):
        raise RunFailed(f"task {data.index + 1} ({data.name}), epoch {epoch + 1}: weights overflow; lower train.rate")
    return Epoch(
        task=data.index,
        epoch=epoch,
        step=(epoch + 1) * steps,
        loss=losses.mean(0).tolist(),
        rate=rate,
        consensus_error=error,
        running=here.running,
        seconds=time.perf_counter() - began,
        live=here,
        **setup.exchange.traffic.take("train"),
    )


def _evaluate(setup: Setup, state: State, task: int) -> Evaluated:
    """Accuracy of the flooded model on every task so far."""
    began, scores = time.perf_counter(), []
    with evaluating(setup.module):
        for data, head, statistics in zip(setup.tasks, state.heads, state.norms, strict=False):
            with norms.normalising(setup.module, statistics):
                parameters = {**state.parameters, **head}
                scores.append(accuracy(setup.module, parameters, *data.held_out(), setup.train.test_batch))
    return Evaluated(task=task, accuracy=scores, seconds=time.perf_counter() - began, state=state)
