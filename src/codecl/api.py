"""The library: `fit` your own module on your own tasks, `load` what was learned, `run` a config."""

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.parameter import is_lazy

from codecl import record, stream
from codecl import topology as topologies
from codecl.agents import Parameters
from codecl.config import RunConfig, merge, validate
from codecl.errors import ConfigError, DataError
from codecl.events import Event
from codecl.exchange import Simulated, digest
from codecl.layers import survey
from codecl.methods import METHODS, Method
from codecl.models import MODELS
from codecl.registry import code_digest, lookup
from codecl.seeding import derive, spawn
from codecl.stream import STREAMS, Task, TaskData
from codecl.topology import Graph
from codecl.train import Setup, State, train
from codecl.watch import logits, without_running_statistics

OnEvent = Callable[[Event], None]


class Result(NamedTuple):
    """A run that ended: its metrics and its folder, and the model of each task."""

    metrics: dict[str, Any]
    folder: Path
    trained: bool  # False: the folder held this very run already
    module: nn.Module  # as given

    def model(self, task: int = -1) -> nn.Module:
        """The trained module with the head of this task (from 0; -1: the last), ready for inference."""
        tasks = len(self.metrics["accuracy_matrix"])
        return load(self.folder, range(tasks)[task], self.module)


def fit(
    model: nn.Module,
    tasks: Sequence[Task],
    *,
    agents: int = 4,
    topology: str | Mapping[str, Any] | Graph = "ring",
    method: str | Method = "codec",
    out: str | Path = "runs",
    device: str = "auto",
    again: bool = False,
    on_event: OnEvent | None = None,
    **settings: Any,
) -> Result:
    """Train `model` on `tasks`, one after another, by agents that gossip with their neighbours.

    The module's code is not changed, nor are its weights: the result holds a trained copy. `topology` is a name, an
    edge-list file, a networkx graph or fields of the config. `settings` are fields of the config: `head="fc"`,
    `seed=1`, `dense=["token"]`, `dtype="float64"`, `train={"epochs": 5}`, `growth={"threshold": 0.95}`, … A call
    that was made before (same model, data and settings) gives back the recorded run; `again=True` repeats it."""
    if not tasks:
        raise ConfigError("tasks: there are none; give at least one codecl.Task(train, test, classes)")
    tasks = [_loaded(number, task) for number, task in enumerate(tasks)]
    fields = {
        "preset": "fit",
        "agents": agents,
        "topology": topologies.from_graph(topology) if isinstance(topology, nx.Graph) else topology,
        "method": _method_fields(method),
        "model": {"name": "own", "type": type(model).__name__, "digest": _model_digest(model)},
        "data": {"stream": "own", "digest": _digest(tasks)},
    }
    config = validate(merge(fields, settings))
    return run(config, out=Path(out), device=device, again=again, on_event=on_event, module=model, tasks=tasks)


def _loaded(number: int, task: Any) -> Task:
    """A caller's task with its data as tensors."""
    try:
        task = task if isinstance(task, Task) else Task(*task)
    except TypeError as error:
        raise ConfigError(f"tasks: number {number} is {task!r:.60}; give codecl.Task(train, test, classes)") from error
    return task._replace(train=stream.tensors(task.train), test=stream.tensors(task.test))


def _method_fields(method: str | Method) -> dict[str, Any]:
    """A method by name, or one of the caller's own with its options: then it is known by where its class lives."""
    if isinstance(method, str):
        return {"name": method}
    kind = type(method)
    known = {entry: name for name, entry in METHODS.items()}
    return {"name": known.get(kind, f"{kind.__module__}:{kind.__qualname__}"), **method.model_dump(mode="json")}


