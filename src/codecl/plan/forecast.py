"""What a task will send, before anything trains: from the places of a module's parameters, and from a recorded run.

Numbers are counted, then multiplied by their bytes. "A send" is one message up or down a tree: every tree of N agents
has N - 1 of them, whoever is chosen.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from codecl.errors import ConfigError, DataError
from codecl.methods import TaskEndSize, TaskSizes
from codecl.runs.config import RunConfig
from codecl.runs.reader import Run, find_runs, read_config, read_run
from codecl.space import norms
from codecl.space.growth import memory_of
from codecl.space.layers import Layer
from codecl.train.events import Flooded, Grown, LinksClosed, TaskOpened
from codecl.train.state import Setup, State
from codecl.train.task_start import chooses, kept_size, own_room, task_layout

Known = Literal["exact", "estimate", "bound", "partly"]
SURE: tuple[Known, ...] = ("exact", "estimate", "bound", "partly")  # from sure to least sure


class Like(NamedTuple):
    """A recorded run to go by."""

    folder: Path
    config: RunConfig
    coordinates: int  # of a message of its first task
    free: tuple[Mapping[str, int], ...]  # of each task: free directions of each layer
    own: tuple[Mapping[str, int], ...]  # and own ones
    pool: Mapping[int, int]  # bytes of a send at each task's end, where they were recorded
    flood: Mapping[int, int]


class Message(NamedTuple):
    coordinates: int
    full: int  # of full communication
    free: Mapping[str, int] | None  # free directions by layer; None: not known
    known: Known


class Opening(NamedTuple):
    """Bytes of a send when directions are chosen."""

    pool: int
    flood: int


class End(NamedTuple):
    """Bytes of a send at a task's end, beside agreement."""

    pool: int
    flood: int
    remembered: int  # of the flood: the method's memory
    known: Known


def read(path: Path) -> Like:
    """The one recorded run at or under a path."""
    folders = find_runs([path])
    if len(folders) > 1:
        raise ConfigError(f"--like: {path} holds {len(folders)} runs; name one, such as {folders[0]}")
    (folder,) = folders
    config, run = read_config(folder), read_run(folder)
    opened = run.of(TaskOpened)
    if not opened:
        raise DataError(f"{folder}: its record cannot be read (no task was opened in it)")
    pool, flood = _a_send(run, Grown), _a_send(run, Flooded)
    metrics = run.metrics
    own = metrics.own_by_task or [{}] * len(metrics.free_by_task)
    return Like(folder, config, opened[0].coordinates, tuple(metrics.free_by_task), tuple(own), pool, flood)


