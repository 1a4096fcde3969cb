"""Writing a run folder as the run goes: config, environment, events, checkpoints, metrics, model. Never a pickle."""

import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError

from codecl.errors import ConfigError, RunFailed
from codecl.files import RecordFile, lock, why_not, write_text
from codecl.runs import checkpoint
from codecl.runs.checkpoint import Checkpoint
from codecl.runs.config import RunConfig, data_files
from codecl.runs.grid import preset, resolve
from codecl.runs.machine import environment
from codecl.runs.metrics import last_of_task, metrics
from codecl.runs.model import save_model
from codecl.runs.own import structure
from codecl.runs.reader import BEFORE, EVENTS, lasted_s, read_events
from codecl.runs.schema import Labels, Metrics
from codecl.space.layers import Layer
from codecl.space.layout import Parameters
from codecl.train.events import EpochEnded, Event, Flooded, NotWritten, Recorded, RunEnded, Status, TaskOpened, of_type
from codecl.train.state import Setup, State, TaskPosition

NEEDED = ("name", "weight", "bias", "groups")  # of a layer, to put own directions into its weight
Generators = Mapping[str, torch.Tensor]


def folder_of(config: RunConfig, out: Path) -> Path:
    """<out>/<preset>-<method>-<topology><agents>[-<digest>]/seed-<s>; the digest where more differs from the preset."""
    name = f"{config.preset}-{_word(config.method.name)}-{_word(config.topology.name)}{config.agents}"
    if not _as_preset(config):
        name += f"-{config.digest()[:6]}"
    return out / name / f"seed-{config.seed}"


def labels_of(config: RunConfig, tasks: int, each_task_alone: bool = False, agent: int | None = None) -> Labels:
    """What metrics and the first event call a run; `agent`: of a peer."""
    return Labels(
        benchmark=config.preset,
        method=_word(config.method.name),
        agents=config.agents,
        topology=_word(config.topology.name),
        seed=config.seed,
        tasks=tasks,
        each_task_alone=each_task_alone,
        exchange=None if agent is None else "peers",
        agent=agent,
        score=config.train.score,
    )


def _word(name: str) -> str:
    """A name that fits in a folder's: of `path/file.py:Thing`, the thing."""
    return name.rpartition(":")[2].replace("/", "_")


def _as_preset(config: RunConfig) -> bool:
    try:
        start = preset(config.preset)
    except ConfigError:  # a name of the caller's own: nothing to compare with
        return False
    named = config.model_dump(include={"seed": True, "agents": True, "method": {"name"}, "topology": {"name"}})
    return resolve(start, named).decisive() == config.decisive()


@dataclass
class NullWriter:
    """Where another process, the leading one, writes."""

    config: RunConfig
    labels: Labels
    events: list[Recorded] = field(default_factory=list)
    point: Checkpoint | None = None

    def event(self, event: Event) -> None: ...
    def save(self, state: State, position: TaskPosition | None, generators: Generators) -> None: ...
    def close(self, status: Status) -> None: ...


