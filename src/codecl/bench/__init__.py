"""`codecl bench`: what a step costs, for each model × agents × method, all in one run and taking turns.

A case is the real loop (`train`) in its second task, with coordinates half of the space, on random images. Beside it
stands the plain way: a Python loop over modules, each with its own backward pass, then gossip.
"""

import copy
import datetime
import json
import re
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from codecl.data.task import Task
from codecl.errors import ConfigError, DataError
from codecl.exchange import topology as topologies
from codecl.exchange.cluster import Cluster
from codecl.exchange.cluster.ranks import Ranks
from codecl.runs.build import build_setup, task_data
from codecl.runs.config import RunConfig, validate
from codecl.runs.grid import number
from codecl.runs.machine import compute_settings, environment, seeded
from codecl.space.kept import Kept
from codecl.train import autotune
from codecl.train.events import EpochEnded, Stepped
from codecl.train.execution import multiplying
from codecl.train.loop import train
from codecl.train.state import Setup, State

PLAIN = "plain-loop"  # of dpsgd, as one would write it first
OWN, BITS = "+", "@"  # codec+32: codec with 32 own directions a layer; codec@4: with messages of 4 bits
WARM_UP = 2  # rounds that are not counted
ENDLESS = 10**6
GPU_STEPS, PLAIN_STEPS = 28, 4  # of a round on a GPU, and of a round of the plain loop there, which is slow
SPREAD_STEPS = 16  # of a round over several processes: they do not start it at the same moment
SAME = ("model", "agents", "batch_size", "method", "precision", "optimizer")  # rows that can be compared agree in these
LATER = {"optimizer": "sgd"}  # what older results do not say, and was
NEEDED = {*SAME, "ms", "ratio", "execution", "peak_mib"} - {*LATER}
BenchRow = dict[str, Any]


class Timing(NamedTuple):
    """What a step took in a round, and how agents shared the device."""

    ms: float
    execution: str
    wait_ms: float | None = None  # of a step, for messages
    mbit_s: float | None = None  # that left this process


class Workload(NamedTuple):
    """A model and what it is fed."""

    model: str
    shape: tuple[int, int, int]
    batch: int
    options: Mapping[str, Any]
    augment: str
    cpu_steps: int  # of a round on a CPU: long enough to be timed

    def steps(self, ranks: Ranks) -> int:
        least = GPU_STEPS if ranks.device.type == "cuda" else self.cpu_steps
        return max(least, SPREAD_STEPS) if ranks.size > 1 else least


WORKLOADS = {
    "convnet": Workload("convnet", (1, 28, 28), 10, {}, "none", 32),
    "mlp": Workload("mlp", (1, 28, 28), 10, {}, "none", 32),
    "alexnet": Workload("alexnet", (3, 32, 32), 22, {}, "crop-flip", 4),
    "resnet18": Workload("resnet18", (3, 32, 32), 32, {}, "none", 2),
    "resnet18-84": Workload("resnet18", (3, 84, 84), 10, {"stride": 2}, "none", 2),
    "vit": Workload("vit", (3, 32, 32), 22, {}, "crop-flip", 2),
}
DEFAULTS = {
    "cuda": (("alexnet", "resnet18", "resnet18-84"), (8, 16)),
    "cpu": (("convnet", "mlp", "alexnet"), (4, 8)),
}


def measure(
    models: Sequence[str],
    agents: Sequence[int],
    methods: Sequence[str],
    train: Mapping[str, Any],
    rounds: int,
    ranks: Ranks,
) -> dict[str, Any]:
    """Rows of the table, and what they were measured on. Cases of a model and a number of agents take turns.

    `train`: fields of the training config, such as precision and execution. Over several processes, all make this call,
    and what is waited and sent is the leading one's."""
    methods = [method for method in methods if method != PLAIN or ranks.size == 1]  # it is written for one process
    for name in models:
        if name not in WORKLOADS:
            raise ConfigError(f"bench: {name!r} is not a model that it knows; there are {', '.join(WORKLOADS)}")
        for count in agents:  # what can be refused is refused before anything is measured
            ranks.check(count)
            for method in methods:
                config = _config(WORKLOADS[name], count, method, train)
                topologies.build(config.topology, config.agents, config.seed)
    if not methods:
        raise ConfigError("bench: there is no method to measure; name some with --method")
    rows = [row for name in models for count in agents for row in _together(name, count, methods, train, rounds, ranks)]
    return {
        "schema": 2,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "environment": environment(ranks.device),
        "exchange": ranks.name,
        "ranks": ranks.size,
        "rounds": rounds,
        "rows": rows,
    }


