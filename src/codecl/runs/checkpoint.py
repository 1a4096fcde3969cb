"""Checkpoints: what a run needs to go on as if it had never stopped. Safetensors and JSON, written whole or not at all.

Shapes: A all agents, E what a step hands to the next."""

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import codecl
from codecl import files
from codecl.errors import ConfigError
from codecl.space.kept import Kept
from codecl.train.state import State, TaskPosition

SCHEMA = 1
INTERVAL = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h)?\s*")
UNITS = {"s": 1, "min": 60, "h": 3600}
MAX_TASKS = 1 << 16
TENSORS, FACTS = "state.safetensors", "checkpoint.json"
KEPT = ("heads", "norms", "directions", "coordinates")  # names of what a task keeps, in the order of Kept


class CheckpointConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    every: int | str = Field(
        "5min", description="between checkpoints inside a task: so many steps, or a time such as 30s, 5min, 1h"
    )

    @field_validator("every")
    @classmethod
    def _readable(cls, value: int | str) -> int | str:
        match = INTERVAL.fullmatch(str(value))
        if not match or float(match[1]) <= 0:
            raise ValueError("it should be a number of steps above 0, or a time such as 30s, 5min or 1h")
        return value

    def due(self, steps: int, seconds: float) -> bool:
        """Whether so many steps or seconds after the last checkpoint it is time for another."""
        match = INTERVAL.fullmatch(str(self.every))
        assert match is not None, "it was checked"
        passed = seconds / UNITS[match[2]] if match[2] else steps
        return passed >= float(match[1])


class Checkpoint(NamedTuple):
    """Where a run stands."""

    state: State
    position: TaskPosition | None  # inside a task; None: between two
    step: int  # steps of all tasks so far
    events: int  # bytes of events.jsonl that belong to it
    generators: Mapping[str, Tensor]  # of dropout, by device: a row an agent
    head: Mapping[str, Tensor] = {}  # as the module had it before any task
    buffers: Mapping[str, Tensor] = {}  # of the module


def write(folder: Path, point: Checkpoint) -> None:
    """<folder>/<step>, complete or not there; the two newest are kept."""
    unfinished, place = folder / f".{point.step}", folder / str(point.step)
    for path in (unfinished, place):
        shutil.rmtree(path, ignore_errors=True)
    try:
        _fill(unfinished, point, folder.parent / "events.jsonl")
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)  # the room that it takes may be all that there is
        raise
    os.replace(unfinished, place)
    _sync(folder)
    keep(folder, 2)


def _fill(unfinished: Path, point: Checkpoint, events: Path) -> None:
    unfinished.mkdir(parents=True)
    with files.replacing(unfinished / TENSORS) as file:  # with the mode that any other file here gets
        save_file(tensors_of(point), file)
    facts = {
        "schema": SCHEMA,
        "codecl": codecl.__version__,
        **position_of(point),
        "events_digest": _digest(events, point.events),
        "tensors_digest": _digest(unfinished / TENSORS),
    }
    text = json.dumps({**facts, "digest": _own_digest(facts)}, indent=1)
    (unfinished / FACTS).write_text(text + "\n", encoding="utf-8")
    for path in (unfinished / TENSORS, unfinished / FACTS, unfinished):
        _sync(path)


def keep(folder: Path, count: int) -> None:
    """All but the newest are gone."""
    for old in _steps(folder)[count:]:
        shutil.rmtree(folder / str(old), ignore_errors=True)


def latest(folder: Path, device: torch.device) -> Checkpoint | None:
    """The newest checkpoint that is whole; one that is damaged is passed over, with a warning."""
    for step in _steps(folder):
        path = folder / str(step)
        try:
            return _load(path, device)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            warnings.warn(f"{path}: is damaged ({error}); going on from the one before it, or anew", stacklevel=2)
    return None


def _steps(folder: Path) -> list[int]:
    """Of the checkpoints that are there, the newest first."""
    return sorted((int(path.name) for path in folder.glob("*") if path.name.isdecimal()), reverse=True)


def _load(path: Path, device: torch.device) -> Checkpoint:
    facts = files.read_json(path / FACTS)
    digest = facts.pop("digest")
    if (facts["schema"], facts["codecl"]) != (SCHEMA, codecl.__version__):
        raise ConfigError(
            f"{path}: is a checkpoint of codecl {facts['codecl']} (schema {facts['schema']}), this is"
            f" {codecl.__version__} (schema {SCHEMA}); go on with that version, or start again with --again"
        )
    if digest != _own_digest(facts):
        raise ValueError("its digest differs")
    if facts["tensors_digest"] != _digest(path / TENSORS):
        raise ValueError("the digest of its tensors differs")
    if facts["events_digest"] != _digest(path.parents[1] / "events.jsonl", facts["events"]):
        raise ValueError("events.jsonl is not what it was")
    return from_tensors(load_file(path / TENSORS, device=str(device)), facts)


def position_of(point: Checkpoint) -> dict[str, Any]:
    """What is known of the place beside the tensors."""
    return {
        "finished": len(point.state.kept),
        "epoch": point.position.epoch if point.position else None,
        "step": point.step,
        "events": point.events,
    }


def from_tensors(held: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Checkpoint:
    """`tensors_of` and `position_of` undone."""

    def under(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in held.items() if name.startswith(prefix)}

    if not 0 <= facts["finished"] <= MAX_TASKS:
        raise ValueError(f"it is of {facts['finished']} finished tasks")
    kept = [Kept(*(under(f"{part}/{number}/") for part in KEPT)) for number in range(facts["finished"])]
    state = State(under("parameters/"), tuple(kept), under("memory/"), under("open/"))
    position = None if facts["epoch"] is None else TaskPosition(facts["epoch"], held["carry_AE"])
    module = under("head/"), under("buffers/")
    return Checkpoint(state, position, facts["step"], facts["events"], under("generators/"), *module)


def tensors_of(point: Checkpoint) -> dict[str, Tensor]:
    """Every tensor under a name that says where it belongs."""
    state = point.state
    groups = {"parameters": state.parameters, "memory": state.memory, "generators": point.generators}
    groups |= {"open": state.directions, "head": point.head, "buffers": point.buffers}
    for number, kept in enumerate(state.kept):
        groups |= {f"{part}/{number}": tensors for part, tensors in zip(KEPT, kept, strict=True)}
    named = {f"{group}/{name}": value for group, tensors in groups.items() for name, value in tensors.items()}
    if point.position:
        named["carry_AE"] = point.position.carry_AE
    return {name: value.detach().cpu().contiguous().clone() for name, value in named.items()}


def _digest(path: Path, size: int | None = None) -> str:
    """Of a file, or of its first bytes."""
    digest, left = hashlib.sha256(), path.stat().st_size if size is None else size
    with path.open("rb") as file:
        while left > 0 and (some := file.read(min(left, 1 << 20))):
            digest.update(some)
            left -= len(some)
    if left:
        raise ValueError(f"{path.name} is shorter than it was")
    return digest.hexdigest()


def _own_digest(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _sync(path: Path) -> None:
    """What was written is on the disk before the next thing is."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