class RunWriter:
    """One run folder being written, by this process alone. Open it by `new`, `resume` or `append`."""

    def __init__(
        self, folder: Path, config: RunConfig, labels: Labels, handle: int | None, point: Checkpoint | None = None
    ) -> None:
        self.folder = folder
        self.config = config
        self.labels = labels
        self.point = point  # where the run goes on
        self.state = point.state if point else None  # of the tasks that are finished
        self.events = read_events(folder)  # all that are recorded
        self._began = time.time() - lasted_s(self.events)
        self._lock = handle
        self._module: tuple[Parameters, Parameters] = ({}, {})  # the head before any task, buffers
        self._record = RecordFile(folder / EVENTS)
        self._lost: dict[str, str] = {}  # what could not be written so far, and why
        self._said = False

    @classmethod
    def new(cls, folder: Path, config: RunConfig, labels: Labels) -> "RunWriter":
        """An earlier run in the folder is gone."""
        with _locked(folder) as handle:
            _start(folder, config)
            return cls(folder, config, labels, handle)

    @classmethod
    def resume(cls, folder: Path, config: RunConfig, labels: Labels, device: torch.device) -> "RunWriter":
        """From the newest checkpoint, its tensors on this device; what came after it is cut. New if there is none."""
        with _locked(folder) as handle:
            point = checkpoint.latest(folder / "checkpoint", device)
            if point is None:
                _start(folder, config)
            else:
                os.truncate(folder / EVENTS, point.events)
            return cls(folder, config, labels, handle, point)

    @classmethod
    def append(cls, folder: Path, config: RunConfig, labels: Labels) -> "RunWriter":
        """All that was recorded stays, but for a line that is half written."""
        with _locked(folder) as handle:
            path = folder / EVENTS
            if path.is_file():
                os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
            else:
                _start(folder, config)
            return cls(folder, config, labels, handle)

    def describe(self, device: torch.device, setup: Setup, files: Mapping[str, str] = MappingProxyType({})) -> None:
        """The environment, beside those of earlier processes of the run; what predictions need of each task and of the
        layers that carry coordinates; and what a next task needs: of the module, and of data set files (`files`: of
        those that may be gone by now)."""
        try:
            self._describe(device, setup, files)
        except OSError as error:
            self._record.close()
            _unlock(self._lock)
            raise RunFailed(f"{self.folder}: cannot be written ({error.strerror or error}); make room first") from error

    def _describe(self, device: torch.device, setup: Setup, files: Mapping[str, str]) -> None:
        path = self.folder / "environment.json"
        values = environment(device)
        if self.point:
            with suppress(OSError, ValueError, AttributeError):
                earlier = json.loads(path.read_text(encoding="utf-8"))
                values["before"] = [*earlier.pop("before", []), earlier]
        _write(path, values)
        head = {name: setup.module.get_parameter(name) for name in setup.roles.head}
        self._module = head, dict(setup.module.named_buffers())
        tasks = [data.describe().model_dump(mode="json") for data in setup.all_tasks]
        layers = [_described(layer) for layer in setup.roles.layers]
        about = {"tasks": tasks, "layers": layers, "structure": structure(setup.module)}
        _write(self.folder / "model" / "tasks.json", {**about, "files": data_files(self.config.data, files)})

    def event(self, event: Event) -> None:
        """Append a line to events.jsonl, and the event to `events`. A task that is resumed was opened before."""
        if not isinstance(event, Recorded):
            return
        if isinstance(event, TaskOpened) and event.task in [task.task for task in of_type(self.events, TaskOpened)]:
            return
        stamped = event.stamped()
        self.events.append(stamped)
        self.attempt("events", lambda: self._record.add(_line(stamped)))
        if isinstance(event, Flooded):
            self.state = event.state

    def save(self, state: State, position: TaskPosition | None, generators: Generators) -> None:
        """A checkpoint of all that is recorded so far; where it cannot be written, the run goes on without it."""
        steps = sum(epoch.step for epoch in last_of_task(of_type(self.events, EpochEnded)))

        def write() -> None:
            self._record.sync()
            point = Checkpoint(state, position, steps, self._record.length, generators, *self._module)
            checkpoint.write(self.folder / "checkpoint", point)

        self.attempt("checkpoint", write)

    def attempt(self, what: str, write: Callable[[], object]) -> None:
        """Write; where that fails, say so once and go on. What can be written later is not lost."""
        try:
            write()
            self._lost.pop(what, None)
        except (OSError, SafetensorError) as error:
            self._lost[what] = why_not(error)
        if self._lost and not self._said:
            self._said = True
            thing = {"events": EVENTS, "checkpoint": "no checkpoint"}.get(what, f"the {what}")
            could = "could be" if what == "checkpoint" else "cannot be"
            line = f"{self.folder}: {thing} {could} written ({self._lost[what]}); the run goes on"
            warnings.warn(line, stacklevel=3)
            self.event(NotWritten(what=what, why=self._lost[what]))

    def close(self, status: Status) -> Metrics:
        """Write metrics and the model of the tasks that are finished. A run that could not write all of it is not
        complete: RunFailed says so, and the next call goes on from the last checkpoint."""
        finished, state = status != "partial", self.state
        try:
            if state is not None:
                self.attempt("model", lambda: save_model(state, self.folder / "model"))
            status = "partial" if self._unwritten else status
            self.event(RunEnded(status=status))
            out = metrics(self.events, self.labels, status, time.time() - self._began)
            self.attempt("metrics", lambda: _write(self.folder / "metrics.json", out.dump()))
            if self._unwritten and status != "partial":  # what says that all is well is taken back
                self.attempt("metrics", lambda: (self.folder / "metrics.json").unlink(missing_ok=True))
                self._lost.setdefault("metrics", "no room")
        finally:
            self._record.close()
            _unlock(self._lock)
        if finished and self._unwritten:
            what, why = next(iter(self._unwritten.items()))
            raise RunFailed(
                f"{self.folder}: trained to the end, but the {what} could not be written ({why}); make room, then the"
                " same command goes on from the last checkpoint"
            )
        if status == "complete":
            checkpoint.keep(self.folder / "checkpoint", 1)  # more tasks go on from its end
            shutil.rmtree(self.folder / BEFORE, ignore_errors=True)
        return out

    @property
    def _unwritten(self) -> dict[str, str]:
        """What a finished run should have and lacks."""
        return {what: why for what, why in self._lost.items() if what != "checkpoint"}