def _together(
    name: str, agents: int, methods: Sequence[str], fields: Mapping[str, Any], rounds: int, ranks: Ranks
) -> list[BenchRow]:
    with compute_settings(ranks.device), seeded(0, "bench", ranks.device):
        built = [_case(name, agents, method, fields, ranks) for method in dict.fromkeys(methods)]
        rows, cases = [row for row, _ in built], {str(row["method"]): case for row, case in built}
        turns = [{method: next(case) for method, case in cases.items()} for _ in range(WARM_UP + rounds)][WARM_UP:]
    ms = [{method: taken.ms for method, taken in turn.items()} for turn in turns]
    for row in rows:
        times = [turn[str(row["method"])] for turn in ms]
        row["ms"] = _summary(times)
        for field in ("wait_ms", "mbit_s") if ranks.size > 1 else ():
            row[field] = _summary([getattr(turn[str(row["method"])], field) for turn in turns])
        row["ratio"] = {
            other: _summary([time / turn[other] for time, turn in zip(times, ms, strict=True)])
            for other in ("dpsgd", "codec-full", PLAIN, re.split(r"[+@]", str(row["method"]))[0])
            if other in cases and other != row["method"]
        }
        row["n"] *= rounds
    return rows


def _case(
    name: str, agents: int, method: str, fields: Mapping[str, Any], ranks: Ranks
) -> tuple[BenchRow, Iterator[Timing]]:
    """A case that has been built and run for a round: what it is, and its further rounds."""
    workload, plain, device = WORKLOADS[name], method == PLAIN, ranks.device
    config = _config(workload, agents, method, fields)
    data = task_data(config, _tasks(workload, agents * workload.steps(ranks)), device)
    setup, start = build_setup(config, data, device, exchange=ranks.exchange)
    if config.train.execution == "auto" and not plain:
        setup = setup._replace(execution=ranks.broadcast(lambda: autotune.choose(setup, start).execution))
    state = _second_task(setup, start)
    before = _allocated(device)
    case = _plain(setup, state) if plain else _ours(setup, state)
    row = {
        "model": name,
        "agents": agents,
        "batch_size": workload.batch,
        "method": method,
        "execution": next(case).execution,  # a way that is not possible gives way
        "precision": config.train.precision,
        "optimizer": config.train.optimizer,
        "n": PLAIN_STEPS if plain and device.type == "cuda" else workload.steps(ranks),
        "peak_mib": _peak(device, before),
    }
    return row, case


def _summary(values: Sequence[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 4), "min": round(min(values), 4), "max": round(max(values), 4)}


def _config(workload: Workload, agents: int, case: str, fields: Mapping[str, Any]) -> RunConfig:
    method, _, bits = ("dpsgd" if case == PLAIN else case).partition(BITS)
    method, _, own = method.partition(OWN)
    return validate(
        {
            "preset": "bench",
            "agents": agents,
            "model": {"name": workload.model, **workload.options},
            "data": {"stream": "own", "augment": workload.augment},
            "method": {"name": method},
            "message": {"bits": bits if bits == "bfloat16" else number("--method", bits or "32")},
            "own": {"directions": number("--method", own) if own else 0},
            "train": {"batch_size": workload.batch, "epochs": ENDLESS, "lr": 0.001, **fields},
        }
    )


def _tasks(workload: Workload, batches: int) -> list[Task]:
    """Two tasks of random images, so many batches in all."""
    images = workload.batch * batches
    pixels = torch.randint(256, (images, *workload.shape), dtype=torch.uint8)
    labels = torch.arange(images) % 10
    return [Task((pixels, labels), (pixels[:64], labels[:64]), 10, mean=(0.5,), std=(0.25,)) for _ in range(2)]


def _second_task(setup: Setup, start: State) -> State:
    """After a first task that left half of every layer's space free; own directions are of the other half."""
    memory, directions = {}, {}
    for layer in setup.roles.layers:
        inputs = layer.inputs
        drawn = torch.randn(inputs, inputs, device=setup.tasks[0].device, dtype=setup.tasks[0].dtype)
        half, basis = (inputs + 1) // 2, torch.linalg.qr(drawn)[0]
        for name in (f"{layer.name}/{group}" for group in range(layer.groups)):
            memory[name] = basis[:, :half].contiguous()
            directions[f"own/{name}"] = basis[:, half : half + setup.own.directions].contiguous()
    return State(start.parameters, (Kept(setup.heads[0]),), memory, directions if setup.own.is_on else {})


