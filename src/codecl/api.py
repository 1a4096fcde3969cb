"""The library: `fit` your own module on your own tasks, `load` what was learned, `run` a config."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.parameter import is_lazy

from codecl import norms, record, running, stream
from codecl import topology as topologies
from codecl.assemble import assemble, build_model, computing, deal, device_of, own_copy, seeded
from codecl.config import RunConfig, merge, validate
from codecl.errors import CodeclError, ConfigError, DataError
from codecl.events import Event
from codecl.exchange import digest
from codecl.exchange.ranks import Ranks, joined
from codecl.methods import METHODS, Method
from codecl.models import MODELS
from codecl.registry import code_digest, source_digest
from codecl.stream import Task
from codecl.topology import Graph
from codecl.train import train

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
    exchange: str = "auto",
    again: bool = False,
    on_event: OnEvent | None = None,
    **settings: Any,
) -> Result:
    """Train `model` on `tasks`, one after another, by agents that gossip with their neighbours.

    The module's code is not changed, nor are its weights: the result holds a trained copy. `topology` is a name, an
    edge-list file, a networkx graph or fields of the config. `settings` are fields of the config: `head="fc"`,
    `seed=1`, `dense=["token"]`, `dtype="float64"`, `train={"epochs": 5}`, `growth={"threshold": 0.95}`, … A call
    that was made before (same model, data and settings) gives back the recorded run; `again=True` repeats it. Under
    a launcher such as torchrun, every process makes the same call and holds some of the agents (`exchange`)."""
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
    return run(
        config,
        out=Path(out),
        device=device,
        exchange=exchange,
        again=again,
        on_event=on_event,
        module=model,
        tasks=tasks,
    )


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
    if not isinstance(method, Method):
        raise ConfigError(
            f"method: {method!r} is neither a name nor a Method with its options, such as DEwc(penalty=100)"
        )
    kind = type(method)
    known = {entry: name for name, entry in METHODS.items()}
    return {"name": known.get(kind, f"{kind.__module__}:{kind.__qualname__}"), **method.model_dump(mode="json")}


def _model_digest(model: nn.Module) -> str:
    """Of what decides what a caller's module computes: structure, code, plain attributes, weights, what trains."""
    if any(is_lazy(value) for value in (*model.parameters(), *model.buffers())):
        raise ConfigError("model: it has lazy layers without weights yet; run it once on a batch before fitting it")
    parts = []
    for name, part in model.named_modules():
        plain = {k: v for k, v in vars(part).items() if isinstance(v, bool | int | float | str | tuple)}
        plain.pop("training", None)  # `fit` sets the mode itself
        kind = type(part)
        code = "" if kind.__module__.startswith("torch.") else code_digest(kind)
        parts.append((name, kind.__qualname__, code, part.extra_repr(), sorted(plain.items())))
    trains = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    values = digest({**dict(model.named_parameters()), **dict(model.named_buffers())})
    return hashlib.sha256(repr((parts, trains, values)).encode()).hexdigest()[:16]


def run(
    config: RunConfig,
    *,
    out: Path = Path("runs"),
    device: str = "auto",
    exchange: str = "auto",
    again: bool = False,
    on_event: OnEvent | None = None,
    module: nn.Module | None = None,
    tasks: Sequence[Task] | None = None,
) -> Result:
    """Run a config and record it, or give back the run that is recorded already.

    `module` and `tasks` replace those that the config names. `exchange`: simulated, cluster, or auto, which is cluster
    where a launcher started several processes; all of them make this call, the leading one records."""
    with joined(exchange, device_of(device)) as here:
        return _run(config, here, out, again, on_event, module, tasks)


