"""THE loop: every method and every exchange trains here. It yields facts; others print, record and plot them.

Shapes: A agents of this process, D coordinates of an agent, S steps of an epoch, B images of a batch, K numbers that
pick an image.
"""

import math
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor, nn

from codecl.agents import Agents, Running, accuracy
from codecl.errors import RunFailed
from codecl.events import Agreed, Epoch, Evaluated, Event, Flooded, Grown, Stepped, TaskOpened
from codecl.exchange import Exchange, digest
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
    order: Literal["paper", "adapt-then-combine"] = Field("paper", description="mix before or after the local step")
    running: Running | Literal["auto"] = Field(
        "auto",
        description="how agents share a device: stacked, streams or loop; auto: what is fastest, measured once",
    )
    precision: Precision = Field("tf32", description="of products while training: highest, tf32 (on a GPU) or bf16")
    test_batch: int = Field(64, gt=0, description="images of a test batch (norms use its statistics)")

    @field_validator("milestones")
    @classmethod
    def _inside(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if any(not 0 < part < 1 for part in value):
            raise ValueError("parts of the epochs lie between 0 and 1")
        return value

    def rate_at(self, epoch: int) -> float:
        """η of this epoch: ÷10 after 50 % and 75 % of a task's epochs, reset for each task."""
        return self.rate * self.decay ** sum(epoch >= part * self.epochs for part in self.milestones)


class State(NamedTuple):
    """What every agent holds between tasks, equal bit for bit."""

    parameters: Parameters  # all but heads
    heads: tuple[Parameters, ...]  # of finished tasks
    memory: Mapping[str, Tensor]  # the method's


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


def train(setup: Setup, state: State) -> Iterator[Event]:
    """Learn one task after another, from `state` on (Algorithm 1)."""
    exchange, config = setup.exchange, setup.train
    for data in setup.tasks[len(state.heads) :]:
        agents = open_task(setup, state, data)
        step, coords_AD = stepping(setup, state, data, agents), agents.layout.start().repeat(len(exchange.agents), 1)
        yield _opened(setup, data, agents)
        picks_SABK, run_epoch = data.picks(0, exchange.agents, config.batch), None  # an old graph makes room
        run_epoch = epochs(
            step, coords_AD, picks_SABK, exchange.traffic, graph=exchange.on_device and coords_AD.is_cuda
        )
        for epoch in range(config.epochs):
            rate, began, losses = config.rate_at(epoch), time.perf_counter(), []
            for coords_AD, loss_A in run_epoch(coords_AD, picks_SABK, rate):  # noqa: B020
                losses.append(loss_A)
                yield Stepped(task=data.index, epoch=epoch, loss_A=loss_A, coords_AD=coords_AD)
            picks_SABK = data.picks(epoch + 1, exchange.agents, config.batch)  # while the device is still at work
            yield _epoch(setup, data, agents, epoch, torch.stack(losses), coords_AD, began)
        setup = setup._replace(running=agents.running)
        state = yield from _close(setup, state, data, agents, coords_AD)
        yield _evaluate(setup, state, data.index)


def open_task(setup: Setup, state: State, data: TaskData) -> Agents:
    """The agents, in the coordinates of this task."""
    free = setup.method.free(state.memory, setup.survey.layers)
    plan = layout(setup.survey, state.parameters, free, setup.heads[data.index], first=data.index == 0)
    count = len(setup.exchange.agents)
    return Agents(setup.module, plan, count, setup.train.batch, setup.running, setup.train.precision)


def stepping(setup: Setup, state: State, data: TaskData, agents: Agents) -> Step:
    """A step of all agents (Algorithm 1, lines 4-15), from coordinates to coordinates: device work only."""
    method, exchange = setup.method, setup.exchange
    constants: Any = method.prepare(state.memory, agents.layout)

    def in_the_papers_order(coords_AD: Tensor, picks_ABK: Tensor, rate: Rate) -> tuple[Tensor, Tensor]:
        pending = exchange.start(coords_AD, "train")  # messages travel while the gradient is computed
        built = agents.build(coords_AD)  # weights are built while the batch is put together
        loss_A, grad_AD = agents.gradient_at(built, *data.batch(picks_ABK))
        return method.step(constants, pending.wait(), coords_AD, grad_AD, rate), loss_A

    def adapt_then_combine(coords_AD: Tensor, picks_ABK: Tensor, rate: Rate) -> tuple[Tensor, Tensor]:
        built = agents.build(coords_AD)
        loss_A, grad_AD = agents.gradient_at(built, *data.batch(picks_ABK))
        half_AD = method.step(constants, coords_AD, coords_AD, grad_AD, rate)
        return exchange.start(half_AD, "train").wait(), loss_A

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
    end = TaskEnd(
        data, setup.module, agents, coords_AD, state.memory, exchange, chosen, setup.train.batch, setup.growth
    )
    memory = setup.method.remember(end)
    yield Grown(task=task, chosen=chosen, seconds=time.perf_counter() - began, **exchange.traffic.take("pool"))

    payload = None
    if memory is not None:
        parameters = agents.layout.parameters(coords_AD[end.here[chosen]])
        payload = _payload(parameters, setup.survey.constant, memory)
    arrived, announced = exchange.flood(chosen, payload)
    if digest(arrived) != announced:
        raise RunFailed(f"task {task + 1}: the flood of agent {chosen} arrived damaged (its digest differs)")
    state = _unpack(setup, state, arrived)
    yield Flooded(task=task, chosen=chosen, digest=announced, state=state, **exchange.traffic.take("flood"))
    return state


def _payload(parameters: Parameters, constant: Sequence[str], memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a flood carries: weights, finished head, norms, and the method's memory."""
    weights = {f"weights/{name}": value.clone() for name, value in parameters.items() if name not in constant}
    return {**weights, **{f"memory/{name}": value for name, value in memory.items()}}


def _unpack(setup: Setup, state: State, arrived: Mapping[str, Tensor]) -> State:
    def under(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in arrived.items() if name.startswith(prefix)}

    weights = under("weights/")
    head = {name: weights.pop(name) for name in setup.survey.head}
    return State({**state.parameters, **weights}, (*state.heads, head), under("memory/"))


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


def _epoch(
    setup: Setup, data: TaskData, agents: Agents, epoch: int, losses_SA: Tensor, coords_AD: Tensor, began: float
) -> Epoch:
    """Losses are read once an epoch; one that is not finite ends the run."""
    losses = setup.exchange.gather(losses_SA.mT).mT.cpu()
    rate, steps = setup.train.rate_at(epoch), len(losses)
    bad = (~losses.isfinite()).nonzero()
    if len(bad):
        at, agent = bad[0].tolist()
        raise RunFailed(
            f"task {data.index + 1} ({data.name}), step {epoch * steps + at + 1}, agent {agent}: the loss is"
            f" {losses[at, agent].item()}; lower train.rate (it is {rate:g})"
        )
    error = setup.exchange.consensus_error(coords_AD)
    if not math.isfinite(error):
        raise RunFailed(f"task {data.index + 1} ({data.name}), epoch {epoch + 1}: weights overflow; lower train.rate")
    return Epoch(
        task=data.index,
        epoch=epoch,
        step=(epoch + 1) * steps,
        loss=losses.mean(0).tolist(),
        rate=rate,
        consensus_error=error,
        running=agents.running,
        seconds=time.perf_counter() - began,
        **setup.exchange.traffic.take("train"),
    )


def _evaluate(setup: Setup, state: State, task: int) -> Evaluated:
    """Accuracy of the flooded model on every task so far."""
    began = time.perf_counter()
    with evaluating(setup.module):
        scores = [
            accuracy(setup.module, {**state.parameters, **head}, *data.held_out(), setup.train.test_batch)
            for data, head in zip(setup.tasks, state.heads, strict=False)
        ]
    return Evaluated(task=task, accuracy=scores, seconds=time.perf_counter() - began)
