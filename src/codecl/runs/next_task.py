"""The next task arrives: a finished run, and the config of one that goes on with more tasks. It ends as a run that had
all tasks from the start, and needs no old training data."""

from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from codecl.data import store, streams
from codecl.data.past import PastTask, past_task
from codecl.data.task import Task, TaskInfo
from codecl.errors import CodeclError, ConfigError, DataError
from codecl.registry import near
from codecl.runs import checkpoint, code, own
from codecl.runs.build import read_stream, scaled, task_options, working_copy
from codecl.runs.checkpoint import Checkpoint
from codecl.runs.config import RunConfig, merge, stream_digest, validate
from codecl.runs.model import recorded_model
from codecl.runs.reader import BEFORE, read_config, read_metrics, read_structure, read_tasks

OWN = "own"  # the stream of a caller's own tasks
CPU = torch.device("cpu")
Tests = Mapping[int, Any]  # by the number of a task, from 0: it as it was, or its test data


class Past(NamedTuple):
    """A finished run, as a next task needs it."""

    folder: Path
    config: RunConfig
    tasks: list[TaskInfo]
    point: Checkpoint

    @property
    def name(self) -> Path:
        """The folder as its owner knows it."""
        return self.folder.parent if self.folder.name == BEFORE else self.folder


def read_past(folder: Path) -> Past:
    status = read_metrics(folder).status
    if status != "complete":
        raise ConfigError(f"{folder}: ended {status}; only a complete run can be extended")
    point = checkpoint.latest(folder / "checkpoint", CPU)
    if point is None:
        raise DataError(f"{folder}: holds no checkpoint to go on from")
    past = Past(folder, read_config(folder), read_tasks(folder), point)
    if point.position is not None or len(point.state.kept) != len(past.tasks):
        raise DataError(f"{past.name}: its last checkpoint is missing; run it anew with --again to go on from its end")
    return past


def module_of(past: Past, module: nn.Module | None, allowed: Collection[str]) -> nn.Module:
    """The run's module with the weights of the run: the one that its config names, or the caller's own, of which only
    the structure is used. `allowed`: names of code that may run."""
    config, point, name = past.config, past.point, str(past.name)
    if module is not None:
        own.check_not_lazy(module)
    elif config.model.name == OWN:
        raise ConfigError(f"{name}: was made with a model of your own: pass one, codecl.Learner.open(folder, model)")
    else:
        code.check_model(config, name, False, allowed)
        module = recorded_model(past.folder, config)
    module = working_copy(module, config).to(getattr(torch, config.dtype))
    recorded = read_structure(past.folder)
    if not recorded:
        raise DataError(f"{name}: was recorded by an older codecl, which kept no head for a next task")
    own.check_structure(recorded, module, name)
    own.check_shapes({**point.state.parameters, **point.head}, module, name)
    module.load_state_dict({**point.state.parameters, **point.head}, strict=False)
    for key, value in point.buffers.items():
        module.get_buffer(key).data = value.clone()
    return module


def past_tasks(past: Past, config: RunConfig, tests: Tests, device: torch.device) -> list[PastTask]:
    """The tasks of the run, with their test images where they are given."""
    options = task_options(config, device)
    return [past_task(index, about, tests.get(index), options) for index, about in enumerate(past.tasks)]


def with_own(old: RunConfig, digests: Sequence[str]) -> RunConfig:
    """The config of a run with tasks of the caller's own, known by their digests, after its own."""
    data = old.data
    if data.tasks is not None and data.stream != OWN and data.tasks < len(streams.load(data.stream)):
        raise ConfigError(
            f"learn: the run stopped inside its stream {data.stream}; `codecl extend RUN --task next` goes on there"
        )
    parts = data.stream.split(streams.PLUS)
    stream = data.stream if parts[-1] == OWN else f"{data.stream}{streams.PLUS}{OWN}"
    known = [data.digest] if data.digest else []
    change = {"stream": stream, "digest": " ".join([*known, *digests]), "tasks": None}
    return validate(merge(old.model_dump(mode="json"), {"data": change}))


def extended(
    old: RunConfig, task: str, files: Mapping[str, str] | None = None, local_path: str | None = None
) -> RunConfig:
    """The config of a run with the `next` task of its stream, or with those of one more stream, after its own.
    `files`: digests of data set files that may be gone by now; `local_path`: of an agent that has its own."""
    if old.model.name == OWN:
        raise ConfigError(
            "RUN: was made with a model of your own; codecl.Learner.open(RUN, model).learn(task) goes on with it"
        )
    if local_path is None and stream_digest(old.data, files) != old.sources.get("data"):
        raise DataError(f"data.stream: files behind {old.data.stream} are missing, or not those of the run any more")
    learned = old.data.tasks
    path = Path(local_path) if local_path else None
    there = len(streams.load(old.data.stream, path)) if learned is not None or task == "next" else 0
    if task == "next" and (learned is None or learned >= there):
        raise ConfigError(f"--task next: the run has learned all {there} tasks of its stream {old.data.stream}")
    if task == "next" and learned is not None:
        change: dict[str, Any] = {"tasks": learned + 1}
    elif learned is not None and learned < there:
        raise ConfigError(f"--task: the run stopped inside its stream {old.data.stream}; --task next goes on there")
    else:
        added = f"whole({task})" if task in store.names() else task
        if not streams.known(added):
            names = dict.fromkeys([*store.names(), *streams.STREAMS])
            raise ConfigError(f"--task: {task!r} is unknown{near(task, names)}; there are {', '.join(names)}")
        change = {"stream": f"{old.data.stream}{streams.PLUS}{added}", "tasks": None}
    config = validate(merge(old.model_dump(mode="json"), {"data": change}))
    behind = stream_digest(config.data, files)
    sources = {**config.sources, **({"data": behind} if behind else {})}
    return config.model_copy(update={"sources": sources})


def added_tasks(old: RunConfig, config: RunConfig, learned: int) -> list[Task]:
    """The tasks of `config` that come after the `learned` ones of `old`; no other stream is read."""
    stream = config.data.stream
    if stream == old.data.stream:
        tasks = read_stream(stream, config.data.local_path)[learned : config.data.tasks]
    else:
        tasks = read_stream(stream.removeprefix(old.data.stream + streams.PLUS), config.data.local_path)
    return scaled(config, tasks)


def old_tests(old: RunConfig, learned: int, files: Mapping[str, str]) -> dict[int, Task]:
    """The tasks of the run's streams whose data is still here, by their numbers."""
    if old.data.local_path is None and stream_digest(old.data, files) != old.sources.get("data"):
        return {}
    parts = [_readable(part, old.data.local_path) for part in old.data.stream.split(streams.PLUS)]
    return {number: task for number, task in enumerate(_aligned(parts, learned)) if task is not None}


def _readable(stream: str, local_path: str | None) -> list[Task] | None:
    try:
        return None if stream == OWN else read_stream(stream, local_path)
    except CodeclError:
        return None


def _aligned(parts: Sequence[list[Task] | None], count: int) -> list[Task | None]:
    """So many tasks of streams that come one after another; None: of a stream that is not here, or between two such:
    nobody knows how many tasks they have."""
    front = [task for part in takewhile(_is_here, parts) for task in part or ()]
    if all(map(_is_here, parts)):
        return [*front[:count]]
    back = [task for part in takewhile(_is_here, parts[::-1]) for task in (part or [])[::-1]]
    return [*front, *[None] * (count - len(front) - len(back)), *back[::-1]]


def _is_here(part: list[Task] | None) -> bool:
    return part is not None
