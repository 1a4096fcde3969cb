"""The library: `fit` your own module on your own tasks, `load` what was learned, `run` a config."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import networkx as nx
import torch
from torch import nn

from codecl.data import verdicts
from codecl.data.task import Task
from codecl.errors import ConfigError, ConfigWarning
from codecl.exchange.cluster.ranks import Ranks, joined
from codecl.exchange.topology import Graph, from_graph
from codecl.methods import Method
from codecl.plan.hazards import hazards
from codecl.report.progress import showing
from codecl.runs import code, growing, next_task, own, reader, resume
from codecl.runs.build import build_setup, check_files, task_data
from codecl.runs.config import RunConfig, difference, merge, parse, validate
from codecl.runs.machine import compute_settings, device_of, seeded
from codecl.runs.model import load
from codecl.runs.next_task import Past, Tests
from codecl.runs.schema import Metrics
from codecl.runs.writer import NullWriter, RunWriter, Writer, folder_of, labels_of
from codecl.space import norms
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

    def model(self, task: int | None = -1) -> nn.Module:
        """The trained module with the head of this task (from 0; -1: the last), ready for inference; None: one for
        images of any task, which finds it itself."""
        tasks = len(self.metrics["accuracy_matrix"])
        number = None if task is None else range(tasks)[task]
        return load(self.folder, number, self.module, allow_code=True)  # what it names has run already


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
    progress: bool = True,
    loss: str | own.Function | None = None,
    score: str | own.Function | None = None,
    allow_code: bool = False,
    **settings: Any,
) -> Result:
    """Train `model` on `tasks`, one after another, by agents that gossip with their neighbours.

    The module is not changed: the result holds a trained copy. `topology` is a name, an edge-list file, a networkx
    graph or fields of the config. `settings` are fields of the config: `head="fc"`, `seed=1`, `dense=["token"]`,
    `train={"epochs": 5}`, … A call that was made before (same model, data and settings) gives back the recorded run;
    `again=True` repeats it. Under a launcher such as torchrun, every process makes the same call (`exchange`).

    `loss` is what is minimised and `score` what test images are scored with: a name (`train.loss`, `train.score`) or a
    function of (outputs, targets) at the top level of a module (docs/learning.md).

    `after`: a finished run with the same settings; these tasks are trained after its own, as if all had been there from
    the start. Of `model` only the structure is used then. Its own tasks may stand in front, to be tested again. For
    tasks that arrive one by one see `codecl.Learner`. `allow_code`: run the code that its config names (docs/trust.md).
    `mu`: measure how much of the gradient the free space keeps (docs/theory.md).

    `on_event` is called with each event (docs/events.md). `progress` is shown on a terminal and in a notebook; False
    turns it off."""
    if not tasks:
        raise ConfigError("tasks: there are none; give at least one codecl.Task(train, test, classes)")
    model = unwrapped(model)
    settings = own.with_functions(settings, loss=loss, score=score)
    config = own_config(model, agents, topology, method, settings)  # what is not allowed is said before data are read
    tasks = [own.loaded(number, task, config) for number, task in enumerate(tasks)]
    digests = [own.task_digest(task) for task in tasks]
    config = own_config(model, agents, topology, method, settings, " ".join(digests))
    where: dict[str, Any] = {"out": Path(out), "device": device, "exchange": exchange}
    seen: dict[str, Any] = {"on_event": on_event, "progress": progress}
    job: dict[str, Any] = {**where, **seen, "module": model, "again": again, "mu": mu}
    if after is None:
        return run(config, tasks=tasks, **job)
    after = after.folder if isinstance(after, Result) else Path(after)
    old = reader.read_config(after)
    code.check(old, after, allow_code, code.names(config))
    learned = (old.data.digest or "").split()
    known = len(learned) if digests[: len(learned)] == learned else 0  # of these tasks
    if not known and {*learned} & {*digests}:
        raise ConfigError(f"after: the tasks of {after} are not the first of these tasks; give them all, its own first")
    config = next_task.with_own(_as_of(old, config), digests[known:])
    return run(config, tasks=tasks[known:], tests=dict(enumerate(tasks[:known])), after=after, **job)


def _as_of(old: RunConfig, config: RunConfig) -> RunConfig:
    """The settings of a config with the model and the tasks of an old one."""
    tasks = {name: getattr(old.data, name) for name in ("stream", "digest", "tasks")}
    sources = {**old.sources, **config.sources}
    return config.model_copy(
        update={"model": old.model, "data": config.data.model_copy(update=tasks), "sources": sources}
    )


def own_config(
    model: nn.Module,
    agents: int,
    topology: str | Mapping[str, Any] | Graph,
    method: str | Method,
    settings: Mapping[str, Any],
    digest: str | None = None,
) -> RunConfig:
    """Of a caller's own module and tasks, known by their digest; None: there are none yet."""
    fields = {
        "preset": "fit",
        "agents": agents,
        "topology": from_graph(topology) if isinstance(topology, nx.Graph) else topology,
        "method": own.method_fields(method),
        "model": own.model_fields(model),
        "data": {"stream": next_task.OWN, "digest": digest},
        "train": {"norm_statistics": "task"} if norms.batch_norms(model) else {},  # an image's prediction is its own
    }
    return validate(merge(fields, settings))


