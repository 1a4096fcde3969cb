"""From a config to everything that the loop needs, built and checked before anything trains."""

import copy
import math
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from codecl.data import store, streams
from codecl.data.config import DataConfig
from codecl.data.past import PastTask
from codecl.data.task import Task, TaskData, TaskOptions
from codecl.errors import CodeclError, ConfigError, DataError
from codecl.exchange import Exchange, Simulated, digest
from codecl.exchange import topology as topologies
from codecl.exchange.messages import gossip
from codecl.exchange.topology import Topology
from codecl.models import MODELS
from codecl.registry import lookup, reason
from codecl.runs.config import RunConfig
from codecl.runs.machine import seeded
from codecl.runs.pretrained import put_weights
from codecl.seeding import spawn
from codecl.space import norms
from codecl.space.layout import Parameters
from codecl.space.plain import in_plain_operations
from codecl.space.roles import matching, parameter_roles
from codecl.space.tracing import logits, without_running_statistics
from codecl.space.wrapped import copied, unwrapped, without_weight_norms
from codecl.train import privacy
from codecl.train.corrections import largest_modulus
from codecl.train.objective_check import check_objective
from codecl.train.privacy import SeededNoise
from codecl.train.state import Setup, State
from codecl.train.task_start import body_size, kept_size, own_room

ReadStream = Callable[[str, str | None], list[Task]]  # of a stream and data.local_path
BuildExchange = Callable[[Topology, torch.dtype, torch.device], Exchange]


def read_stream(stream: str, local_path: str | None = None) -> list[Task]:
    """The tasks of a stream, as its files have them."""
    try:
        tasks = streams.load(stream, Path(local_path).expanduser() if local_path else None)
    except CodeclError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise DataError(f"data.stream: {stream} cannot be loaded: {reason(error)}") from error
    if not isinstance(tasks, list) or not tasks or not all(isinstance(task, Task) for task in tasks):
        raise ConfigError(f"data.stream: {stream} gives no list of codecl.Task")
    return tasks


def load_tasks(config: RunConfig, alone: bool = False, read: ReadStream = read_stream) -> list[Task]:
    """The tasks that a config names. `alone`: of one agent, which may have its own data; `read`: or a cache of it."""
    data = config.data
    if data.local_path is not None and not alone:
        raise ConfigError(
            f"data.local_path: {data.local_path!r} is the data of one agent, but this run holds {config.agents};"
            " leave it out, or start each agent by itself with `codecl agent`"
        )
    tasks = read(data.stream, data.local_path)
    if data.tasks is not None and data.tasks > len(tasks):
        raise ConfigError(f"data.tasks: {data.tasks} is more than the {len(tasks)} tasks of the stream")
    return scaled(config, tasks[: data.tasks])


def scaled(config: RunConfig, tasks: Sequence[Task]) -> list[Task]:
    """Tasks with the scale of the config, where it states one."""
    data = config.data
    return [task._replace(mean=data.mean, std=data.std) for task in tasks] if data.mean else list(tasks)


def task_options(config: RunConfig, device: torch.device) -> TaskOptions:
    dtype = getattr(torch, config.dtype)
    return TaskOptions(config.agents, config.seed, dtype, device, config.data, config.train.targets)


def check_files(data: DataConfig) -> None:
    """The data set files that a stream is cut from are there; none is read."""
    for name in streams.data_sets(data.stream) if data.local_path is None else ():
        if not store.path_of(name).is_file():
            raise store.missing(name)


def check(config: RunConfig, tasks: Sequence[Task] | None = None) -> None:
    """Refuse what `run` would refuse, without training anything."""
    cpu = torch.device("cpu")
    build_setup(config, task_data(config, tasks, cpu), cpu)


def task_data(
    config: RunConfig, tasks: Sequence[Task] | None, device: torch.device, alone: bool = False, first: int = 0
) -> list[TaskData]:
    """The tasks of a config on the device, checked, with a shard for each agent; `alone`: own data is its shard.
    `first`: the number of the first of these `tasks`, which come after others."""
    read = read_stream if tasks is None else lambda *_: list(tasks)
    selected = scaled(config, tasks) if tasks is not None and first else load_tasks(config, alone, read)
    options = task_options(config, device)
    data = [TaskData(index, task, options) for index, task in enumerate(selected, first)]
    for task in data:
        task.steps(config.train.batch_size)
    return data


