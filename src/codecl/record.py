"""The run folder: config, environment, events, metrics, model. Written as the run goes; nothing is ever pickled."""

import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file

import codecl
from codecl.config import RunConfig, difference, parse, preset, resolve
from codecl.errors import ConfigError, DataError
from codecl.events import Event, Flooded
from codecl.metrics import Status, metrics
from codecl.registry import reason
from codecl.train import State


def folder_of(config: RunConfig, out: Path) -> Path:
    """<out>/<preset>-<method>-<topology><agents>[-<digest>]/seed-<s>; the digest where more differs from the preset."""
    name = f"{config.preset}-{word(config.method.name)}-{word(config.topology.name)}{config.agents}"
    if not _as_preset(config):
        name += f"-{config.digest()[:6]}"
    return out / name / f"seed-{config.seed}"


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
    return resolve(start, named) == config


class Record:
    """One run folder being written. Facts are kept in memory too, for the metrics."""

    def __init__(self, folder: Path, config: RunConfig, labels: Mapping[str, Any], each_task_alone: bool) -> None:
        self.folder, self.config, self.labels, self.alone = folder, config, labels, each_task_alone
        self.facts: list[dict[str, Any]] = []
        self.began = time.time()
        self.state: State | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(folder)
            _clear(folder)  # this very run, unfinished or to be repeated: `recorded` refuses anything else
            (folder / "config.yaml").write_text(config.dump(), encoding="utf-8")
            self._events = (folder / "events.jsonl").open("a", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"out: {folder} cannot be written ({error.strerror})") from error

    def environment(self, device: torch.device) -> None:
        _write(self.folder / "environment.json", environment(device))

    def tasks(self, described: Sequence[Mapping[str, Any]]) -> None:
        """What predictions need to know of each task, beside the model."""
        (self.folder / "model").mkdir(exist_ok=True)
        _write(self.folder / "model" / "tasks.json", {"tasks": list(described)})

    def fact(self, fact: Mapping[str, Any]) -> None:
        """Append a line to events.jsonl."""
        full = {"time": round(time.time(), 3), "task": None, "epoch": None, "step": None, **fact}
        self.facts.append(full)
        self._events.write(json.dumps(full) + "\n")
        self._events.flush()

    def event(self, event: Event) -> None:
        if event.kind == "step":
            return
        self.fact(event.facts())
        if isinstance(event, Flooded):
            self.state = event.state

    def close(self, status: Status) -> dict[str, Any]:
        """Write metrics and the model of the tasks that are finished; gives the metrics."""
        self.fact({"kind": "end", "status": status})
        out = metrics(self.facts, self.labels, status, time.time() - self.began, self.alone)
        if self.state is not None:
            save_model(self.state, self.folder / "model")
        _write(self.folder / "metrics.json", out)
        self._events.close()
        if self._lock is not None:
            os.close(self._lock)
        return out


class Elsewhere:
    """In the place of a record where another process, the leading one, writes it."""

    def environment(self, device: torch.device) -> None:
        pass

    def tasks(self, described: Sequence[Mapping[str, Any]]) -> None:
        pass

    def fact(self, fact: Mapping[str, Any]) -> None:
        pass

    def event(self, event: Event) -> None:
        pass

    def close(self, status: Status) -> dict[str, Any]:
        return {}


def _lock(folder: Path) -> int | None:
    """Make sure that this process alone writes the folder. The lock goes with the process, however it ends."""
    try:
        import fcntl
    except ImportError:  # not on this system
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ConfigError(
            f"{folder}: another process is writing this run; wait for it or choose another --out"
        ) from None
    except OSError:  # a file system without locks
        os.close(handle)
        return None
    return handle


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def recorded(folder: Path, config: RunConfig) -> dict[str, Any] | None:
    """The metrics of this run, where the folder holds it complete. A folder with something else in it is refused."""
    if not folder.exists() or not any(folder.iterdir()):
        return None
    if not (folder / "config.yaml").is_file():
        raise ConfigError(f"{folder}: is there already and is not a run folder; choose another --out")
    before = read_config(folder)
    if before.model_dump(mode="json") != config.model_dump(mode="json"):  # a list may have been a tuple
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
    if out is None or out.get("schema") != 1 or not needed <= set(out):
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
    facts = map(json.loads, (folder / "events.jsonl").read_text(encoding="utf-8").splitlines())
    return [fact["name"] for fact in facts if fact["kind"] == "task"]


def find_runs(paths: list[Path]) -> list[Path]:
    """The run folders at or under these paths."""
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise DataError(f"{path}: no such folder")
        runs = sorted(file.parent for file in path.rglob("metrics.json"))
        if not runs:
            raise DataError(f"{path}: no finished runs in it (no metrics.json)")
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


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, device and commit: what a number needs beside it."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "codecl": codecl.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "device": device.type,
        "device_name": name,
        "threads": torch.get_num_threads(),
    }


def _commit() -> str | None:
    """Of the checkout that the package runs from, if it does; `+changes` where files differ from it."""
    here = Path(__file__).resolve().parent
    if not (here.parents[1] / ".git").exists():
        return None
    try:
        head, changes = (
            subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, timeout=5, check=True)
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() + ("+changes" if changes.stdout.strip() else "")


def _write(path: Path, value: Mapping[str, Any]) -> None:
    """All or nothing: a reader never sees half a file."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