def _a_send(run: Run, kind: type[Grown] | type[Flooded]) -> dict[int, int]:
    """Of each task. What one peer recorded is its own part only, and tells nothing here."""
    agents = run.metrics.agents
    if agents < 2 or run.of(LinksClosed):
        return {}
    return {event.task: event.bytes // (agents - 1) for event in run.of(kind)}


class Forecast:
    """The sizes of a run that is set up, task by task."""

    def __init__(self, config: RunConfig, setup: Setup, state: State, like: Like | None) -> None:
        self.setup, self.roles, self.config = setup, setup.roles, config
        self.itemsize = setup.tasks[0].dtype.itemsize
        self.first = task_layout(setup, state, setup.tasks[0])  # whole, if its directions are not chosen
        self.layers = {layer.name: layer for layer in self.roles.layers}
        self.body = sum(v.numel() for name, v in state.parameters.items() if name not in self.roles.constant)
        self.dense = sum(state.parameters[name].numel() for name in self.roles.dense)
        self.norms = sum(state.parameters[name].numel() for name in setup.own_norms)
        gossiped = setup.train.norm_statistics == "gossip"
        self.shared = norms.statistics_size(setup.module) if gossiped else 0  # statistics of norms, in every message
        self.heads = [sum(value.numel() for value in head.values()) for head in setup.heads]
        self.statistics = self._statistics(state)
        self.like, self.same = like, like is not None and like.config.decisive() == config.decisive()
        if like is not None:
            _check_like(like, config, self.first.free, self.message(0).coordinates)

    def message(self, task: int) -> Message:
        """What every edge carries at each step of a task, and in each round of agreement."""
        in_layers = sum(layer.outputs * _whole(layer) for layer in self.layers.values())
        whole = (
            self.first.full_size if task == 0 else in_layers + self.heads[task] + self.dense + self.norms + self.shared
        )
        if self._trains_whole() or (task == 0 and not chooses(self.setup, 0)):
            return Message(whole, whole, {name: _whole(layer) for name, layer in self.layers.items()}, "exact")
        free, used = self._free(task), self._used(task)
        size = whole - in_layers + sum(layer.outputs * used[name] for name, layer in self.layers.items())
        if task == 0:
            return Message(size, whole, free, "exact")
        if self.like is None:
            return Message(size, whole, None, "bound")
        known: Known = "estimate" if not self.same else "exact" if task < len(self.like.free) else "bound"
        return Message(size, whole, free, known)

    def opening(self, task: int) -> Opening:
        """What choosing the directions of a task sends; as sure as its message."""
        if not chooses(self.setup, task):
            return Opening(0, 0)
        layers, own, trained = self.layers, self._own(task), self._trained(task)
        bases = sum(
            layer.direction_bytes(self.itemsize) * (own.get(name, 0) + trained.get(name, 0))
            for name, layer in layers.items()
        )
        moments = 0
        if self.config.growth.subspace_from == "all":
            moments = sum(
                layer.groups * layer.moment_size(layer.inputs - (layer.padding is not None))
                for layer in layers.values()
            )
        return Opening(moments * torch.float64.itemsize, bases)

    def kept(self, task: int) -> int:
        """Numbers that a task keeps for itself."""
        setup, data = self.setup, self.setup.tasks[task]
        most = kept_size(setup, data) + own_room(setup, data) if setup.own.share is not None else float("inf")
        return int(min(most, kept_size(setup, data, self._own(task))))

    def end(self, task: int) -> End:
        """What pooling and the flood send."""
        sums, found = self.statistics if self.setup.train.norm_statistics == "task" else (0, 0)
        numbers = self.body + self.heads[task] + self.shared + self._learned_in(self._own(task))
        weights = numbers * self.itemsize + found
        pool, remembered, known = self._method_end(task)
        return End(pool + sums, weights + remembered, remembered, known)

    def _method_end(self, task: int) -> tuple[int, int, Known]:
        """(bytes of a send that the method pools, bytes of its memory in the flood, how sure)."""
        size = self._task_end_size(task)
        if size is not None and not self.setup.method.grows:
            return *size, "exact"
        recorded = self._recorded_end(task)
        if recorded is not None:
            return recorded
        if size is None:
            return 0, 0, "partly"
        return *size, "bound" if self.like is None else "estimate"

    def _task_end_size(self, task: int) -> TaskEndSize | None:
        """As the method states it; None: it does not."""
        before, after = self._free(task), self._free(task + 1)
        body = sum(slot.size for slot in self.first.slots if slot.kind in ("layer", "dense"))
        sizes = TaskSizes(self.roles.layers, before, after, body, self.itemsize, self.config.growth)
        return self.setup.method.task_end_size(sizes)

    def _recorded_end(self, task: int) -> tuple[int, int, Known] | None:
        """As the recorded run's events say: only they know the last growth, and the growth of codec-full."""
        like = self.like
        if like is None or task not in like.flood or task not in like.pool:
            return None
        itemsize = getattr(torch, like.config.dtype).itemsize
        sums, found = self.statistics if like.config.train.norm_statistics == "task" else (0, 0)
        found = found // self.itemsize * itemsize
        own = self._learned_in(like.own[task] if task < len(like.own) else {})
        memory = (like.flood[task] - found) // itemsize - self.body - self.heads[task] - self.shared - own
        if memory < 0:
            raise ConfigError(f"--like: {like.folder} flooded less than this model at the end of task {task + 1}")
        pool = like.pool[task] - sums
        size = self._task_end_size(task)
        if size is not None and like.config.growth.subspace_from != self.config.growth.subspace_from:
            pool = size.reduce_bytes
        elif size is None and like.config.dtype != self.config.dtype:
            pool = pool // itemsize * self.itemsize
        return pool, memory * self.itemsize, "exact" if self.same else "estimate"

    def _free(self, task: int) -> Mapping[str, int]:
        """Free directions by layer at a task's start: recorded ones, the last of which is a bound for what comes after;
        all of them where there is no record, or where it does not tell."""
        if self.like is None or self._trains_whole():
            return {name: _whole(layer) for name, layer in self.layers.items()}
        return self.like.free[min(task, len(self.like.free) - 1)]

    def _used(self, task: int) -> Mapping[str, int]:
        """Directions by layer that a task trains in: free ones or the best of them, and its own."""
        used = {**self._free(task), **self._trained(task)}
        own = self._own(task)
        return {name: min(used[name] + own.get(name, 0), _whole(layer)) for name, layer in self.layers.items()}

    def _trained(self, task: int) -> dict[str, int]:
        """Free directions by layer that are chosen; none: all that are free are trained in."""
        wanted = self.setup.free.directions
        if wanted is None or not chooses(self.setup, task):
            return {}
        return {name: min(wanted * self.layers[name].groups, count) for name, count in self._free(task).items()}

    def _own(self, task: int) -> Mapping[str, int]:
        """Own directions by layer: recorded ones, or the most that there can be."""
        if not self.setup.own.is_on or not chooses(self.setup, task):
            return {}
        like, known = self.like, self.like is not None and not self._trains_whole()
        if like is not None and like.config.own == self.config.own and task < len(like.own):
            return like.own[task]
        free, room, own = self._free(task), own_room(self.setup, self.setup.tasks[task]), self.setup.own
        out = {}
        for name, layer in self.layers.items():
            core = _whole(layer) - free[name] if known and task else _whole(layer)
            most = (
                own.directions * layer.groups if own.share is None else room // (layer.direction_size + layer.outputs)
            )
            out[name] = min(most, core)
        return out

    def _learned_in(self, own: Mapping[str, int]) -> int:
        """Numbers of the coordinates of so many own directions."""
        return sum(self.layers[name].outputs * count for name, count in own.items())

    def _trains_whole(self) -> bool:
        """Whether every message is known to be whole weights: the method, asked with bases in its memory, confines
        itself to none of them. What a method that states no sizes may remember otherwise is not known."""
        no_sizes = TaskSizes((), {}, {}, 0, self.itemsize, self.config.growth)
        if self.setup.method.task_end_size(no_sizes) is None:
            return False
        bases = {name: [torch.empty(layer.inputs, 0)] * layer.groups for name, layer in self.layers.items()}
        return not self.setup.method.free(memory_of(bases), self.roles.layers)

    def _statistics(self, state: State) -> tuple[int, int]:
        """Bytes of a send for norms that are measured: up the tree, and down it."""
        data = self.setup.tasks[0]
        parameters = {**state.parameters, **self.setup.heads[0]}
        sample = [data.first(2)]
        sums = norms.measure(self.setup.module, parameters, sample, {})
        found = norms.statistics_of(sums, data.dtype)
        up, down = (sum(value.nbytes for value in tensors.values()) for tensors in (sums, found))
        return norms.PASSES * up, norms.PASSES * down


def _check_like(like: Like, config: RunConfig, free: Mapping[str, int], coordinates: int) -> None:
    if like.config.method.name != config.method.name:
        raise ConfigError(f"--like: {like.folder} is a run of {like.config.method.name}, not of {config.method.name}")
    if not like.free or like.free[0] != free or like.coordinates != coordinates:
        raise ConfigError(f"--like: {like.folder} is a run of another model or another first task than this one")


def _whole(layer: Layer) -> int:
    """Free directions of a layer that is free as a whole, summed over groups."""
    return layer.inputs * layer.groups
