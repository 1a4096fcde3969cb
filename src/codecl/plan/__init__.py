"""What a run will be, before anything trains: graph, steps, bytes, memory, and what will hurt. See docs/plan.md."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from codecl.data.heterogeneity import heterogeneity
from codecl.data.inputs import take
from codecl.data.task import Task, TaskData
from codecl.exchange.messages import message_bytes
from codecl.plan.forecast import SURE, Forecast, Known, Like
from codecl.plan.graph import GraphPlan, graph_of
from codecl.plan.hazards import hazards
from codecl.runs.build import build_setup, task_data
from codecl.runs.config import RunConfig
from codecl.runs.machine import compute_settings, seeded
from codecl.seeding import choose
from codecl.space.tracing import logits
from codecl.train import autotune
from codecl.train.objective import loss_of
from codecl.train.optimizers import state_size
from codecl.train.state import Setup, State
from codecl.train.task_start import body_size


@dataclass(frozen=True, kw_only=True)
class TaskPlan:
    name: str
    images: int  # of all agents
    shard: tuple[int, int]  # images of an agent, least and most
    heterogeneity: float | None  # mean distance between an agent's mix of classes and the task's; None: not known
    steps: int  # of an epoch
    epochs: int
    left_over: tuple[int, int]  # images of an agent that an epoch does not reach, least and most
    coordinates: int
    full: int
    message_bytes: int  # a step and a directed edge
    message_known: Known
    opening_bytes: int  # of choosing its directions; as sure as a message
    kept: int  # numbers that it keeps for itself; likewise
    train_bytes: int
    agree_bytes: int
    reduce_bytes: int
    flood_bytes: int
    end_known: Known  # of pool and flood
    full_bytes: int
    messages_s: float | None  # at the bandwidth that was given


@dataclass(frozen=True, kw_only=True)
class Plan:
    preset: str
    method: str
    topology: str
    seed: int
    graph: GraphPlan
    tasks: tuple[TaskPlan, ...]
    train_bytes: int
    boundary_bytes: int
    full_bytes: int
    known: Known
    body: int  # numbers that all tasks share
    agent_memory_bytes: int  # one agent alone, with its images
    memory_bytes: int  # all agents in one process
    ms_per_step: float | None  # of all agents on this machine
    train_s: float | None
    messages_s: float | None
    warnings: tuple[str, ...]


def plan(
    config: RunConfig,
    tasks: Sequence[Task] | None = None,
    like: Like | None = None,
    device: torch.device | None = None,
    measure: bool = False,
    bandwidth: float | None = None,
) -> Plan:
    """The plan of a config; refuses what `run` would refuse. `like`: a recorded run whose free directions this one
    is taken to have. `measure`: time a step on the device. `bandwidth`: of an agent's way out, in bits a second."""
    place = device or torch.device("cpu")
    data = task_data(config, tasks, place)
    with compute_settings(place), seeded(config.seed, "trial", place):
        setup, state = build_setup(config, data, place)
        forecast = Forecast(config, setup, state, like)
        ms = _ms_per_step(setup, state, config.train.execution == "auto") if measure else None
        activations = _activations(setup, state)
    graph = graph_of(setup.topology, config.train.order, config.train.correction, config.train.momentum, setup.gossip)
    if config.train.optimizer != "sgd":  # its steps do not grow with the curvature
        graph = replace(graph, stable_below=None)
    task_plans = tuple(_task(setup, forecast, task, bandwidth) for task in range(len(data)))
    alone, together = _memory(setup, forecast, activations)
    return Plan(
        preset=config.preset,
        method=config.method.name,
        topology=config.topology.name,
        seed=config.seed,
        graph=graph,
        tasks=task_plans,
        train_bytes=sum(task.train_bytes for task in task_plans),
        boundary_bytes=sum(
            task.opening_bytes + task.agree_bytes + task.reduce_bytes + task.flood_bytes for task in task_plans
        ),
        full_bytes=sum(task.full_bytes for task in task_plans),
        known=max((k for task in task_plans for k in (task.message_known, task.end_known)), key=SURE.index),
        body=body_size(setup),
        agent_memory_bytes=alone,
        memory_bytes=together,
        ms_per_step=ms,
        train_s=None if ms is None else ms / 1000 * sum(task.steps * task.epochs for task in task_plans),
        messages_s=sum(task.messages_s or 0 for task in task_plans) if bandwidth else None,
        warnings=tuple(_warnings(config, setup, task_plans, forecast)),
    )


