"""The library: `fit` your own module on your own tasks, `load` what was learned, `run` a config."""

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from codecl.data import verdicts
from codecl.data.forms import code_of, collate_of, loaded
from codecl.data.inputs import named_tensors
from codecl.data.items import Items
from codecl.data.task import DataConfig, Task, about_of
from codecl.errors import ConfigError, ConfigWarning
from codecl.exchange import digest
from codecl.exchange.cluster.ranks import Ranks, joined
from codecl.exchange.topology import Graph, from_graph
from codecl.methods import METHODS, Method
from codecl.plan.hazards import hazards
from codecl.registry import code_digest
from codecl.runs import reader, resume
from codecl.runs.build import build_setup, check_files, compute_settings, device_of, seeded, task_data
from codecl.runs.config import RunConfig, difference, merge, parse, validate
from codecl.runs.model import load
from codecl.runs.schema import Metrics
from codecl.runs.writer import NullWriter, RunWriter, Writer, folder_of, labels_of
from codecl.space.wrapped import unwrapped
from codecl.train import autotune
from codecl.train.events import Event, RunStarted, of_type
from codecl.train.execution import Execution
from codecl.train.state import Setup, State

OnEvent = Callable[[Event], None]


class Result(NamedTuple):
    """A run that ended: its metrics and its folder, and the model of each task."""

    metrics: dict[str, Any]
    folder: Path
    trained: bool  # False: the folder held this very run already
    module: nn.Module | None  # as given; None: the one that the config names

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
    mu: bool = False,
    after: "str | Path | Result | None" = None,
    on_event: OnEvent | None = None,
    **settings: Any,
) -> Result:
    """Train `model` on `tasks`, one after another, by agents that gossip with their neighbours.

    The module is not changed: the result holds a trained copy. `topology` is a name, an edge-list file, a networkx
    graph or fields of the config. `settings` are fields of the config: `head="fc"`, `seed=1`, `dense=["token"]`,
    `train={"epochs": 5}`, … A call that was made before (same model, data and settings) gives back the recorded run;
    `again=True` repeats it. Under a launcher such as torchrun, every process makes the same call (`exchange`).

    `after`: a finished run of the first of these tasks, with the same settings; the others are trained as if they had
    been there from the start. `mu`: measure how much of the gradient the free space keeps (docs/theory.md)."""
    if not tasks:
        raise ConfigError("tasks: there are none; give at least one codecl.Task(train, test, classes)")
    model = unwrapped(model)
    fields: dict[str, Any] = {
        "preset": "fit",
        "agents": agents,
        "topology": from_graph(topology) if isinstance(topology, nx.Graph) else topology,
        "method": _method_fields(method),
        "model": {"name": "own", "type": type(model).__name__, "digest": _model_digest(model)},
        "data": {"stream": "own"},
    }
    config = validate(merge(fields, settings))  # what is not allowed is said before data are read
    tasks = [_loaded(number, task, config.data) for number, task in enumerate(tasks)]
    fields["data"]["digest"] = " ".join(map(_task_digest, tasks))
    config = validate(merge(fields, settings))
    if after is not None:
        after = after.folder if isinstance(after, Result) else Path(after)
        first = reader.read_config(after).data.digest or ""
        if not (config.data.digest or "").startswith(first):
            raise ConfigError(
                f"after: the tasks of {after} are not the first of these tasks; give them all, its own first"
            )
    where: dict[str, Any] = {"out": Path(out), "device": device, "exchange": exchange}
    return run(config, module=model, tasks=tasks, after=after, again=again, mu=mu, on_event=on_event, **where)


