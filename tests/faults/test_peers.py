"""A fleet of eight goes on, ends, and tells the truth, whatever happens to one of its agents or links.

python -m tests.faults.test_peers FOLDER [TOPOLOGY …] [FAULT …]     prints the table of all faults
python -m tests.faults.test_peers late FILE …                       `codecl agent FILE …` with late messages
python -m tests.faults.test_peers counted FILE …                    … whose messages' rounds have to be its steps
"""

import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from safetensors.torch import load_file

pytest.importorskip("grpc")

from codecl import api, exchange
from codecl.cli import main
from codecl.exchange.messages import FewBits
from codecl.peers.decisions import PeersConfig
from codecl.peers.link import Link
from codecl.runs.config import RunConfig
from codecl.runs.grid import preset, resolve
from codecl.seeding import choose
from tests.fleets import LocalFleet

RULES = PeersConfig(deadline=1.0, silence=3.0, meet=60)
HASTY = PeersConfig(deadline=0.15, silence=3.0, meet=60)  # every twentieth message costs somebody a deadline
TASKS, EPOCHS, VICTIM = 3, 15, 3


def config(topology: str, tasks: int = TASKS, epochs: int = EPOCHS, bits: int = 32, growth: str = "none") -> RunConfig:
    fields = {"agents": 8, "topology": {"name": topology}, "seed": 1, "method": {"name": "codec"}}
    settings = {"data": {"tasks": tasks}, "train": {"epochs": epochs}, "message": {"bits": bits}}
    return resolve(preset("quickstart"), {**fields, **settings, "growth": {"robust": growth}})


def none(fleet: LocalFleet) -> None:
    """Nothing happens."""


def killed(fleet: LocalFleet) -> None:
    """One of eight is killed for good."""
    fleet.until(0, "epoch", 0, 2)
    fleet.signal(VICTIM, signal.SIGKILL)


def restarted(fleet: LocalFleet) -> None:
    """One is killed, and started again when others have counted it out."""
    killed(fleet)
    fleet.until(0, "epoch", 1, 0)
    fleet.start(VICTIM)


def stopped(fleet: LocalFleet, seconds: float = 20) -> None:
    """One is stopped for 20 s and continued."""
    fleet.until(0, "epoch", 0, 2)
    fleet.signal(VICTIM, signal.SIGSTOP)
    time.sleep(seconds)
    fleet.signal(VICTIM, signal.SIGCONT)


def cut(fleet: LocalFleet) -> None:
    """A link is cut and heals."""
    fleet.until(0, "epoch", 0, 2)
    fleet.wires[2, 3].cut()
    fleet.until(0, "epoch", 1, 2)
    fleet.wires[2, 3].heal()


def split(fleet: LocalFleet) -> None:
    """The links between two halves are cut, later they heal."""
    fleet.until(0, "epoch", 0, 2)
    between = [wire for (low, high), wire in fleet.wires.items() if (low < 4) != (high < 4)]
    for wire in between:
        wire.cut()
    fleet.until(0, "epoch", 1, 2)
    for wire in between:
        wire.heal()


def chosen(fleet: LocalFleet) -> None:
    """The agent that should grow is killed while the others wait for what it grows."""
    grower = choose(fleet.config.seed, 0, 8)
    fleet.until(grower, "agree", 0)
    fleet.signal(grower, signal.SIGKILL)


def late_agent(*arguments: str) -> None:
    """One in twenty of its messages leaves only after the deadline."""
    draws, put = random.Random(arguments[0]), Link.put

    def late(self: Link, data: bytes, may_drop: bool = False) -> None:
        if may_drop and draws.random() < 0.05:
            threading.Timer(1.2 * HASTY.deadline, put, (self, data, may_drop)).start()
        else:
            put(self, data, may_drop)

    Link.put = late
    sys.argv[1:] = ["agent", *arguments]
    main()


def counted_agent(*arguments: str) -> None:
    """All agents round with the same numbers if each knows which round it is in."""
    start = FewBits.start

    def counted(self, node, rows_AD, memory_AM, kind):
        assert int(memory_AM[0, -1]) == node.position.step, "another round than the others'"
        return start(self, node, rows_AD, memory_AM, kind)

    FewBits.start = counted
    sys.argv[1:] = ["agent", *arguments]
    main()


class Fault(NamedTuple):
    do: Callable[[LocalFleet], None]
    recorded: str  # the states that the record has to tell of
    wires: bool = False
    command: tuple[str, ...] = LocalFleet.command
    rules: PeersConfig = RULES
    epochs: int = EPOCHS


OURS = (sys.executable, "-W", "error", "-m", "tests.faults.test_peers")
DELAYED, COUNTED = (*OURS, "late"), (*OURS, "counted")
FAULTS = {
    "none": Fault(none, ""),
    "killed": Fault(killed, "lost dead linked"),
    "restarted": Fault(restarted, "lost dead alive joined"),
    "stopped": Fault(stopped, "lost dead alive joined", epochs=3 * EPOCHS),
    "cut": Fault(cut, "lost back", wires=True),
    "delayed": Fault(none, "lost back", command=DELAYED, rules=HASTY),
    "chosen": Fault(chosen, "dead gone"),
    "split": Fault(split, "lost dead alive discarded joined", wires=True),
}