def _model_digest(model: nn.Module) -> str:
    """Of all that decides what a caller's module computes: structure, code, weights, what trains."""
    if any(is_lazy(value) for value in (*model.parameters(), *model.buffers())):
        raise ConfigError("model: it has lazy layers without weights yet; run it once on a batch before fitting it")
    kinds = {type(part) for part in model.modules()}
    code = sorted(
        f"{kind.__qualname__}:{code_digest(kind)}" for kind in kinds if not kind.__module__.startswith("torch.")
    )
    trains = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    text = repr((str(model), code, trains, digest(dict(model.state_dict()))))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def run(
    config: RunConfig,
    *,
    out: Path = Path("runs"),
    device: str = "auto",
    again: bool = False,
    on_event: OnEvent | None = None,
    module: nn.Module | None = None,
    tasks: Sequence[Task] | None = None,
) -> Result:
    """Run a config and record it, or give back the run that is recorded already.

    `module` and `tasks` replace those that the config names."""
    folder = record.folder_of(config, out)
    place = device_of(device)
    dealt = deal(config, tasks, place)
    module = module if module is not None else build_model(config, dealt)
    done = record.recorded(folder, config)
    if done is not None and not again:
        return Result(done, folder, False, module)
    setup, state = assemble(config, module, dealt, place)
    labels = {
        "benchmark": config.preset,
        "method": record.word(config.method.name),
        "agents": config.agents,
        "topology": record.word(config.topology.name),
        "seed": config.seed,
        "tasks": len(dealt),
    }
    book = record.Record(folder, config, labels, setup.method.each_task_alone)
    book.environment(place)
    facts = {"edges": setup.topology.edges, "contraction": setup.topology.contraction, "digest": config.digest()}
    book.fact({"kind": "run", **labels, **facts})
    finished = False
    try:
        with seeded(config.seed, "dropout", place):  # nn.Dropout takes no generator of ours
            for event in train(setup, state):
                book.event(event)
                if on_event is not None:
                    on_event(event)
        finished = True
    finally:  # also when a loss is NaN or the user presses Ctrl-C: what was recorded stays
        results = book.close("complete" if finished else "partial")
    return Result(results, folder, True, module)


@contextmanager
def seeded(seed: int, purpose: str, device: torch.device) -> Iterator[None]:
    """PyTorch's own generators set for this purpose, and put back as the caller had them."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(derive(seed, purpose))
        yield


def tasks_of(config: RunConfig) -> list[Task]:
    """The tasks of the stream that a config names."""
    try:
        tasks = lookup("data.stream", STREAMS, config.data.stream)()
    except OSError as error:
        raise DataError(f"data.stream: {config.data.stream}: {error}") from error
    if not isinstance(tasks, list) or not tasks or not all(isinstance(task, Task) for task in tasks):
        raise ConfigError(f"data.stream: {config.data.stream} gives no list of codecl.Task")
    return tasks


def check(config: RunConfig) -> None:
    """Refuse what `run` would refuse, without training anything."""
    cpu = torch.device("cpu")
    dealt = deal(config, None, cpu)
    assemble(config, build_model(config, dealt), dealt, cpu)


def deal(config: RunConfig, tasks: Sequence[Task] | None, device: torch.device) -> list[TaskData]:
    """The tasks of a config on the device, checked, with a shard for each agent."""
    source = tasks if tasks is not None else tasks_of(config)
    dtype = getattr(torch, config.dtype)
    dealt = [TaskData(i, task, config.agents, config.seed, dtype, device) for i, task in enumerate(source)]
    for data in dealt:
        data.steps(config.train.batch)
    return dealt


def build_model(config: RunConfig, tasks: Sequence[TaskData]) -> nn.Module:
    """A fresh module with initial weights from the seed."""
    shape, classes = tuple(tasks[0].train[0].shape[1:]), tasks[0].classes
    with seeded(config.seed, "weights", torch.device("cpu")):
        builder = lookup("model", MODELS, config.model.name)
        try:
            module: Any = builder(shape, classes, **config.model.options)
        except (TypeError, ValueError, RuntimeError) as error:
            given = {"shape": list(shape), "classes": classes, **config.model.options}
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(f"model: {config.model.name} cannot be built with {given}: {reason}") from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model: {config.model.name} gives {type(module).__name__}, not an nn.Module")
    return module


def assemble(
    config: RunConfig, module: nn.Module, tasks: Sequence[TaskData], device: torch.device
) -> tuple[Setup, State]:
    """Build and check everything that the loop needs."""
    dtype = getattr(torch, config.dtype)
    graph = topologies.build(config.topology, config.agents, config.seed)
    own = without_running_statistics(copy.deepcopy(module)).to(device, dtype)
    sample = tasks[0].prepare(tasks[0].train[0][:2])
    places = survey(own, sample, config.head, config.dense, config.frozen)
    if isinstance(config.growth.images, tuple):
        config.growth.by_layer(places.layers, shared_by=1)
    values = {name: parameter.detach().clone() for name, parameter in own.named_parameters()}
    first_head = {name: values.pop(name) for name in places.head}
    heads = [_head(first_head, places.outputs, data, config.seed) for data in tasks]
    setup = Setup(
        module=own,
        survey=places,
        tasks=tasks,
        heads=heads,
        topology=graph,
        exchange=Simulated(graph, dtype, device),
        method=config.method.build(),
        train=config.train,
        growth=config.growth,
        seed=config.seed,
    )
    _check_tasks(setup, device)
    return setup, State(values, (), {})


def _head(given: Parameters, outputs: int, data: TaskData, seed: int) -> Parameters:
    """A task's head: a copy of the given one, drawn anew from the seed where the task has another number of classes."""
    if not given or data.classes == outputs:
        return {name: value.clone() for name, value in given.items()}
    generator = spawn(seed, "head", data.index)
    bound = max(value[0].numel() for value in given.values()) ** -0.5
    out = {}
    for name, value in given.items():  # as nn.Linear does it
        drawn = torch.empty(data.classes, *value.shape[1:]).uniform_(-bound, bound, generator=generator)
        out[name] = drawn.to(value)
    return out