def build_model(config: RunConfig, shape: Sequence[int], classes: int) -> nn.Module:
    """A fresh module for images of this shape, with initial weights from the seed."""
    with seeded(config.seed, "weights", torch.device("cpu")):
        builder = lookup("model", MODELS, config.model.name)
        try:
            module: Any = builder(tuple(shape), classes, **config.model.options)
        except Exception as error:  # a user's function may raise anything
            given = {"shape": list(shape), "classes": classes, **config.model.options}
            raise ConfigError(f"model: {config.model.name} cannot be built with {given}: {reason(error)}") from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model: {config.model.name} gives {type(module).__name__}, not an nn.Module")
    return module


def build_setup(
    config: RunConfig,
    tasks: Sequence[TaskData],
    device: torch.device,
    module: nn.Module | None = None,
    exchange: BuildExchange = Simulated,
    topology: Topology | None = None,
    past: Sequence[PastTask] = (),
) -> tuple[Setup, State]:
    """Build and check everything that the loop needs. `module` and `topology` replace those that the config names;
    `past`: tasks that were learned before these."""
    dtype = getattr(torch, config.dtype)
    infos = [*(task.describe() for task in past), *(task.describe() for task in tasks)]
    if module is None:
        module = build_model(config, infos[0].shape, infos[0].classes)
    topology = topology or topologies.build(config.topology, config.agents, config.seed)
    check_correction(config, topology)
    check_faults(config, topology)
    module = working_copy(module, config)
    if config.init and not past:
        put_weights(module, config.init)
    module = module.to(device, dtype)
    sample = tasks[0].first(min(2, tasks[0].train.size))
    roles = parameter_roles(module, sample, config.head, config.dense, config.frozen)
    roles = roles.with_shared_norms() if config.norms == "shared" else roles
    values = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    first_head = {name: values.pop(name) for name in roles.head}
    setup = Setup(
        module=module,
        roles=roles,
        tasks=tasks,
        heads=[_head(first_head, roles.outputs, n, info.classes, config.seed) for n, info in enumerate(infos)],
        topology=topology,
        exchange=exchange(topology, dtype, device),
        method=config.method.build(),
        train=config.train,
        growth=config.growth,
        message=config.message,
        own=config.own,
        free=config.free,
        own_norms=roles.norms if config.norms == "own" else (),
        seed=config.seed,
        execution="stacked" if config.train.execution == "auto" else config.train.execution,
        privacy=config.privacy,
        noise=SeededNoise(config.seed),
        past=past,
        faults=config.faults,
    )
    privacy.check(setup.privacy, module, tasks, setup.train.batch_size)
    if setup.growth.pool == "masked" and not isinstance(setup.exchange, Simulated):
        import_module("codecl.exchange.masks")  # it needs a library: say so before anything trains
    start = State(values, (), {})
    for data in tasks if setup.method.grows else ():  # every agent whose images are known here has enough of them
        setup.growth.check(data.name, min(map(len, data.partition)))
    _check_tasks(setup, start, device)
    check_objective(setup, {**start.parameters, **setup.heads[0]})
    _check_share(setup)
    return setup, start


def check_faults(config: RunConfig, topology: Topology) -> None:
    """Refuse liars that are not there, and clipping where neighbours cannot outvote one."""
    unknown = [agent for agent in config.faults.liars if not 0 <= agent < config.agents]
    if unknown:
        raise ConfigError(f"faults.liar: there is no agent {unknown[0]}; they are numbered 0 to {config.agents - 1}")
    if config.faults.liars and config.message.bits != 32:
        raise ConfigError(f"faults.liar: lies are of whole rows; message.bits is {config.message.bits}, set it to 32")
    heard = min(topology.graph.in_degree(agent) for agent in range(topology.agents))
    if config.message.robust == "clip" and (heard < 3 or topology.changes):
        why = "who is heard changes" if topology.changes else f"some hear {heard} of {topology.agents - 1} others"
        raise ConfigError(
            f"message.robust: clip needs three neighbours of each agent, so that a liar is outvoted; on"
            f" {topology.name} {why}; use torus, hypercube or complete, with 8 agents or more"
        )


def check_correction(config: RunConfig, topology: Topology) -> None:
    """Refuse a correction under which agents on this graph drift apart, whatever they learn."""
    train = config.train
    if train.correction == "none" or topology.agents == 1:
        return
    message = config.message
    if train.correction == "gradient-tracking" and (message.bits != 32 or message.robust != "none"):
        what = f"bits={message.bits}" if message.bits != 32 else f"robust={message.robust}"
        raise ConfigError(
            f"train.correction: gradient-tracking sends two rows a step, and message.{what} remembers one; use"
            " message.bits=32 and message.robust=none, or exact-diffusion"
        )
    mixings = gossip(config.message, topology, train.gossip_rounds).mixings
    modulus = largest_modulus(mixings, train.correction, train.momentum)
    if modulus > 1 + 1e-9:
        raise ConfigError(
            f"train.correction: {train.correction} is unstable on {topology.name} of {topology.agents}: each step"
            f" multiplies disagreement by up to {modulus:.3f}; use an undirected graph, such as torus, or none"
        )