class Outcome(NamedTuple):
    codes: dict[int, int]
    metrics: dict[int, dict[str, Any]]
    states: dict[int, list[dict[str, Any]]]  # by agent, its records of members
    logs: dict[int, str]
    folders: dict[int, Path]
    seconds: float


def outcome(
    name: str, topology: str, folder: Path, tasks: int = TASKS, bits: int = 32, growth: str = "none"
) -> Outcome:
    fault, began = FAULTS[name], time.monotonic()
    fleet = LocalFleet(config(topology, tasks, fault.epochs, bits, growth), fault.rules, folder, wires=fault.wires)
    fleet.command = fault.command
    with fleet:
        fault.do(fleet)
        codes = fleet.finished(500)
        states = {agent: [e for e in fleet.events(agent) if e["kind"] == "member"] for agent in codes}
        metrics = {agent: fleet.metrics(agent) for agent in codes}
        logs = {agent: fleet.log(agent) for agent in codes}
        folders = {agent: fleet.run_folder(agent) for agent in codes}
    return Outcome(codes, metrics, states, logs, folders, time.monotonic() - began)


def row(name: str, topology: str, found: Outcome) -> str:
    scores = [one["acc"] for one in found.metrics.values()]
    missed = sum(one["missed"] for one in found.metrics.values())
    status = "/".join(sorted({one["status"] for one in found.metrics.values()}))
    seen = sorted({note["state"] for notes in found.states.values() for note in notes} - {"connected", "disconnected"})
    return (
        f"{topology:5} {name:10} {min(scores):6.2f} - {max(scores):6.2f}  {status:18} {missed:5} missed"
        f" {found.seconds:5.0f} s  {', '.join(seen)}"
    )


EVERY = [
    (name, topology, bits, growth)
    for name in FAULTS
    if name != "none"
    for topology, bits, growth in (
        ("ring", 32, "none"),
        ("torus", 32, "none"),
        ("ring", 4, "none"),
        ("torus", 32, "vote"),
    )
]


@cache
def undisturbed(topology: str, tasks: int, epochs: int, folder) -> float:
    """Of a simulated run: a fleet that misses nobody follows it."""
    return api.run(config(topology, tasks, epochs), out=folder, device="cpu").metrics["acc"]


def check(name: str, topology: str, tasks: int, bits: int, growth: str, tmp_path, tmp_path_factory) -> None:
    found = outcome(name, topology, tmp_path, tasks, bits, growth)
    print(row(name, topology, found))
    said = found.logs
    assert set(found.codes.values()) <= {0, 4}, said
    assert {one["status"] for one in found.metrics.values()} == {"degraded"}
    assert len(found.codes) == (7 if name in ("killed", "chosen") else 8)
    states = {note["state"] for notes in found.states.values() for note in notes}
    assert states >= set(FAULTS[name].recorded.split()), states
    expected = undisturbed(topology, tasks, FAULTS[name].epochs, tmp_path_factory.getbasetemp() / "undisturbed")
    for one in found.metrics.values():
        assert one["acc"] > expected - (10 if name == "split" else 3), (expected, one["acc"])
    models = {exchange.digest(load_file(folder / "model" / "body.safetensors")) for folder in found.folders.values()}
    assert len(models) == 1  # all hold the same model
    assert not any("Traceback" in log for log in said.values()), said


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("bits", [4, pytest.param(32, marks=pytest.mark.long)])
def test_a_fleet_survives(bits, tmp_path, tmp_path_factory):
    """The other faults take minutes: `make long`."""
    check("killed", "ring", 2, bits, "none", tmp_path, tmp_path_factory)


@pytest.mark.long
@pytest.mark.parametrize(("name", "topology", "bits", "growth"), EVERY)
def test_a_fleet_survives_at_length(name, topology, bits, growth, tmp_path, tmp_path_factory):
    check(name, topology, 3, bits, growth, tmp_path, tmp_path_factory)


@pytest.mark.long
@pytest.mark.parametrize("topology", ["ring", "torus"])
def test_what_is_not_disturbed_is_complete(topology, tmp_path, tmp_path_factory):
    found = outcome("none", topology, tmp_path)
    assert set(found.codes.values()) == {0}
    assert [one["missed"] for one in found.metrics.values()] == [0] * 8
    expected = undisturbed(topology, 3, EPOCHS, tmp_path_factory.getbasetemp() / "undisturbed")
    assert [one["acc"] for one in found.metrics.values()] == [pytest.approx(expected, abs=1)] * 8


# tasks with directions of their own: each opens with a commit


PATIENT = PeersConfig(deadline=1.0, silence=60, meet=60)  # nobody is counted out while all stand still


