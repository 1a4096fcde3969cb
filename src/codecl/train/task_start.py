"""A task's start: where its directions are chosen from its images, look, choose and flood. Afterwards every agent holds
the same directions, bit for bit, and the task is laid out in them."""

import time
from collections.abc import Generator, Mapping
from functools import partial

import torch

from codecl.data.task import TaskData
from codecl.errors import RunFailed
from codecl.exchange import flooded
from codecl.methods.subspace import Look
from codecl.seeding import succession
from codecl.space import directions, growth, norms
from codecl.space.layout import Layout, layout
from codecl.train import liars, review
from codecl.train.events import DirectionsChosen, Event
from codecl.train.state import Setup, State


def chooses(setup: Setup, task: int) -> bool:
    """Whether the directions of this task (from 0) are chosen when it opens."""
    if not setup.method.grows or not setup.roles.layers:
        return False
    some_free = setup.free.directions is not None
    return some_free and setup.free.first_task if task == 0 else some_free or setup.own.is_on


def choose_directions(setup: Setup, state: State, data: TaskData) -> Generator[Event, None, State]:
    """The state with the directions of this task. If the chosen agent is gone, the next chooses."""
    exchange, layers = setup.exchange, setup.roles.layers
    parameters = {**state.parameters, **setup.heads[data.index]}
    device, dtype = data.device, data.dtype
    nothing_grown, room = growth.exact({}, layers, device), own_room(setup, data)
    for chosen in succession(setup.seed, data.index, setup.topology.agents):
        began = time.perf_counter()
        look = Look(data, setup.module, lambda _: parameters, exchange, chosen, setup.growth)
        moments = look.moments(layers, nothing_grown)  # of all inputs, not only inside the free space
        payload = None
        if moments is not None:
            bases = growth.exact(growth.bases_of(state.memory, layers), layers, device)
            found = directions.choose(bases, moments, layers, setup.own, setup.free, room)
            payload = {name: growth.rounded(basis, dtype).contiguous() for name, basis in found.items()}
            if chosen in setup.faults.flood_liars:
                payload = liars.false_directions(setup, payload)
        objection = partial(review.of_opening, setup, state, look, room)
        flood = flooded(exchange, chosen, payload, data.index, review.check_of(setup, chosen, objection))
        if flood is not None and flood.votes:
            yield review.voted(data.index, chosen, flood.votes)
        if flood is not None and flood.stands:
            reduced, sent = exchange.traffic.take("reduce"), exchange.traffic.take("flood")
            yield DirectionsChosen(
                task=data.index,
                chosen=chosen,
                digest=flood.digest,
                seconds=time.perf_counter() - began,
                messages=reduced["messages"] + sent["messages"],
                bytes=reduced["bytes"] + sent["bytes"],
            )
            return state._replace(directions=flood.tensors)
    raise RunFailed(f"task {data.index + 1}: every agent that could choose its directions {review.nobody(setup)}")


def task_layout(setup: Setup, state: State, data: TaskData) -> Layout:
    """What agents' coordinates mean in this task."""
    space = directions.space(state.memory, state.directions)
    free = setup.method.free(space, setup.roles.layers)
    kept = {**setup.heads[data.index], **{name: state.parameters[name] for name in setup.own_norms}}
    shared = {}
    if setup.train.norm_statistics == "gossip":
        before = state.kept[-1].statistics if state.kept else {}
        shared = norms.moments_of(setup.module, before, torch.zeros((), device=data.device, dtype=data.dtype))
    return layout(setup.roles, state.parameters, free, kept, first=data.index == 0, statistics=shared)


def kept_size(setup: Setup, data: TaskData, own: Mapping[str, int] | None = None) -> int:
    """Numbers that a task keeps for itself: head, own norms, statistics of norms, and so many own directions."""
    head = sum(value.numel() for value in setup.heads[data.index].values())
    norm_parameters = sum(setup.module.get_parameter(name).numel() for name in setup.own_norms)
    statistics = norms.statistics_size(setup.module) if setup.train.norm_statistics in ("task", "gossip") else 0
    sizes = {
        layer.name: layer.direction_size + layer.outputs for layer in setup.roles.layers
    }  # of a direction and its u
    return head + norm_parameters + statistics + sum(sizes[name] * count for name, count in (own or {}).items())


def body_size(setup: Setup) -> int:
    """Numbers of the body: what all tasks share."""
    apart = {*setup.roles.head, *setup.roles.constant, *setup.own_norms}
    return sum(value.numel() for name, value in setup.module.named_parameters() if name not in apart)


def own_room(setup: Setup, data: TaskData) -> int:
    """Numbers that `own.share` leaves for own directions."""
    return max(0, int((setup.own.share or 0.0) * body_size(setup)) - kept_size(setup, data))