def _check_share(setup: Setup) -> None:
    """`own.share` leaves room for at least one direction."""
    share, layers = setup.own.share, setup.roles.layers
    later = [data for data in setup.tasks if data.index > 0]
    for data in later if share is not None and layers else ():
        smallest = min(layer.direction_size + layer.outputs for layer in layers)
        if own_room(setup, data) < smallest:
            least = math.ceil(1000 * (kept_size(setup, data) + smallest) / max(1, body_size(setup))) / 1000
            raise ConfigError(
                f"own.share: {share} leaves no room for own directions: the head and norms of task {data.name!r} and"
                f" one direction are {least} of the body; raise it, or leave it out"
            )


def _head(given: Parameters, outputs: int, task: int, classes: int, seed: int) -> Parameters:
    """A task's head: a copy of the given one, drawn anew from the seed where the task has another number of classes."""
    if not given or classes == outputs:
        return {name: value.clone() for name, value in given.items()}
    generator = spawn(seed, "head", task)
    bound = max(value[0].numel() for value in given.values()) ** -0.5
    head = {}
    for name, value in given.items():  # as nn.Linear does it
        drawn = torch.empty(classes, *value.shape[1:]).uniform_(-bound, bound, generator=generator)
        head[name] = drawn.to(value)
    return head


def _check_tasks(setup: Setup, start: State, device: torch.device) -> None:
    """Every task's images and classes fit the module, in every batch that will come; it changes no buffers."""
    if len(setup.heads) > 1 and not (setup.roles.layers or setup.roles.head or setup.roles.dense):
        raise ConfigError("model: nothing trains after the first task (all is frozen and there is no head of its own)")
    trial = copy.deepcopy(setup.module)
    before = _buffers(trial)
    with seeded(setup.seed, "trial", device):
        for data in {(data.shape, data.classes): data for data in setup.tasks}.values():
            _check_batches(setup, trial, data, {**start.parameters, **setup.heads[data.index]})
    changed = [name for name, value in _buffers(trial).items() if value != before.get(name)]
    if changed:
        raise ConfigError(
            f"model: buffer {changed[0]!r} changes while the model trains, and agents would not share it; make it a"
            " parameter and name that in dense, or leave it out"
        )


def _buffers(module: nn.Module) -> dict[str, str]:
    return {name: digest({name: value}) for name, value in module.named_buffers()}


def _check_batches(setup: Setup, trial: nn.Module, data: TaskData, parameters: Parameters) -> None:
    """A batch of each size that will come: for training, for the test, for growth."""
    growth_images = setup.growth.by_layer(setup.roles.layers, setup.growth.sharing(setup.topology.agents))
    sizes = (
        (True, setup.train.batch_size),  # it may be more than a shard
        (False, min(setup.train.test_batch_size, data.test.size, data.train.size)),
        (False, min(max(growth_images.values(), default=2), data.train.size)),
    )
    for training, size in sizes:
        out = logits(trial.train(training), data.first(size), parameters)
        exactly = setup.train.targets in ("numbers", "labels")
        if out.shape[1] < data.classes or (exactly and out.shape[1] > data.classes):
            raise ConfigError(
                f"head: the model gives {out.shape[1]} numbers, but task {data.name!r} has {data.classes} classes"
            )


def working_copy(module: nn.Module, config: RunConfig) -> nn.Module:
    """The copy that trains: without running statistics, its weights seen where they multiply, the `fixed` ones told
    not to train. Law: of itself, it is the same."""
    ours = in_plain_operations(without_weight_norms(stateless_copy(module, config)))
    for name in matching(ours, "fixed", config.fixed):
        ours.get_parameter(name).requires_grad = False
    return ours


def stateless_copy(module: nn.Module, config: RunConfig) -> nn.Module:
    """A copy of what a user's module is inside its wrappers, whose norms keep no running statistics."""
    try:
        ours = without_running_statistics(copied(unwrapped(module)))
    except RuntimeError as error:
        raise ConfigError(f"model: it cannot be copied: {reason(error)}") from error
    return norms.with_group_norms(ours) if config.train.norm_statistics == "group" else ours
