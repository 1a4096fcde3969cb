"""THE loop: every method and every exchange trains here. It yields events; others print, record and plot them.

Shapes: A agents of this process, D coordinates of an agent, E what a step hands to the next, S steps of an epoch, B
images of a batch, K numbers that pick an image.
"""

import math
import time
from collections.abc import Generator, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from codecl.data.task import TaskData
from codecl.errors import RunFailed
from codecl.space import norms
from codecl.space.directions import FREE, OWN, counts
from codecl.train import identity, plateau, scoring
from codecl.train.agents import Agents
from codecl.train.cuda_graph import epochs
from codecl.train.events import EpochEnded, Event, PrivateTask, Stepped, TaskOpened
from codecl.train.objective import LOSSES, plain_loss
from codecl.train.optimizers import state_size
from codecl.train.plateau import Watched
from codecl.train.state import Carry, Setup, State, TaskPosition
from codecl.train.step import make_step
from codecl.train.task_end import close_task
from codecl.train.task_start import body_size, choose_directions, chooses, kept_size, task_layout


def train(setup: Setup, state: State, position: TaskPosition | None = None) -> Iterator[Event]:
    """Learn one task after another (Algorithm 1), from `state` on, or from a position inside the task after it (all
    agents' rows)."""
    for data in setup.tasks[len(state.kept) - len(setup.past) :]:
        if chooses(setup, data.index) and not state.directions:
            state = yield from choose_directions(setup, state, data)
        agents = open_task(setup, state, data)
        start = start_of(setup, agents, position)
        yield _task_opened(setup, state, data, agents)
        with data.reading():
            carry = yield from _train_task(setup, state, data, agents, start)
        setup = setup._replace(execution=agents.execution)
        state = yield from close_task(setup, state, data, agents, carry, agreed=start.agreed)
        scored = scoring.evaluate(setup, state, data.index)
        is_last = data.index == len(setup.heads) - 1
        yield scored.model_copy(update={"without_identity": identity.accuracy(setup, state)}) if is_last else scored
        position = None


def open_task(setup: Setup, state: State, data: TaskData) -> Agents:
    """The agents, in the coordinates of this task."""
    plan = task_layout(setup, state, data)
    return Agents(setup.module, plan, len(setup.exchange.agents), setup.execution, setup.train)


def start_of(setup: Setup, agents: Agents, position: TaskPosition | None = None) -> TaskPosition:
    """Where the agents of this process begin a task: at the anchor, at rest, or where they were."""
    rows = setup.exchange.agents
    if position:
        return position._replace(carry_AE=position.carry_AE[list(rows)])
    coords_AD = agents.layout.start().repeat(len(rows), 1)
    return TaskPosition(0, at_rest(setup, coords_AD).joined())


def at_rest(setup: Setup, coords_AD: Tensor, round: int = 0) -> Carry:
    """What the first step of agents that start here is handed, or one that joins the others before this round."""
    velocity_AV = coords_AD.new_zeros(len(coords_AD), state_size(setup.train, coords_AD.shape[1]))
    watched_AW = coords_AD[:, :0]
    if setup.train.schedule == "plateau":
        watched_AW = plateau.start(setup.train.plateau, setup.train.lr, coords_AD).joined()
    return Carry(coords_AD, velocity_AV, setup.messages(0).memory(coords_AD, round), watched_AW)


class LiveEpoch(NamedTuple):
    """What an epoch leaves behind, for a checkpoint and for what is measured beside training."""

    epoch: int
    state: State  # from which the task started
    carry: Carry

    @property
    def coords_AD(self) -> Tensor:
        return self.carry.coords_AD


def _train_task(
    setup: Setup, state: State, data: TaskData, agents: Agents, start: TaskPosition
) -> Generator[Event, None, Carry]:
    """The epochs of one task; gives what its last step left."""
    exchange, config = setup.exchange, setup.train
    carry = Carry.split(start.carry_AE, agents.layout.size, config)
    full_SABK, *last = data.indices(start.epoch, exchange.agents, config.batch_size)
    indices = [full_SABK[start.step :], *last]
    graph = exchange.on_device and carry.coords_AD.is_cuda and not data.streamed and not setup.privacy.is_on
    step = make_step(setup, state, data, agents, start.epoch * data.steps(config.batch_size) + start.step)
    run_batches = [epochs(step, carry, indices_SABK, exchange.traffic, graph) for indices_SABK in indices]
    for epoch in range(start.epoch, config.epochs):
        lr = _lr(setup, carry, epoch)
        if lr is None:
            break
        began = time.perf_counter()
        losses = []
        for run, indices_SABK in zip(run_batches, indices, strict=True):
            for carry, loss_A in run(carry, data.read_ahead(indices_SABK), lr):  # noqa: B020
                losses.append(loss_A)
                yield Stepped(task=data.index, epoch=epoch, loss_A=loss_A, coords_AD=carry.coords_AD)
        indices = data.indices(epoch + 1, exchange.agents, config.batch_size)  # while the device still works
        if config.schedule == "plateau":
            carry = _watch(setup, data, agents, carry, epoch)
        live = LiveEpoch(epoch, state, carry)
        yield _epoch_ended(setup, data, agents, live, torch.stack(losses), lr, began)
    if config.schedule == "plateau":
        carry = carry._replace(coords_AD=Watched.split(carry.watched_AW).best_AD)
    return carry