def run(
    config: RunConfig,
    *,
    out: Path = Path("runs"),
    device: str = "auto",
    exchange: str = "auto",
    again: bool = False,
    mu: bool = False,
    on_event: OnEvent | None = None,
    progress: bool = False,
    module: nn.Module | None = None,
    tasks: Sequence[Task] | None = None,
    after: Path | None = None,
    tests: Tests = MappingProxyType({}),
) -> Result:
    """Run a config and record it, or give back the run that is recorded already.

    `module` and `tasks` replace those that the config names. `after`: a finished run of its first tasks; then `tasks`
    are those that come after them, and `tests` old ones to be tested again. `exchange`: simulated, cluster, or auto,
    which is cluster where a launcher started several processes: all make this call."""
    with joined(exchange, device_of(device)) as ranks:
        done = recorded(config, out, ranks, module, after is None)
        if done is not None and not again:
            return done
        job = Job(folder_of(config, out), config, module, tasks, after, tests, again, mu, on_event, progress)
        return train_in(job, ranks)


class Job(NamedTuple):
    """What is to be trained, and where it is recorded."""

    folder: Path
    config: RunConfig
    module: nn.Module | None
    tasks: Sequence[Task] | None  # of the config, or those that come after others
    after: Path | None = None  # a finished run of the tasks before them; the folder itself: it grows
    tests: Tests = MappingProxyType({})  # old tasks to be tested again
    again: bool = False
    mu: bool = False
    on_event: OnEvent | None = None
    progress: bool = False

    @property
    def grows(self) -> bool:
        """Whether more tasks are learned in the folder of the finished run."""
        return self.after == self.folder


def train_in(job: Job, ranks: Ranks) -> Result:
    """Train what is not recorded yet. All processes make this call."""
    config, module, past, old = job.config, job.module, None, []
    if job.after is not None:
        after = Path(ranks.broadcast(lambda: str(growing.set_aside(job.folder)))) if job.grows else job.after
        past = next_task.read_past(after)
        if not job.tasks:
            raise ConfigError(
                f"{past.name}: its {len(past.tasks)} tasks should come first, and at least one more after them"
            )
        module = next_task.module_of(past, module, code.names(config))
        old = next_task.past_tasks(past, config, job.tests, ranks.device)
    with compute_settings(ranks.device):
        data = task_data(config, job.tasks, ranks.device, first=len(old))
        with seeded(config.seed, "trial", ranks.device):
            setup, state = build_setup(config, data, ranks.device, module, ranks.exchange, past=old)
    for line in hazards(setup) if ranks.is_main else ():
        warnings.warn(line, ConfigWarning, stacklevel=3)
    writer = _open(job, setup, ranks, past)
    finished = False
    try:
        shown = job.progress and ranks.is_main
        with compute_settings(ranks.device), showing(config, job.folder, shown) as show:
            setup = setup._replace(execution=_start(writer, config, setup, state, ranks))
            with closing(resume.events(writer, setup, state, ranks, job.mu)) as events:
                for event in events:
                    show(event)
                    if job.on_event is not None:
                        job.on_event(event)
        finished = True
    finally:  # also when a loss is NaN or the user presses Ctrl-C: what was recorded stays
        metrics = writer.close("complete" if finished else "partial")
    return Result(ranks.broadcast(lambda: _dumped(metrics)), job.folder, True, job.module)


def _dumped(metrics: Metrics | None) -> dict[str, Any]:
    """Plain values, which travel between ranks and are a caller's to use; empty: there are none."""
    return metrics.dump() if metrics else {}


def recorded(
    config: RunConfig, out: Path, ranks: Ranks, module: nn.Module | None = None, from_start: bool = True
) -> Result | None:
    """The run of this config, where its folder holds it complete; no data is read. All processes make this call.
    `from_start`: all of its data is needed."""
    leading = parse(ranks.broadcast(lambda: config.model_dump(mode="json")))
    if leading.decisive() != config.decisive():  # other data or initial weights at one of them would spoil the run
        others = "; ".join(difference(leading, config)[:3])
        raise ConfigError(
            f"ranks: rank {ranks.rank} has another config than rank 0 ({others}); every process should make the same"
            " call, with the same data and a model from the same seed (torch.manual_seed)"
        )
    if from_start:
        check_files(config.data)  # another file is another run: one that is gone cannot be told
    folder = folder_of(config, out)
    metrics = ranks.broadcast(lambda: _dumped(reader.recorded(folder, config)))
    return Result(metrics, folder, False, module) if metrics else None


def _open(job: Job, setup: Setup, ranks: Ranks, past: Past | None) -> Writer:
    """The run folder, open for writing where this process leads."""
    config, folder = job.config, job.folder
    labels = labels_of(config, len(setup.heads), setup.method.each_task_alone)
    if not ranks.is_main:
        return NullWriter(config, labels)
    if past is not None and (job.again or not growing.is_begun(folder, config)):
        growing.begin(past, folder, config, setup)
    if job.again and past is None:
        writer = RunWriter.new(folder, config, labels)
    else:
        writer = RunWriter.resume(folder, config, labels, ranks.device)
    writer.describe(ranks.device, setup, reader.read_files(past.folder) if past else {})
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
