"""The run folder: config, environment, events, metrics, model. Written as the run goes; nothing is ever pickled."""

import json
import os
import shutil
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import save_file

from codecl.errors import ConfigError, DataError, RunFailed
from codecl.files import lock, write_text
from codecl.registry import reason
from codecl.runs import checkpoint
from codecl.runs.checkpoint import Checkpoint
from codecl.runs.config import RunConfig, difference, parse, preset, resolve
from codecl.runs.environment import environment
from codecl.runs.metrics import Status, metrics
from codecl.train.events import Event, Flooded
from codecl.train.state import State, TaskPosition


def folder_of(config: RunConfig, out: Path) -> Path:
    """<out>/<preset>-<method>-<topology><agents>[-<digest>]/seed-<s>; the digest where more differs from the preset."""
    name = f"{config.preset}-{word(config.method.name)}-{word(config.topology.name)}{config.agents}"
    if not _as_preset(config):
        name += f"-{config.digest()[:6]}"
    return out / name / f"seed-{config.seed}"


def labels_of(config: RunConfig, tasks: int) -> dict[str, Any]:
    """What metrics and the first event call a run."""
    return {
        "benchmark": config.preset,
        "method": word(config.method.name),
        "agents": config.agents,
        "topology": word(config.topology.name),
        "seed": config.seed,
        "tasks": tasks,
    }


def word(name: str) -> str:
    """A name that fits in a folder's: of `path/file.py:Thing`, the thing."""
    return name.rpartition(":")[2].replace("/", "_")


def _as_preset(config: RunConfig) -> bool:
    try:
        start = preset(config.preset)
    except ConfigError:  # a name of the caller's own: nothing to compare with
        return False
    named = {
        "seed": config.seed,
        "agents": config.agents,
        "method": {"name": config.method.name},
        "topology": {"name": config.topology.name},
    }
    return resolve(start, named).decisive() == config.decisive()


class Record:
    """One run folder being written. Facts are kept in memory too, for the metrics.

    Where the folder holds this run unfinished, `point` is the checkpoint from which it goes on (its tensors `on` this
    device), and what was recorded after it is cut; otherwise, or without a device, the folder is emptied. `kept`: all
    that was recorded stays, and more comes after it."""

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        labels: Mapping[str, Any],
        each_task_alone: bool,
        on: torch.device | None,
        kept: bool = False,
    ) -> None:
        self.folder, self.config, self.labels, self.alone = folder, config, labels, each_task_alone
        self.began, self.before = time.time(), 0.0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = lock(folder)
            with ExitStack() as undo:
                undo.callback(self._unlock)
                self._open(on, kept)
                undo.pop_all()  # all is well: the lock stays
        except OSError as error:
            raise ConfigError(f"out: {folder} cannot be written ({error.strerror or error})") from error
        self.state = self.point.state if self.point else None
        if self.facts:
            self.before = self.facts[-1]["time"] - self.facts[0]["time"]

    def _open(self, on: torch.device | None, kept: bool) -> None:
        self.point = checkpoint.latest(self.folder / "checkpoint", on) if on else None
        kept = kept and (self.folder / "events.jsonl").is_file()
        size = _whole_lines(self.folder / "events.jsonl") if kept else self.point.events if self.point else None
        self.facts = _facts(self.folder, size) if size is not None else []
        if size is None:
            _clear(self.folder)
            write_text(self.folder / "config.yaml", self.config.dump())
        self._events = (self.folder / "events.jsonl").open("a", encoding="utf-8")

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)

    def environment(self, device: torch.device) -> None:
        """Of this process; those of earlier ones, where the run was resumed, beside it."""
        path = self.folder / "environment.json"
        earlier = _read(path) if self.point else None
        before = [*earlier.pop("before", []), earlier] if earlier else []
        _write(path, {**environment(device), **({"before": before} if before else {})})

    def tasks(self, described: Sequence[Mapping[str, Any]]) -> None:
        """What predictions need to know of each task, beside the model."""
        (self.folder / "model").mkdir(exist_ok=True)
        _write(self.folder / "model" / "tasks.json", {"tasks": list(described)})

    def fact(self, fact: Mapping[str, Any]) -> None:
        """Append a line to events.jsonl."""
        full = {"task": None, "epoch": None, "step": None, **fact, "time": round(time.time(), 3)}
        self.facts.append(full)
        try:
            self._events.write(json.dumps(full) + "\n")
            self._events.flush()
        except OSError as error:
            raise RunFailed(f"{self.folder}: events.jsonl cannot be written ({error.strerror or error})") from error

    def event(self, event: Event) -> None:
        if event.kind == "step" or (event.kind == "task" and self._holds("task", event.task)):
            return  # a task that is resumed was opened before
        self.fact(event.record())
        if isinstance(event, Flooded):
            self.state = event.state

    def _holds(self, kind: str, task: int | None) -> bool:
        return any(fact["kind"] == kind and fact["task"] == task for fact in self.facts)

    def save(self, state: State, position: TaskPosition | None, generators: Mapping[str, torch.Tensor]) -> None:
        """A checkpoint of all that is recorded so far; where it cannot be written, the run goes on without it."""
        step = sum({fact["task"]: fact["step"] for fact in self.facts if fact["kind"] == "epoch"}.values())
        try:
            os.fsync(self._events.fileno())
            point = Checkpoint(state, position, step, self._events.tell(), generators)
            checkpoint.write(self.folder / "checkpoint", point)
        except (OSError, SafetensorError) as error:
            why = getattr(error, "strerror", None) or error
            warnings.warn(f"{self.folder}: no checkpoint could be written ({why}); the run goes on", stacklevel=2)

    def close(self, status: Status) -> dict[str, Any]:
        """Write metrics and the model of the tasks that are finished; gives the metrics."""
        try:
            self.fact({"kind": "end", "status": status})
            wall_s = self.before + time.time() - self.began
            out = metrics(self.facts, self.labels, status, wall_s, self.alone)
            if self.state is not None:
                save_model(self.state, self.folder / "model")
            _write(self.folder / "metrics.json", out)
            if status == "complete":
                checkpoint.keep_last(self.folder / "checkpoint")
            return out
        finally:
            with suppress(OSError):
                self._events.close()
            self._unlock()