def _check_tasks(setup: Setup, device: torch.device) -> None:
    """Every task's images and classes fit the module, and it keeps no state of its own while it trains."""
    trial = copy.deepcopy(setup.module).train()
    before = {name: value.clone() for name, value in trial.named_buffers()}
    shapes = {data.train[0].shape[1:]: data for data in setup.tasks}
    with seeded(setup.seed, "trial", device):
        for data in shapes.values():
            logits(trial, data.prepare(data.train[0][: setup.train.batch]))
    for name, value in trial.named_buffers():
        if not torch.equal(value, before[name]):
            raise ConfigError(
                f"model: buffer {name!r} changes while the model trains, and agents would not share it; make it a"
                " parameter and name that in dense, or leave it out"
            )
    whole_head = {name.rpartition(".")[0] for name in setup.survey.head} - {
        name.rpartition(".")[0] for name in setup.survey.constant
    }
    for data in setup.tasks:
        if data.classes > setup.survey.outputs and not whole_head:
            what = "a head that is partly frozen has" if setup.survey.head else "null shares one head of"
            raise ConfigError(
                f"head: {what} {setup.survey.outputs} outputs, but task {data.name!r} has {data.classes} classes"
            )


def load(folder: str | Path, task: int, model: nn.Module | None = None) -> nn.Module:
    """The module of a run with the head of `task` (from 0), ready for inference. `model`: yours, if the run's was."""
    path = Path(folder)
    config = record.read_config(path)
    if model is None:
        if config.model.name == "own":
            raise ConfigError(f"{path}: was made with a model of your own: pass it, codecl.load(run, task, model)")
        model = build_model(config, deal(config, None, torch.device("cpu")))
    body, head = path / "model" / "body.safetensors", path / "model" / f"task-{task + 1}.safetensors"
    if not body.is_file() or not head.is_file():
        raise DataError(f"{path}: holds no model for task {task} (tasks are counted from 0)")
    module = without_running_statistics(copy.deepcopy(model)).to(getattr(torch, config.dtype))
    for name, value in {**load_file(body), **load_file(head)}.items():
        module.get_parameter(name).data = value  # in place: layers that share a parameter go on sharing it
        part = module.get_submodule(name.rpartition(".")[0])
        if isinstance(part, nn.Linear):
            part.out_features = part.weight.shape[0]
    return module.eval()


def device_of(name: str) -> torch.device:
    """auto: a GPU where there is one."""
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device: {name!r} is not one of auto, cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device: cuda was asked for but PyTorch sees no GPU; use --device auto or cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def _digest(tasks: Sequence[Task]) -> str:
    out = hashlib.sha256()
    for task in tasks:
        images, labels = stream.tensors(task.train)
        held, truth = stream.tensors(task.test)
        out.update(digest({"train": images, "labels": labels, "test": held, "truth": truth}).encode())
        out.update(repr((task.classes, task.mean, task.std)).encode())
    return out.hexdigest()[:16]
