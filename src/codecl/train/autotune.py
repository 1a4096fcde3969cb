"""How agents share a device, and on how many threads of a CPU: measured once for a model, a number of agents, a batch
and a device, then remembered."""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import codecl
from codecl import files
from codecl.data.sources import Picked
from codecl.exchange import Simulated
from codecl.exchange import topology as topologies
from codecl.exchange.topology import TopologyConfig
from codecl.train import kernels
from codecl.train.cuda_graph import RunEpoch, epochs
from codecl.train.execution import Execution
from codecl.train.loop import open_task, start_of
from codecl.train.objective import LOSSES
from codecl.train.privacy import SeededNoise
from codecl.train.state import Carry, Setup, State
from codecl.train.step import make_step

CANDIDATES: dict[str, tuple[Execution, ...]] = {"cuda": ("stacked", "streams"), "cpu": ("stacked", "loop")}
ROUNDS, STEPS = 3, {"cuda": 20, "cpu": 1}  # timed turns of each candidate, and the steps of a turn
MAX_KNOWN = 500  # choices that are remembered
CLEARLY = 0.95  # the first candidate, and one thread, stay unless another takes less than this part of their time


class Choice(NamedTuple):
    execution: Execution
    ms_per_step: Mapping[Execution, float]  # of each candidate; empty where there was nothing to choose
    measured: bool  # now, or remembered from an earlier run
    threads: int | None = None  # of a CPU; None: as many as PyTorch has


def choose(setup: Setup, state: State) -> Choice:
    """The fastest way, from the cache where it is known. It does not depend on the free dimensions of a task.

    Measured among the agents of this process alone: it waits for no other."""
    device = setup.tasks[0].device
    file, key = files.cache_folder() / "execution.json", _key(setup, device)
    known = _read(file).get(key)
    if isinstance(known, dict) and known.get("execution") in CANDIDATES[device.type]:
        return Choice(known["execution"], known.get("ms_per_step", {}), False, known.get("threads"))
    choice = measured(setup, state, device)
    if set(choice.ms_per_step) == set(CANDIDATES[device.type]):  # what fell back is found out, and said, again
        others = dict(list(_read(file).items())[-MAX_KNOWN:])
        entry = {"execution": choice.execution, "ms_per_step": choice.ms_per_step, "threads": choice.threads}
        _write(file, {**others, key: entry})
    return choice


def measured(setup: Setup, state: State, device: torch.device) -> Choice:
    """The fastest way now. On a CPU one thread, unless all of them take clearly less time, or the user has said how
    many there should be."""
    threads = torch.get_num_threads()
    if not _may_choose_threads(device):
        return _fastest(measure(setup, state, device))
    try:
        torch.set_num_threads(1)
        one = _fastest(measure(setup, state, device))._replace(threads=1)
    finally:
        torch.set_num_threads(threads)
    every = _fastest(measure(setup, state, device))._replace(threads=threads)
    return every if _ms(every) < CLEARLY * _ms(one) else one


def _may_choose_threads(device: torch.device) -> bool:
    return device.type == "cpu" and torch.get_num_threads() > 1 and "OMP_NUM_THREADS" not in os.environ


def _fastest(ms_per_step: Mapping[Execution, float]) -> Choice:
    if not ms_per_step:  # nothing else is possible
        return Choice("loop", {}, True)
    best = min(ms_per_step, key=lambda name: ms_per_step[name])
    first = next(iter(ms_per_step))
    return Choice(best if ms_per_step[best] < CLEARLY * ms_per_step[first] else first, ms_per_step, True)


def _ms(choice: Choice) -> float:
    return choice.ms_per_step.get(choice.execution, math.inf)


def _key(setup: Setup, device: torch.device) -> str:
    """Model, agents, batch and device; not the free dimensions, which change with each task."""
    data, shapes = setup.tasks[0], [(layer.shape, layer.rows, layer.groups) for layer in setup.roles.layers]
    threads = f"{1 if _may_choose_threads(device) else torch.get_num_threads()}-{torch.get_num_threads()}"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu/{threads}"
    parts = [str(setup.module), shapes, data.shape, data.augment, len(setup.exchange.agents)]
    parts += [setup.train.batch_size, setup.train.precision, str(data.dtype), name, torch.__version__]
    parts += [codecl.__version__, kernels.available(device, data.dtype)]
    parts += [] if setup.train.loss in LOSSES else [setup.train.loss]
    parts += ["private"] if setup.privacy.is_on else []
    parts += [] if setup.exchange.on_device and not data.streamed else ["no graph"]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def measure(setup: Setup, state: State, device: torch.device) -> dict[Execution, float]:
    """Milliseconds of a step, the best of some turns that candidates take one after another."""
    data, count = setup.tasks[0], STEPS[device.type]
    graph = setup.exchange.on_device and device.type == "cuda" and not data.streamed and not setup.privacy.is_on
    among = topologies.build(TopologyConfig(name="complete"), len(setup.exchange.agents), setup.seed)
    setup = setup._replace(exchange=Simulated(among, data.dtype, device), noise=SeededNoise(0))
    turns: dict[Execution, Callable[[], float]] = {}
    for execution in CANDIDATES[device.type]:
        agents = open_task(setup._replace(execution=execution), state, data)
        step = make_step(setup, state, data, agents)
        carry = Carry.split(start_of(setup, agents).carry_AE, agents.layout.size, setup.train)
        indices = data.indices(0, setup.exchange.agents, setup.train.batch_size)[0][:count]
        with suppress(torch.OutOfMemoryError):  # what does not fit is no candidate
            picked_S = [*data.read_ahead(indices)] if data.streamed else indices  # reading takes the same time anyhow
            step(carry, picked_S[0].to(device), 0.0)
            if agents.execution == execution:  # a model that cannot be stacked falls back to a loop
                run = epochs(step, carry, indices, setup.exchange.traffic, graph=graph)
                turns[execution] = _turn(run, carry, picked_S, device)
    rounds = [{execution: turn() for execution, turn in turns.items()} for _ in range(ROUNDS)]
    return {execution: round(min(times[execution] for times in rounds), 4) for execution in turns}


def _turn(
    run: RunEpoch, carry: Carry, picked_S: Sequence[Picked] | Tensor, device: torch.device
) -> Callable[[], float]:
    def turn() -> float:
        _wait(device)
        began = time.perf_counter()
        for _ in run(carry, picked_S, 0.0):
            pass
        _wait(device)
        return 1000 * (time.perf_counter() - began) / len(picked_S)

    return turn


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _read(file: Path) -> dict[str, dict[str, Any]]:
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _write(file: Path, known: dict[str, dict[str, Any]]) -> None:
    """All or nothing; a folder that cannot be written only means that the next run measures again."""
    with suppress(OSError):
        files.write_text(file, json.dumps(known, indent=1))