def inside_the_last_task(fleet: LocalFleet, empty: bool = False) -> set[str]:
    """One is killed after the directions of the task were chosen, and is back while the others are still in it."""
    fleet.until(2, "epoch", 2, 0)
    for other in (0, 1):
        fleet.signal(other, signal.SIGSTOP)
    fleet.signal(2, signal.SIGKILL)
    if empty:
        shutil.rmtree(fleet.run_folder(2))
    fleet.start(2)
    fleet.until(2, *(("run", None) if empty else ("member", None)))  # that it started, or restarted
    for other in (0, 1):
        fleet.signal(other, signal.SIGCONT)
    return {"joined"} if empty else {"restarted", "joined"}


def before_it_opened(fleet: LocalFleet) -> set[str]:
    """One is killed in the first task, and started again in the second: others have its directions."""
    fleet.until(2, "epoch", 0, 2)
    fleet.signal(2, signal.SIGKILL)
    fleet.until(0, "epoch", 1, 0)
    fleet.start(2)
    return {"restarted", "joined", "dead"}


def the_one_that_chooses(fleet: LocalFleet) -> set[str]:
    """The agent that should choose the directions of the second task is killed before it can."""
    first, second = (choose(fleet.config.seed, task, fleet.config.agents) for task in (0, 1))
    assert first != second
    fleet.until(second, "agree", 0)
    fleet.signal(second, signal.SIGKILL)
    return {"dead", "gone"}


def check_own_directions(
    fault: Callable[[LocalFleet], set[str]], rules: PeersConfig, epochs: int, folder: Path, bits: int = 32, **more: Any
) -> None:
    """Whoever is left holds the same model, with directions of its own for every task after the first."""
    fields = {"agents": 3, "seed": 1, "method": {"name": "codec"}, "model": {"name": "tests.problems:pooled"}}
    settings = {"own": {"directions": 2}, "norms": "own", "data": {"tasks": TASKS}, "train": {"epochs": epochs}}
    settings = resolve(preset("quickstart"), fields | settings | {"message": {"bits": bits}} | more)
    fleet = LocalFleet(settings, rules, folder)
    fleet.command = COUNTED
    with fleet:
        expected = fault(fleet)
        codes = fleet.finished(500)
        logs = {agent: fleet.log(agent) for agent in codes}
        assert set(codes.values()) == {4}, logs
        assert not any("Traceback" in log for log in logs.values()), logs
        states = {event["state"] for agent in codes for event in fleet.events(agent) if event["kind"] == "member"}
        assert states >= expected, states
        kept = [
            [load_file(fleet.run_folder(agent) / "model" / f"task-{task}.safetensors") for task in range(1, TASKS + 1)]
            for agent in codes
        ]
        bodies = [load_file(fleet.run_folder(agent) / "model" / "body.safetensors") for agent in codes]
        scores = [fleet.metrics(agent)["acc"] for agent in codes]
        opened = [[e for e in fleet.events(agent) if e["kind"] == "task"][-1] for agent in codes]
    assert len({exchange.digest(body) for body in bodies}) == 1
    for models in zip(*kept, strict=True):
        assert len({exchange.digest(model) for model in models}) == 1
    directions = [{name for name in model if name.startswith("directions/")} for model in kept[0]]
    assert [len(names) > 0 for names in directions] == [False] + [True] * (TASKS - 1)
    assert {event["kept"] for event in opened} == {sum(value.numel() for value in kept[0][-1].values())}
    whole = api.run(settings, out=folder / "undisturbed", device="cpu").metrics["acc"]
    assert min(scores) > whole - 8, (whole, scores)  # of three, one has a third of the images


@pytest.mark.long
def test_who_joins_again_inside_a_task_has_the_directions_of_all_tasks(tmp_path):
    check_own_directions(inside_the_last_task, PATIENT, 5, tmp_path)


@pytest.mark.alone
@pytest.mark.slow
def test_who_joins_again_does_so_between_two_steps_of_several_rounds(tmp_path):
    tracking = {"order": "adapt-then-combine", "correction": "gradient-tracking", "gossip_rounds": 2, "epochs": 5}
    more = {"train": tracking, "topology": {"name": "one-peer-exponential"}}
    check_own_directions(inside_the_last_task, PATIENT, 5, tmp_path, **more)


@pytest.mark.long
def test_who_joins_with_nothing_inside_a_task_reads_and_is_read_in_four_bits(tmp_path):
    check_own_directions(partial(inside_the_last_task, empty=True), PATIENT, 5, tmp_path, bits=4)


@pytest.mark.long
@pytest.mark.parametrize("fault", [before_it_opened, the_one_that_chooses])
def test_a_fleet_with_own_directions_survives_at_length(fault, tmp_path):
    check_own_directions(fault, RULES, EPOCHS, tmp_path)


if __name__ == "__main__":
    base, *wanted = sys.argv[1:]
    if base in ("late", "counted"):
        (late_agent if base == "late" else counted_agent)(*wanted)
        sys.exit()
    for topology in [word for word in wanted if word in ("ring", "torus")] or ["ring", "torus"]:
        for name in [word for word in wanted if word in FAULTS] or FAULTS:
            print(row(name, topology, outcome(name, topology, Path(base) / topology / name)), flush=True)