def _run(
    config: RunConfig,
    here: Ranks,
    out: Path,
    again: bool,
    on_event: OnEvent | None,
    module: nn.Module | None,
    tasks: Sequence[Task] | None,
) -> Result:
    folder = record.folder_of(config, out)
    place = here.device
    dealt = deal(config, tasks, place)
    module = module if module is not None else build_model(config, dealt[0].shape, dealt[0].classes)
    done = here.told(lambda: record.recorded(folder, config))
    if done is not None and not again:
        return Result(done, folder, False, module)
    with computing(place), seeded(config.seed, "trial", place):
        setup, state = assemble(config, module, dealt, place, here.exchange)
        known = running.Choice(setup.running, {}, False)
        measuring = config.train.running == "auto"
        choice = running.Choice(*here.told(lambda: running.choose(setup, state) if measuring else known))
    setup = setup._replace(running=choice.running)
    labels = {
        "benchmark": config.preset,
        "method": record.word(config.method.name),
        "agents": config.agents,
        "topology": record.word(config.topology.name),
        "seed": config.seed,
        "tasks": len(dealt),
    }
    book = record.Record(folder, config, labels, setup.method.each_task_alone) if here.leads else record.Elsewhere()
    book.environment(place)
    book.tasks([data.describe() for data in dealt])
    facts = {"edges": setup.topology.edges, "contraction": setup.topology.contraction, "digest": config.digest()}
    facts |= {"exchange": here.name, "ranks": here.size}
    book.fact({"kind": "run", **labels, **facts, **choice._asdict()})
    finished = False
    try:
        with computing(place), seeded(config.seed, here.own("dropout"), place):  # nn.Dropout takes none of ours
            for event in train(setup, state):
                book.event(event)
                if on_event is not None:
                    on_event(event)
        finished = True
    finally:  # also when a loss is NaN or the user presses Ctrl-C: what was recorded stays
        results = book.close("complete" if finished else "partial")
    return Result(here.told(lambda: results), folder, True, module)


def load(folder: str | Path, task: int, model: nn.Module | None = None) -> nn.Module:
    """The module of a run with the head of `task` (from 0), ready for inference. `model`: yours, if the run's was."""
    path = Path(folder)
    config = record.read_config(path)
    if model is None:
        model = _recorded_model(path, config)
    body, own = path / "model" / "body.safetensors", path / "model" / f"task-{task + 1}.safetensors"
    if not body.is_file() or not own.is_file():
        raise DataError(f"{path}: holds no model for task {task} (tasks are counted from 0)")
    module = own_copy(model).to(getattr(torch, config.dtype))
    known, of_task = dict(module.named_parameters()), load_file(own)
    statistics = {name: of_task.pop(name) for name in list(of_task) if norms.is_statistic(name)}
    for name, value in {**load_file(body), **of_task}.items():
        compared = slice(1, None) if name in of_task else slice(None)  # a head may have another number of classes
        if name not in known or known[name].shape[compared] != value.shape[compared]:
            raise ConfigError(
                f"{path}: the model does not fit this run at {name!r}; pass the one that it was made with"
            )
        known[name].data = value  # in place: layers that share a parameter go on sharing it
        part = module.get_submodule(name.rpartition(".")[0])
        if isinstance(part, nn.Linear):
            part.out_features = part.weight.shape[0]
    norms.put(module, statistics)
    return module.eval()


def _recorded_model(path: Path, config: RunConfig) -> nn.Module:
    """The model that a config names, if it can still be built and its code is what it was."""
    if config.model.name == "own":
        raise ConfigError(f"{path}: was made with a model of your own: pass it, codecl.load(run, task, model)")
    try:
        code = source_digest("model", MODELS, config.model.name)
        first = record.read_tasks(path)[0]
        model = build_model(config, first["shape"], first["classes"])
    except CodeclError as error:
        raise ConfigError(f"{path}: {error}; or pass the model: codecl.load(run, task, model)") from error
    if code != config.sources.get("model"):
        raise ConfigError(
            f"{path}: {config.model.name} has changed since; pass the model: codecl.load(run, task, model)"
        )
    return model


def _digest(tasks: Sequence[Task]) -> str:
    out = hashlib.sha256()
    for task in tasks:
        images, labels = stream.tensors(task.train)
        held, truth = stream.tensors(task.test)
        out.update(digest({"train": images, "labels": labels, "test": held, "truth": truth}).encode())
        out.update(repr((task.classes, task.mean, task.std)).encode())
    return out.hexdigest()[:16]