def _ours(setup: Setup, state: State) -> Iterator[Timing]:
    """A round each time: an epoch of the loop as it is."""
    steps, exchange = setup.tasks[1].steps(setup.train.batch_size), setup.exchange
    if not isinstance(exchange, Cluster):
        for event in train(setup, state):
            if isinstance(event, EpochEnded):
                yield Timing(1000 * event.seconds / steps, event.execution)
        return
    began = last = _so_far(exchange)
    for event in train(setup, state):
        if isinstance(event, Stepped):  # steps alone, not what is watched after them
            last = _so_far(exchange)
        elif isinstance(event, EpochEnded):
            seconds, waited_s, sent_bytes = (after - before for after, before in zip(last, began, strict=True))
            yield Timing(1000 * seconds / steps, event.execution, 1000 * waited_s / steps, 8e-6 * sent_bytes / seconds)
            began = _so_far(exchange)


def _so_far(exchange: Cluster) -> tuple[float, float, float]:
    """Time, seconds spent waiting, bytes handed to the network."""
    return time.perf_counter(), exchange.waited_s, exchange.wire.sent_bytes


def _plain(setup: Setup, state: State) -> Iterator[Timing]:
    """Decentralized SGD as one would write it first."""
    data, batch, lr = setup.tasks[1], setup.train.batch_size, setup.train.lr
    device = data.device
    count = PLAIN_STEPS if device.type == "cuda" else None
    mixing_AA = torch.from_numpy(setup.topology.mixing).to(device, data.dtype)
    modules = [copy.deepcopy(setup.module).train() for _ in setup.exchange.agents]
    for module in modules:
        for name in setup.roles.first:  # they do not train after the first task
            module.get_parameter(name).requires_grad_(False)
    trained = [[value for value in module.parameters() if value.requires_grad] for module in modules]
    half = torch.autocast(device.type, torch.bfloat16) if setup.train.precision == "bf16" else nullcontext()
    for epoch in range(ENDLESS):
        indices = data.indices(epoch, setup.exchange.agents, batch)[0][:count].to(device)
        began, losses = time.perf_counter(), []
        for images_AB, labels_AB in map(data.batch, indices):
            with multiplying(setup.train.precision, device), half:
                losses.append([_backward(*one) for one in zip(modules, images_AB, labels_AB, strict=True)])
            with torch.no_grad():
                for same in zip(*trained, strict=True):
                    mixed = torch.tensordot(mixing_AA, torch.stack(list(same)), 1)
                    for value, new in zip(same, mixed, strict=True):
                        value.copy_(new - lr * value.grad)
                        value.grad = None
        torch.stack([torch.stack(row) for row in losses]).cpu()
        yield Timing(1000 * (time.perf_counter() - began) / len(losses), "loop")


def _backward(module: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    loss = functional.cross_entropy(module(images), labels)
    loss.backward()
    return loss.detach()


def _allocated(device: torch.device) -> int:
    """Bytes in use now; the peak starts anew."""
    if device.type != "cuda":
        return 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def _peak(device: torch.device, before: int) -> float | None:
    """MiB at the peak beyond what was there before; of a GPU only: a process does not tell the parts of its memory."""
    return round((torch.cuda.max_memory_allocated(device) - before) / 2**20, 1) if device.type == "cuda" else None


def save(found: Mapping[str, Any], folder: Path) -> Path:
    """<folder>/<date>T<time>-bench-<device>.json"""
    name = str(found["environment"]["device_name"]).lower().replace(" ", "-") or found["environment"]["device"]
    path = folder / f"{found['date'][:19].replace(':', '')}-bench-{name}.json"
    try:
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise DataError(f"bench: {path} cannot be written ({error.strerror})") from error
    return path


def make_folder(folder: Path) -> None:
    """A folder for results, before anything is measured."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"bench: {folder} cannot be made ({error.strerror}); choose another --save") from error


def read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"bench: {path} cannot be read ({error})") from error
    rows = found.get("rows") if isinstance(found, dict) and found.get("schema") == 2 else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and set(row) >= NEEDED for row in rows):
        raise DataError(f"bench: {path} holds no results of codecl bench")
    return {**found, "rows": [{**LATER, **row} for row in rows]}
