"""Going on from a checkpoint: where a run stopped, or with more tasks after its end, as if it always had them."""

import time
from collections.abc import Generator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from codecl.data import store, streams, verdicts
from codecl.errors import ConfigError, DataError
from codecl.exchange import Exchange
from codecl.exchange.cluster.ranks import Ranks
from codecl.exchange.cluster.wire import packed, unpacked
from codecl.registry import near
from codecl.runs import checkpoint
from codecl.runs.build import seeded
from codecl.runs.config import RunConfig, difference, merge, stream_digest, validate
from codecl.runs.reader import read_config, read_events, read_metrics, read_tasks
from codecl.runs.writer import Writer, write_begun
from codecl.train.constraint import with_mu
from codecl.train.events import EpochEnded, Evaluated, Event, Recorded, RunStarted, TaskOpened
from codecl.train.loop import train
from codecl.train.state import Setup, State, TaskPosition

MAY_DIFFER = ("data.stream", "data.digest", "data.tasks", "sources.data")


def events(writer: Writer, setup: Setup, state: State, ranks: Ranks, mu: bool = False) -> Generator[Event, None, None]:
    """Train from the checkpoint of this run folder, or from `state`, and record every event. `mu`: measure it.

    Law: a run that was stopped at any moment and goes on here ends as one that never stopped."""
    exchange, device = setup.exchange, ranks.device
    point = _broadcast(writer.point, ranks)
    with seeded(setup.seed, ranks.own("dropout"), device):  # nn.Dropout takes no generator of ours
        if point:
            _put(point.generators, exchange, device)
            state = point.state
        steps, saved = 0, time.monotonic()
        training = train(setup, state, point.position if point else None)
        for event in with_mu(training, setup) if mu else training:
            writer.event(event)
            yield event
            steps += event.kind == "step"
            if isinstance(event, EpochEnded):
                if not ranks.broadcast(partial(writer.config.checkpoint.due, steps, time.monotonic() - saved)):
                    continue
                position = TaskPosition(event.epoch + 1, exchange.gather(event.live.carry.joined()))
                writer.save(event.live.state, position, _generators(exchange, device))
            elif isinstance(event, Evaluated):
                writer.save(event.state, None, _generators(exchange, device))
            else:
                continue
            steps, saved = 0, time.monotonic()


def _broadcast(point: checkpoint.Checkpoint | None, ranks: Ranks) -> checkpoint.Checkpoint | None:
    """The leading process's checkpoint, at every rank: the others need not see its files."""
    if ranks.size == 1:
        return point
    position = ranks.broadcast(lambda: checkpoint.position_of(point) if point else None)
    if position is None:
        return None
    data = ranks.broadcast_bytes(lambda: packed(checkpoint.tensors_of(point) if point else {}))
    return checkpoint.from_tensors(unpacked(data, ranks.device), position)


def _generators(exchange: Exchange, device: torch.device) -> dict[str, Tensor]:
    """States of the generators that dropout draws from, a row an agent (those of one process share one)."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    rows = {name: state.to(device).expand(len(exchange.agents), -1).contiguous() for name, state in states.items()}
    return {name: exchange.gather(row) for name, row in rows.items()}


def _put(generators: Mapping[str, Tensor], exchange: Exchange, device: torch.device) -> None:
    # a copy: PyTorch crashes on a row of a larger tensor
    own = {name: rows[exchange.agents[0]].cpu().clone() for name, rows in generators.items()}
    torch.set_rng_state(own["cpu"])
    if device.type == "cuda" and "cuda" in own:
        torch.cuda.set_rng_state(own["cuda"], device)


def extended(old: RunConfig, task: str) -> RunConfig:
    """The config of a run with the `next` task of its stream, or with those of one more stream, after its own."""
    if old.data.stream == "own":
        raise ConfigError(
            "RUN: was made by codecl.fit with data of your own; give all tasks to codecl.fit(…, after=RUN)"
        )
    if stream_digest(old.data) != old.sources.get("data"):
        raise DataError(f"data.stream: files behind {old.data.stream} are missing, or not those of the run any more")
    learned, there = old.data.tasks, len(streams.load(old.data.stream))
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
    return validate(merge(old.model_dump(mode="json"), {"data": change}))


def extend(old: Path, new: Path, config: RunConfig, setup: Setup) -> None:
    """A folder to resume with the tasks that `old` lacks. Law: it ends as a run that had all tasks from the start."""
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
    amended = [_amended(event, config, len(setup.tasks), heads) for event in read_events(old, point.events)]
    checkpoint.write(new / "checkpoint", point._replace(events=write_begun(new, config, amended)))


def _amended(event: Recorded, config: RunConfig, tasks: int, heads: int) -> Recorded:
    """What a run with all tasks would have recorded: their number and data sets, their heads in the authors' count."""
    if isinstance(event, RunStarted):
        data_sets = verdicts.of_stream(config.data)
        return event.model_copy(update={"tasks": tasks, "digest": config.digest(), "data_sets": data_sets})
    if isinstance(event, TaskOpened):
        return event.model_copy(update={"reference_extra": event.reference_extra + heads})
    return event