def _task(setup: Setup, forecast: Forecast, task: int, bandwidth: float | None) -> TaskPlan:
    data, edges, sends = setup.tasks[task], setup.topology.round_edges, setup.topology.agents - 1
    message, end = forecast.message(task), forecast.end(task)
    steps, epochs, batch = data.steps(setup.train.batch_size), setup.train.epochs, setup.train.batch_size
    shards = [len(shard) for shard in data.partition]
    left = [max(0, shard - steps * batch) for shard in shards]
    size = message_bytes(setup.message, message.coordinates, forecast.itemsize)
    trained, agreed = edges * steps * epochs, setup.agree_rounds
    rows = setup.train.messages_a_step
    return TaskPlan(
        name=data.name,
        images=sum(shards),
        shard=(min(shards), max(shards)),
        heterogeneity=_heterogeneity(data),
        steps=steps,
        epochs=epochs,
        left_over=(min(left), max(left)),
        coordinates=message.coordinates,
        full=message.full,
        message_bytes=size * rows,
        message_known=message.known,
        opening_bytes=sends * sum(forecast.opening(task)),
        kept=forecast.kept(task),
        train_bytes=trained * size * rows,
        agree_bytes=edges * agreed * size,
        reduce_bytes=sends * end.pool,
        flood_bytes=sends * end.flood,
        end_known=end.known if sends else "exact",
        full_bytes=(trained + edges * setup.gossip.agree_rounds) * message.full * forecast.itemsize,
        messages_s=_seconds(
            setup, task, size * (rows * steps * epochs + agreed), end.flood + forecast.opening(task).flood, bandwidth
        ),
    )


def _heterogeneity(data: TaskData) -> float | None:
    counts_AC = data.images_of_classes()
    return None if counts_AC is None else heterogeneity(counts_AC).distance


def _seconds(setup: Setup, task: int, gossip: int, flood: int, bandwidth: float | None) -> float | None:
    """Time that messages of a task take, nothing else: an agent sends to one hearer after another, and hands a flood
    on when it has it whole. Sums that are reduced are left out."""
    if not bandwidth:
        return None
    graph = setup.topology
    busiest = max(int(np.count_nonzero(turn, 0).max()) - 1 for turn in graph.turns)  # of its links, itself left out
    root = choose(setup.seed, task, graph.agents)
    free_at = {root: 0}  # of an agent's way out, in floods
    for parent, child in graph.tree(root):
        free_at[parent] += 1
        free_at[child] = free_at[parent]
    return 8 * (busiest * gossip + max(free_at.values()) * flood) / bandwidth


def _ms_per_step(setup: Setup, state: State, auto: bool) -> float | None:
    """Of all agents on this machine, now, in the first task; `auto`: of the fastest way. None: it cannot be told."""
    device = setup.tasks[0].device
    if not auto:
        return autotune.measure(setup, state, device).get(setup.execution)
    choice = autotune.measured(setup, state, device)
    return choice.ms_per_step.get(choice.execution)


def _memory(setup: Setup, forecast: Forecast, activations: int) -> tuple[int, int]:
    """(one agent alone, all in one process), of the largest task: weights, heads and the method's memory, which agents
    of one process share; coordinates, their gradient and their mixed sums, what the optimizer remembers, built weights
    and activations of each; images, of one agent alone the most that an agent has."""
    each = shared = 0
    for task in range(len(setup.tasks)):
        message = forecast.message(task)
        rows = 3 * message.coordinates + state_size(setup.train, message.coordinates)
        each = max(each, (rows + message.full) * forecast.itemsize)
        shared = max(shared, forecast.body * forecast.itemsize + forecast.end(task).remembered)
    shared += sum(forecast.kept(task) for task in range(len(setup.tasks))) * forecast.itemsize
    train = sum(data.train.nbytes for data in setup.tasks)
    largest = sum(data.train.nbytes * max(map(len, data.partition)) // data.train.size for data in setup.tasks)
    test = sum(data.test.nbytes for data in setup.tasks)
    agents, each = setup.topology.agents, each + activations
    return shared + each + largest + test, shared + agents * each + train + test


def _activations(setup: Setup, state: State) -> int:
    """Bytes that an agent's batch keeps for its backward pass, its parameters aside."""
    data = setup.tasks[0]
    values = {**state.parameters, **setup.heads[0]}.items()
    parameters = {name: value.detach().requires_grad_(value.is_floating_point()) for name, value in values}
    known = {value.data_ptr() for value in parameters.values()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in known:
            kept[tensor.data_ptr()] = max(kept.get(tensor.data_ptr(), 0), tensor.nbytes)
        return tensor

    images, labels = next(data.epoch(0, [0], setup.train.batch_size))
    module: nn.Module = setup.module.train()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = loss_of(setup.train)(logits(module, take(images, 0), parameters), labels[0])
    del loss
    return sum(kept.values())


def _warnings(config: RunConfig, setup: Setup, task_plans: Sequence[TaskPlan], forecast: Forecast) -> Iterator[str]:
    """What will hurt, a line each."""
    yield from hazards(setup)
    yield from _without_room(forecast, len(task_plans))
    if any(task.end_known == "partly" for task in task_plans):
        yield f"flood: what {config.method.name} remembers is not counted; --like RUN tells"


def _without_room(forecast: Forecast, tasks: int) -> Iterator[str]:
    """Layers that a recorded run left without free directions."""
    said: set[str] = set()
    for task in range(tasks if forecast.like else 0):
        free: Any = forecast.message(task).free or {}
        full = [name for name, count in free.items() if count == 0 and name not in said]
        said.update(full)
        if full:
            yield (
                f"threshold: no free direction is left in {', '.join(full)} from task {task + 1} on:"
                " lower growth.threshold or growth.increment"
            )