def _loaded(number: int, task: Any, config: DataConfig) -> Task:
    """A caller's task with its data as tensors, or as items where they are to be streamed."""
    try:
        task = task if isinstance(task, Task) else Task(*task)
    except TypeError as error:
        raise ConfigError(f"tasks: number {number} is {task!r:.60}; give codecl.Task(train, test, classes)") from error
    train = loaded(task.train, about_of(number, task, "training"), config.loading, config.workers)
    test = loaded(task.test, about_of(number, task, "test"), config.loading, config.workers)
    collate = task.collate or collate_of(task.train) or collate_of(task.test)
    return task._replace(train=train, test=test, collate=collate)


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
    mu: bool = False,
    on_event: OnEvent | None = None,
    module: nn.Module | None = None,
    tasks: Sequence[Task] | None = None,
    after: Path | None = None,
) -> Result:
    """Run a config and record it, or give back the run that is recorded already.

    `module` and `tasks` replace those that the config names. `after`: a finished run of its first tasks. `exchange`:
    simulated, cluster, or auto, which is cluster where a launcher started several processes: all make this call."""
    with joined(exchange, device_of(device)) as ranks:
        done = recorded(config, out, ranks, module)
        if done is not None and not again:
            return done
        folder = folder_of(config, out)
        data = task_data(config, tasks, ranks.device)
        with compute_settings(ranks.device), seeded(config.seed, "trial", ranks.device):
            setup, state = build_setup(config, data, ranks.device, module, ranks.exchange)
        for line in hazards(setup) if ranks.is_main else ():
            warnings.warn(line, ConfigWarning, stacklevel=2)
        writer = _open(folder, config, setup, ranks, again, after)
        finished = False
        try:
            with compute_settings(ranks.device):
                setup = setup._replace(execution=_start(writer, config, setup, state, ranks))
                with closing(resume.events(writer, setup, state, ranks, mu)) as events:
                    for event in events:
                        if on_event is not None:
                            on_event(event)
            finished = True
        finally:  # also when a loss is NaN or the user presses Ctrl-C: what was recorded stays
            metrics = writer.close("complete" if finished else "partial")
        return Result(ranks.broadcast(lambda: _dumped(metrics)), folder, True, module)


def _dumped(metrics: Metrics | None) -> dict[str, Any]:
    """Plain values, which travel between ranks and are a caller's to use; empty: there are none."""
    return metrics.dump() if metrics else {}


def recorded(config: RunConfig, out: Path, ranks: Ranks, module: nn.Module | None = None) -> Result | None:
    """The run of this config, where its folder holds it complete; no data is read. All processes make this call."""
    leading = parse(ranks.broadcast(lambda: config.model_dump(mode="json")))
    if leading.decisive() != config.decisive():  # other data or initial weights at one of them would spoil the run
        others = "; ".join(difference(leading, config)[:3])
        raise ConfigError(
            f"ranks: rank {ranks.rank} has another config than rank 0 ({others}); every process should make the same"
            " call, with the same data and a model from the same seed (torch.manual_seed)"
        )
    check_files(config.data)  # another file is another run: one that is gone cannot be told
    folder = folder_of(config, out)
    metrics = ranks.broadcast(lambda: _dumped(reader.recorded(folder, config)))
    return Result(metrics, folder, False, module) if metrics else None


def _open(folder: Path, config: RunConfig, setup: Setup, ranks: Ranks, again: bool, after: Path | None) -> Writer:
    """The run folder, open for writing where this process leads."""
    labels = labels_of(config, len(setup.tasks), setup.method.each_task_alone)
    if not ranks.is_main:
        return NullWriter(config, labels)
    if after is not None and (again or not (folder / "checkpoint").exists()):
        resume.extend(after, folder, config, setup)
    if again and after is None:
        writer = RunWriter.new(folder, config, labels)
    else:
        writer = RunWriter.resume(folder, config, labels, ranks.device)
    writer.describe(ranks.device, setup)
    return writer


def _start(writer: Writer, config: RunConfig, setup: Setup, state: State, ranks: Ranks) -> Execution:
    """How agents share the device: as before where the run is resumed; else the leading process chooses and records.

    Sets the number of threads too, which `compute_settings` puts back."""

    def choose() -> Sequence[Any]:
        for started in of_type(writer.events, RunStarted):
            return started.execution, started.ms_per_step, started.measured, started.threads
        if config.train.execution != "auto":
            return autotune.Choice(setup.execution, {}, False)
        with seeded(config.seed, "trial", ranks.device):
            return autotune.choose(setup, state)

    choice = autotune.Choice(*ranks.broadcast(choose))
    if choice.threads is not None:
        torch.set_num_threads(choice.threads)
    if ranks.is_main and not writer.events:
        started = writer.labels.started(
            edges=setup.topology.edges,
            contraction=setup.topology.contraction,
            digest=config.digest(),
            exchange=ranks.name,
            ranks=ranks.size,
            data_sets=verdicts.of_stream(config.data),
            **choice._asdict(),
        )
        writer.event(started)
    return choice.execution


def _task_digest(task: Task) -> str:
    """Of a loaded task's tensors: another image is another run. Of streamed items, which are not all read: how many
    there are, the code of the data set, and a sample of them, from the first to the last, under fixed seeds."""
    values: dict[str, torch.Tensor] = {}
    code = []
    for data, inputs, labels in ((task.train, "train", "labels"), (task.test, "test", "truth")):
        if isinstance(data, Items):
            code.append(code_of(data))
            data = data.sample
        values |= {**named_tensors(data[0], inputs), labels: data[1]}
    text = " ".join([digest(values), repr((task.classes, task.mean, task.std)), *code])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
