"""THE loop: every method and every exchange trains here. It yields facts; others print, record and plot them.

Shapes: A agents of this process, D coordinates of an agent, E what a step hands to the next (coordinates, and beside
them the velocity where there is momentum), S steps of an epoch, B images of a batch, K numbers that pick an image.
"""

import math
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from codecl import chart as charts
from codecl import norms
from codecl.agents import Agents, Running, accuracy
from codecl.errors import RunFailed
from codecl.events import Agreed, Epoch, Evaluated, Event, Flooded, Grown, Stepped, TaskOpened
from codecl.exchange import flooded
from codecl.layout import Parameters, layout
from codecl.methods import TaskEnd
from codecl.methods.base import Rate
from codecl.replay import Step, Stepping, epochs
from codecl.seeding import succession
from codecl.setup import Middle, Setup, State
from codecl.stream import TaskData
from codecl.watch import evaluating


def train(setup: Setup, state: State, middle: Middle | None = None) -> Iterator[Event]:
    """Learn one task after another (Algorithm 1), from `state` on, or from the middle of the task after it (all
    agents' rows)."""
    exchange, config = setup.exchange, setup.train
    for data in setup.tasks[len(state.heads) :]:
        agents = open_task(setup, state, data)
        step, here = stepping(setup, state, data, agents), start(setup, agents, middle)
        watched = stepping(setup, state, data, agents, watched=True) if _constrained(setup, state) else None
        first, carry_AE, middle = here.epoch, here.carry_AE, None
        coords_AD = carry_AE[:, : agents.layout.size]
        yield _opened(setup, data, agents)
        picks_SABK, run_epoch = data.picks(first, exchange.agents, config.batch)[here.step :], None  # an old graph goes
        graph = exchange.on_device and carry_AE.is_cuda
        run_epoch = epochs(step, carry_AE, picks_SABK, exchange.traffic, graph, watched)
        for epoch in range(first, config.epochs):
            began, losses = time.perf_counter(), []
            for carry_AE, loss_A in run_epoch(carry_AE, picks_SABK, config.rate_at(epoch)):  # noqa: B020
                losses.append(loss_A)
                coords_AD = carry_AE[:, : agents.layout.size]
                yield Stepped(task=data.index, epoch=epoch, loss_A=loss_A, coords_AD=coords_AD)
            picks_SABK = data.picks(epoch + 1, exchange.agents, config.batch)  # while the device is still at work
            live = Live(epoch, state, carry_AE, coords_AD, torch.stack(losses), run_epoch.seen_A, agents.running)
            yield _epoch(setup, data, live, began)
        setup = setup._replace(running=agents.running)
        state = yield from _close(setup, state, data, agents, coords_AD, agreed=here.agreed)
        yield evaluate(setup, state, data.index)


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
        return middle._replace(carry_AE=middle.carry_AE[list(here)])
    coords_AD = agents.layout.start().repeat(len(here), 1)
    return Middle(0, torch.cat([coords_AD, torch.zeros_like(coords_AD)], 1) if setup.train.momentum else coords_AD)


