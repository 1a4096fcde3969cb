"""Faults that a fleet of eight meets, each a function of a running fleet; what is expected of all of them is in
test_peers.py. `python -m tests.faults.peers FOLDER [TOPOLOGY …]` runs them all and prints the table."""

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from codecl.peers.decisions import PeersConfig
from codecl.runs.config import RunConfig, preset, resolve
from codecl.seeding import choose
from tests.fleets import LocalFleet

RULES = PeersConfig(deadline=1.0, silence=3.0, meet=60)
HASTY = PeersConfig(deadline=0.15, silence=3.0, meet=60)  # every twentieth message costs somebody a deadline
TASKS, EPOCHS, VICTIM = 3, 15, 3


def config(topology: str, tasks: int = TASKS, epochs: int = EPOCHS, seed: int = 1) -> RunConfig:
    fields = {"agents": 8, "topology": {"name": topology}, "seed": seed, "method": {"name": "codec"}}
    settings = {"data": {"tasks": tasks}, "train": {"epochs": epochs}}
    return resolve(preset("quickstart"), {**fields, **settings})


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


class Fault(NamedTuple):
    do: Callable[[LocalFleet], None]
    wires: bool = False
    command: tuple[str, ...] = ()
    rules: PeersConfig = RULES
    epochs: int = EPOCHS


DELAYED = (sys.executable, "-W", "error", "-m", "tests.faults.delayed")
FAULTS = {
    "none": Fault(none),
    "killed": Fault(killed),
    "restarted": Fault(restarted),
    "stopped": Fault(stopped, epochs=3 * EPOCHS),
    "cut": Fault(cut, wires=True),
    "delayed": Fault(none, command=DELAYED, rules=HASTY),
    "chosen": Fault(chosen),
    "split": Fault(split, wires=True),
}


class Outcome(NamedTuple):
    codes: dict[int, int]
    metrics: dict[int, dict[str, Any]]
    states: dict[int, list[dict[str, Any]]]  # by agent, its records of members
    logs: dict[int, str]
    folders: dict[int, Path]
    seconds: float


def outcome(name: str, topology: str, folder: Path, seconds: float = 500, tasks: int = TASKS) -> Outcome:
    fault, began = FAULTS[name], time.monotonic()
    fleet = LocalFleet(config(topology, tasks, fault.epochs), fault.rules, folder, wires=fault.wires)
    if fault.command:
        fleet.command = fault.command
    with fleet:
        fault.do(fleet)
        codes = fleet.finished(seconds)
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


if __name__ == "__main__":
    base, *wanted = sys.argv[1:]
    for topology in [word for word in wanted if word in ("ring", "torus")] or ["ring", "torus"]:
        for name in [word for word in wanted if word in FAULTS] or FAULTS:
            found = outcome(name, topology, Path(base) / topology / name)
            print(row(name, topology, found), flush=True)