Writer = RunWriter | NullWriter


def write_begun(folder: Path, config: RunConfig, events: Sequence[Recorded], point: Checkpoint | None) -> None:
    """A run folder to resume from here, with these events and nothing after them. In one that keeps how it was, the
    config changes last: until then nothing is lost."""
    text = "".join(map(_line, events))
    with kept_alone(folder):
        if (folder / BEFORE).is_dir():
            _remove([folder / "metrics.json", folder / "checkpoint"])
        else:
            _start(folder, config)
        write_text(folder / EVENTS, text)
        if point is not None:
            checkpoint.write(folder / "checkpoint", point._replace(events=len(text.encode())))
        write_text(folder / "config.yaml", config.dump())


def _described(layer: Layer) -> dict[str, Any]:
    """A layer as far as own directions need to know it."""
    facts = {name: getattr(layer, name) for name in NEEDED}
    return facts if layer.form is None else {**facts, "form": layer.form}


def _line(event: Recorded) -> str:
    """Of events.jsonl."""
    return json.dumps(event.record()) + "\n"


@contextmanager
def _locked(folder: Path) -> Iterator[int | None]:
    """The folder, made and locked. The lock stays where all goes well."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = lock(folder)
        try:
            yield handle
        except BaseException:
            _unlock(handle)
            raise
    except OSError as error:
        raise ConfigError(f"out: {folder} cannot be written ({error.strerror or error})") from error


@contextmanager
def kept_alone(folder: Path) -> Iterator[None]:
    """The folder, made, and locked in here."""
    with _locked(folder) as handle:
        yield
    _unlock(handle)


def _unlock(handle: int | None) -> None:
    if handle is not None:
        os.close(handle)


def _start(folder: Path, config: RunConfig) -> None:
    """A folder with this config. What a run wrote is gone, what others put there stays."""
    written = [folder / name for name in ("metrics.json", EVENTS, "environment.json", "checkpoint", "model", BEFORE)]
    # the config last: a folder that was left half cleared is still known as this run's
    _remove([*written, *folder.glob("*.part"), folder / "config.yaml"])
    write_text(folder / "config.yaml", config.dump())


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _write(path: Path, values: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(values, indent=1) + "\n")