def _clear(folder: Path) -> None:
    """What a run writes is gone, what others put there stays. The config goes last, so that a folder that was left half
    cleared is still known as this run's."""
    written = [folder / name for name in ("metrics.json", "events.jsonl", "environment.json", "checkpoint", "model")]
    for path in (*written, *folder.glob("*.part"), folder / "config.yaml"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def make(folder: Path, config: RunConfig, events: str) -> None:
    """A run folder with these events in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as done:
            handle = lock(folder)
            if handle is not None:
                done.callback(os.close, handle)
            _clear(folder)
            write_text(folder / "events.jsonl", events)
            write_text(folder / "config.yaml", config.dump())
    except OSError as error:
        raise ConfigError(f"out: {folder} cannot be written ({error.strerror or error})") from error


def _facts(folder: Path, size: int) -> list[dict[str, Any]]:
    """What was recorded up to a checkpoint; what came after it is cut off."""
    path = folder / "events.jsonl"
    os.truncate(path, size)
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _whole_lines(path: Path) -> int:
    """Bytes up to the end of the last line that was written whole."""
    return path.read_bytes().rfind(b"\n") + 1


def recorded(folder: Path, config: RunConfig) -> dict[str, Any] | None:
    """The metrics of this run, where the folder holds it complete. A folder with something else in it is refused."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: is a file, not a run folder; choose another --out")
    if not folder.exists() or all(path.name.startswith("agent-") for path in folder.iterdir()):  # a fleet's, or empty
        return None
    if not (folder / "config.yaml").is_file():
        raise ConfigError(f"{folder}: is there already and is not a run folder; choose another --out")
    before = read_config(folder)
    if before.decisive() != config.decisive():
        changes = difference(before, config)
        raise ConfigError(f"{folder}: holds a run with another config ({'; '.join(changes[:3])}); choose another --out")
    done = _read(folder / "metrics.json")
    return done if done and done.get("status") in ("complete", "degraded") else None


def read_config(folder: Path) -> RunConfig:
    try:
        return parse(yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError, TypeError, ConfigError) as error:
        raise DataError(f"{folder}: config.yaml is broken or of another version ({reason(error)})") from error


def read_metrics(folder: Path) -> dict[str, Any]:
    needed = {"status", "benchmark", "method", "agents", "topology", "seed", "acc", "bwt", "traffic", "timing"}
    out = _read(folder / "metrics.json")
    if out is None or out.get("schema") != 2 or not needed <= set(out):
        raise DataError(f"{folder}: metrics.json is missing, broken or of another version")
    return out


def read_tasks(folder: Path) -> list[dict[str, Any]]:
    """What is known of the tasks of a recorded run: see TaskData.describe."""
    tasks = (_read(folder / "model" / "tasks.json") or {}).get("tasks")
    if not isinstance(tasks, list) or not tasks:
        raise DataError(f"{folder}: model/tasks.json is missing, broken or of another version")
    return tasks


def task_names(folder: Path) -> list[str]:
    """What the tasks of a recorded run are called."""
    return [str(task["name"]) for task in read_tasks(folder)]


def find_runs(paths: Sequence[Path], marks: Sequence[str] = ("metrics.json",)) -> list[Path]:
    """The run folders at or under these paths: those with one of `marks` in them."""
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise DataError(f"{path}: no such folder")
        runs = sorted({file.parent for mark in marks for file in path.rglob(mark)})
        if not runs:
            what = "finished runs" if len(marks) == 1 else "runs"
            raise DataError(f"{path}: no {what} in it (no {' or '.join(marks)})")
        found += runs
    return list(dict.fromkeys(found))


def save_model(state: State, folder: Path) -> None:
    """body.safetensors, and head and norm statistics of each task in task-<t>.safetensors (tasks from 1)."""
    folder.mkdir(exist_ok=True)

    def save(tensors: Mapping[str, torch.Tensor], name: str) -> None:
        save_file({k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}, folder / name)

    save(state.parameters, "body.safetensors")
    for number, (head, norms) in enumerate(zip(state.heads, state.norms, strict=True), 1):
        save({**head, **norms}, f"task-{number}.safetensors")


def _write(path: Path, value: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(value, indent=1) + "\n")


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