def _lr(setup: Setup, carry: Carry, epoch: int) -> float | None:
    """η of this epoch; None: the schedule has ended the task."""
    config = setup.train
    if config.schedule != "plateau":
        return config.lr_at(epoch)
    lr = float(Watched.split(carry.watched_AW).lr_A1)
    return lr if lr >= config.plateau.min_lr else None


def _watch(setup: Setup, data: TaskData, agents: Agents, carry: Carry, epoch: int) -> Carry:
    """The schedule looks at the loss of the one agent on the images that it holds out."""
    parameters, batch_size = agents.layout.parameters(carry.coords_AD[0]), setup.train.test_batch_size
    held_out = data.held_out(setup.exchange.agents[0], batch_size, epoch)
    parameters, gossiped = norms.without_moments(parameters)
    with norms.normalising(setup.module, gossiped):
        loss = scoring.loss(setup.module, parameters, held_out, batch_size, plain_loss(setup.train))
    watched = Watched.split(carry.watched_AW).after(setup.train.plateau, carry.coords_AD, loss)
    return carry._replace(watched_AW=watched.joined())


def _task_opened(setup: Setup, state: State, data: TaskData, agents: Agents) -> TaskOpened:
    plan = agents.layout
    live = sum(slot.size for slot in plan.slots if slot.kind in ("kept", "first"))
    heads = [sum(value.numel() for value in head.values()) for head in setup.heads]
    norm_parameters = sum(setup.module.get_parameter(name).numel() for name in setup.roles.first)
    bases = setup.method.free(state.memory, setup.roles.layers)
    free = {layer.name: layer.inputs * layer.groups for layer in setup.roles.layers}
    free |= {name: sum(basis.shape[-1] for basis in groups) for name, groups in bases.items()}
    trained, own = counts(state.directions, FREE), counts(state.directions, OWN)
    sent = setup.train.messages_a_step
    return TaskOpened(
        task=data.index,
        name=data.name,
        classes=data.classes,
        steps=data.steps(setup.train.batch_size),
        coordinates=plan.size,
        full=plan.full_size,
        reference_extra=sum(heads) + norm_parameters - live,
        kept=kept_size(setup, data, own),
        body=body_size(setup),
        itemsize=data.dtype.itemsize,
        rows_sent=sent if sent > 1 else None,
        free=free,
        trained=trained or None,
        own=own if any(own.values()) else None,
        factored=sorted(agents.factored),
        class_counts=data.class_counts(),
        images=data.images_of_agents(),
        own_counts=data.own_class_counts(),
        privacy=_private_task(setup, data) if setup.privacy.is_on else None,
        agents=agents,
    )


def _private_task(setup: Setup, data: TaskData) -> PrivateTask:
    """How images are used in it; of agents whose images are known here, by the one with the fewest."""
    agents = setup.exchange.agents if setup.exchange.lossy else range(setup.topology.agents)
    return PrivateTask(
        **setup.privacy.model_dump(),
        sampling=data.sampling,
        images=min(len(data.partition[agent]) for agent in agents),
        batch=setup.train.batch_size,
        covers="gradients" if setup.method.looks_at_images or setup.method.grows else "all messages",
    )


def _epoch_ended(
    setup: Setup, data: TaskData, agents: Agents, live: LiveEpoch, losses_SA: Tensor, lr: float, began: float
) -> EpochEnded:
    """Losses are read once an epoch; one that is not finite ends the run."""
    losses_SA = setup.exchange.gather(losses_SA.mT).mT.cpu()
    steps = data.steps(setup.train.batch_size)
    not_finite = (~losses_SA.isfinite()).nonzero()
    if len(not_finite):
        at, row = not_finite[0].tolist()
        agent = row if losses_SA.shape[1] > 1 else setup.exchange.agents[row]
        step = (live.epoch + 1) * steps - len(losses_SA) + at + 1
        own = "" if setup.train.loss in LOSSES else f" ({setup.train.loss})"
        raise RunFailed(
            f"task {data.index + 1} ({data.name}), step {step}, agent {agent}:"
            f" the loss{own} is {losses_SA[at, row].item()}; lower train.lr (it is {lr:g})"
        )
    unread = None
    if live.carry.memory_AM.numel() and not setup.exchange.lossy:
        unread = setup.messages(data.index).unread(setup.exchange.gather(live.carry.memory_AM))
    if unread:
        raise RunFailed(f"task {data.index + 1} ({data.name}), epoch {live.epoch + 1}: {unread}")
    looked = None
    if setup.message.robust != "none" or setup.faults.row_liars:
        looked = setup.messages(data.index).looked(setup.exchange.gather(live.carry.memory_AM))
    error = setup.exchange.consensus_error(live.coords_AD)
    if not math.isfinite(error):
        raise RunFailed(
            f"task {data.index + 1} ({data.name}), epoch {live.epoch + 1}: weights overflow; lower train.lr"
        )
    return EpochEnded(
        task=data.index,
        epoch=live.epoch,
        step=(live.epoch + 1) * steps,
        loss=losses_SA.mean(0).tolist(),
        lr=lr,
        consensus_error=error,
        clipped=looked.clipped if looked else None,
        refused=looked.refused if looked else None,
        execution=agents.execution,
        private_steps=setup.noise.counts[data.index] if setup.privacy.noise else None,
        seconds=time.perf_counter() - began,
        live=live,
        **setup.exchange.traffic.take("train"),
    )