def stepping(setup: Setup, state: State, data: TaskData, agents: Agents, watched: bool = False) -> Step:
    """A step of all agents (Algorithm 1, lines 4-15): device work only. `watched`: it also tells μ."""
    method, exchange = setup.method, setup.exchange
    constants: Any = method.prepare(state.memory, agents.layout)
    size, beta = agents.layout.size, setup.train.momentum
    bases = _constrained(setup, state)

    def gradient(coords_AD: Tensor, picks_ABK: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        built = agents.build(coords_AD, whole=watched)  # weights are built while the batch is put together
        if not watched:
            return *agents.gradient_at(built, *data.batch(picks_ABK)), None
        loss_A, grad_AD, grads = agents.gradients_at(built, *data.batch(picks_ABK))
        return loss_A, grad_AD, charts.constrained(grads, bases)

    def moved(carry_AE: Tensor, grad_AD: Tensor) -> Tensor:
        return beta * carry_AE[:, size:] + grad_AD if beta else grad_AD

    def carried(coords_AD: Tensor, move_AD: Tensor) -> Tensor:
        return torch.cat([coords_AD, move_AD], 1) if beta else coords_AD

    def in_the_papers_order(carry_AE: Tensor, picks_ABK: Tensor, rate: Rate) -> Stepping:
        coords_AD = carry_AE[:, :size]
        pending = exchange.start(coords_AD, "train")  # messages travel while the gradient is computed
        loss_A, grad_AD, mu_A = gradient(coords_AD, picks_ABK)
        move_AD = moved(carry_AE, grad_AD)
        return carried(method.step(constants, pending.wait(), coords_AD, move_AD, rate), move_AD), loss_A, mu_A

    def adapt_then_combine(carry_AE: Tensor, picks_ABK: Tensor, rate: Rate) -> Stepping:
        coords_AD = carry_AE[:, :size]
        loss_A, grad_AD, mu_A = gradient(coords_AD, picks_ABK)
        move_AD = moved(carry_AE, grad_AD)
        half_AD = method.step(constants, coords_AD, coords_AD, move_AD, rate)
        return carried(exchange.start(half_AD, "train").wait(), move_AD), loss_A, mu_A

    return in_the_papers_order if setup.train.order == "paper" else adapt_then_combine


def _constrained(setup: Setup, state: State) -> Mapping[str, Sequence[Tensor]]:
    """Layers whose gradient is projected, with the bases of their free space."""
    return setup.method.within(state.memory, setup.survey.layers)


def _close(
    setup: Setup, state: State, data: TaskData, agents: Agents, coords_AD: Tensor, agreed: bool
) -> Generator[Event, None, State]:
    """Agree, grow, flood: afterwards every agent holds the same state. If the chosen agent is gone, the next grows."""
    exchange, task, rounds = setup.exchange, data.index, 0 if agreed else setup.topology.agree_rounds
    for _ in range(rounds):
        coords_AD = exchange.start(coords_AD, "agree").wait()
    left = exchange.consensus_error(coords_AD)
    yield Agreed(task=task, rounds=rounds, consensus_error=left, **exchange.traffic.take("agree"))

    for chosen in succession(setup.seed, task, setup.topology.agents):
        began = time.perf_counter()
        measured = _norms(setup, data, agents, coords_AD, chosen)
        end = TaskEnd(
            data,
            setup.module,
            agents,
            coords_AD,
            state.memory,
            exchange,
            chosen,
            setup.train.batch,
            setup.growth,
            measured,
        )
        memory = setup.method.remember(end)
        yield Grown(task=task, chosen=chosen, seconds=time.perf_counter() - began, **exchange.traffic.take("pool"))

        payload = None
        if memory is not None:
            parameters = agents.layout.parameters(coords_AD[end.here[chosen]])
            payload = _payload(parameters, setup.survey.constant, memory)
        found = flooded(exchange, chosen, payload, task)
        if found is not None:
            arrived, announced = found
            state = unpack(setup, state, arrived)._replace(norms=(*state.norms, measured))
            yield Flooded(task=task, chosen=chosen, digest=announced, state=state, **exchange.traffic.take("flood"))
            return state
    raise RunFailed(f"task {task + 1}: every agent that could grow is gone")


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


def unpack(setup: Setup, state: State, arrived: Mapping[str, Tensor]) -> State:
    """The state after a task, from the state before it and what was flooded."""

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
    mu_A: Tensor | None  # of its last step; None: nothing is constrained
    running: Running


def _epoch(setup: Setup, data: TaskData, here: Live, began: float) -> Epoch:
    """Losses are read once an epoch; one that is not finite ends the run."""
    epoch, losses = here.epoch, setup.exchange.gather(here.losses_SA.mT).mT.cpu()
    rate, steps = setup.train.rate_at(epoch), data.steps(setup.train.batch)
    bad = (~losses.isfinite()).nonzero()
    if len(bad):
        at, row = bad[0].tolist()
        agent = row if losses.shape[1] > 1 else setup.exchange.agents[row]
        raise RunFailed(
            f"task {data.index + 1} ({data.name}), step {(epoch + 1) * steps - len(losses) + at + 1}, agent {agent}:"
            f" the loss is {losses[at, row].item()}; lower train.rate (it is {rate:g})"
        )
    error = setup.exchange.consensus_error(here.coords_AD)
    if not math.isfinite(error):
        raise RunFailed(f"task {data.index + 1} ({data.name}), epoch {epoch + 1}: weights overflow; lower train.rate")
    mu_mean, mu_max = _mu(setup, here.mu_A)
    return Epoch(
        task=data.index,
        epoch=epoch,
        step=(epoch + 1) * steps,
        loss=losses.mean(0).tolist(),
        rate=rate,
        consensus_error=error,
        mu_mean=mu_mean,
        mu_max=mu_max,
        running=here.running,
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
                scores.append(accuracy(setup.module, parameters, *data.held_out(), setup.train.test_batch))
    return Evaluated(task=task, accuracy=scores, seconds=time.perf_counter() - began, state=state)
