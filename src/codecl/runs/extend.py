"""More tasks for a finished run: it goes on where it ended, as if they had been in its stream from the start."""

from pathlib import Path
from typing import Any

import torch

from codecl.data import store, streams
from codecl.errors import ConfigError, DataError
from codecl.runs import checkpoint
from codecl.runs.config import RunConfig, difference, merge, stream_digest, validate
from codecl.runs.reader import read_config, read_events, read_metrics, read_tasks
from codecl.runs.writer import write_begun
from codecl.train.events import Recorded, RunStarted, TaskOpened
from codecl.train.state import Setup

MAY_DIFFER = ("data.stream", "data.digest", "data.tasks", "sources.data")
NEXT = "next"  # the task of the run's own stream after those that it has learned


def extended(old: RunConfig, task: str) -> RunConfig:
    """The config of a run with one more task, or with those of one more stream, after its own."""
    if old.data.stream == "own":
        raise ConfigError(
            "RUN: was made by codecl.fit with data of your own; give all tasks to codecl.fit(…, after=RUN)"
        )
    if stream_digest(old.data) != old.sources.get("data"):
        raise DataError(f"data.stream: files behind {old.data.stream} are missing, or not those of the run any more")
    learned, there = old.data.tasks, len(streams.load(old.data.stream))
    if task == NEXT and (learned is None or learned >= there):
        raise ConfigError(f"--task {NEXT}: the run has learned all {there} tasks of its stream {old.data.stream}")
    if task == NEXT and learned is not None:
        change: dict[str, Any] = {"tasks": learned + 1}
    elif learned is not None and learned < there:
        raise ConfigError(f"--task: the run stopped inside its stream {old.data.stream}; --task {NEXT} goes on there")
    else:
        added = f"whole({task})" if task in store.names() else task
        change = {"stream": f"{old.data.stream}{streams.PLUS}{added}", "tasks": None}
    return validate(merge(old.model_dump(mode="json"), {"data": change}))


def begin(old: Path, new: Path, config: RunConfig, setup: Setup) -> None:
    """A run folder that stands where the run in `old` ended, ready to be resumed with the tasks that it lacks.

    Law: it then ends as a run that had all tasks from the start."""
    status = read_metrics(old).status
    if status != "complete":
        raise ConfigError(f"{old}: ended {status}; only a complete run can be extended")
    others = [text for text in difference(read_config(old), config) if not text.startswith(MAY_DIFFER)]
    if others:
        raise ConfigError(f"{old}: has another config ({'; '.join(others[:3])}); a run is extended as it is")
    known = read_tasks(old)
    if len(known) >= len(setup.tasks):
        raise ConfigError(f"{old}: its {len(known)} tasks should come first, and at least one more after them")
    for number, (before, data) in enumerate(zip(known, setup.tasks, strict=False), 1):
        pairs = zip(before, data.describe(), strict=True)
        other = [f"{name}: {old_value}, {value}" for (name, old_value), (_, value) in pairs if old_value != value]
        if other:
            raise ConfigError(f"{old}: its task {number} is another ({'; '.join(other[:2])}); its own tasks come first")
    point = checkpoint.latest(old / "checkpoint", torch.device("cpu"))
    if point is None:
        raise DataError(f"{old}: holds no checkpoint to go on from")
    heads = sum(value.numel() for head in setup.heads[len(known) :] for value in head.values())
    events = [_amended(event, config, len(setup.tasks), heads) for event in read_events(old, point.events)]
    size = write_begun(new, config, events)
    checkpoint.write(new / "checkpoint", point._replace(events=size))


def _amended(event: Recorded, config: RunConfig, tasks: int, heads: int) -> Recorded:
    """What a run with all tasks would have recorded: their number, and their heads in the authors' accounting."""
    if isinstance(event, RunStarted):
        return event.model_copy(update={"tasks": tasks, "digest": config.digest()})
    if isinstance(event, TaskOpened):
        return event.model_copy(update={"reference_extra": event.reference_extra + heads})
    return event
