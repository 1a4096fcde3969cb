"""A whole fleet on this machine, on loopback ports: for trying out what will run on many."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from codecl.errors import CodeclError, RunFailed
from codecl.peers import agent as peer
from codecl.peers import fleet
from codecl.peers.fleet import PeersConfig
from codecl.runs import record
from codecl.runs.config import RunConfig
from codecl.runs.tail import Tail, look

LOOK_S = 0.5
PORTS = range(20_000, 30_000)
GRACE_S = 10.0


class Seen(NamedTuple):
    """What is known of an agent that is under way."""

    agent: int
    state: str = "starting"
    task: int | None = None
    epoch: int | None = None
    loss: float | None = None
    accuracy: float | None = None
    missed: int = 0
    note: str = ""  # the last change in membership


Show = Callable[[list[Seen]], None]


class Ended(NamedTuple):
    """How a fleet ended: exit code and metrics of each agent."""

    codes: list[int]
    metrics: list[dict[str, Any] | None]
    folder: Path


def run(config: RunConfig, rules: PeersConfig, out: Path, again: bool, show: Show) -> Ended:
    """Start all agents, follow what they record, and wait for them. A fleet that was stopped goes on: its files are
    kept beside its agents' folders."""
    folder = record.folder_of(config, out)
    with ExitStack() as stack:
        files = _files(config, rules, folder / "agent-files", again)
        command = [sys.executable, "-m", "codecl", "agent", "--out", str(out), *(["--again"] if again else [])]
        processes = stack.enter_context(_started([[*command, str(file)] for file in files], folder))
        eyes = [_Eye(agent, peer.folder_of(config, out, agent)) for agent in range(config.agents)]
        while any(process.poll() is None for process in processes):
            show([eye.look(process.poll()) for eye, process in zip(eyes, processes, strict=True)])
            time.sleep(LOOK_S)
        show([eye.look(process.poll()) for eye, process in zip(eyes, processes, strict=True)])
    found = [peer.folder_of(config, out, agent) for agent in range(config.agents)]
    metrics = [_metrics(path) for path in found]
    codes = [int(process.returncode) for process in processes]
    if all(one is None for one in metrics):
        raise RunFailed(f"{folder}: no agent came to an end; see {folder / 'agent-0.log'}")
    return Ended(codes, metrics, folder)


def _files(config: RunConfig, rules: PeersConfig, folder: Path, again: bool) -> list[Path]:
    """Of the fleet that was here, at ports that are free now; or of a new one."""
    files = [folder / f"agent-{agent}" / "agent.yaml" for agent in range(config.agents)]
    addresses = [("127.0.0.1", port) for port in free_ports(config.agents)]
    try:
        known = None if again else fleet.read(files[0]).fleet
    except CodeclError:
        known = None
    if known is None or known.digest != config.digest():
        shutil.rmtree(folder, ignore_errors=True)
        return fleet.init(config, addresses, rules, folder)
    pairs = zip(known.addresses, addresses, strict=True)
    moved = tuple(address.model_copy(update={"port": port}) for address, (_, port) in pairs)
    text = known.model_copy(update={"addresses": moved, "peers": rules}).dump()
    for file in files:
        (file.parent / "fleet.yaml").write_text(text, encoding="utf-8")
    return files


def free_ports(count: int) -> list[int]:
    """Ports of this machine that are free, and that no outgoing connection is given by chance before they are used."""
    free: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as trial, suppress(OSError):
            trial.bind(("127.0.0.1", port))
            free.append(port)
        if len(free) == count:
            break
    return free


@contextmanager
def _started(commands: list[list[str]], folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The agents at work, each with a log beside its folder; none is left behind."""
    threads = max(1, (os.cpu_count() or 1) // len(commands))
    env = {"OMP_NUM_THREADS": str(threads), **os.environ}
    processes: list[subprocess.Popen[bytes]] = []
    with ExitStack() as stack:
        try:
            for agent, command in enumerate(commands):
                log = stack.enter_context((folder / f"agent-{agent}.log").open("w"))
                processes.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
            yield processes
        finally:
            for process in processes:
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)
            deadline = time.monotonic() + GRACE_S
            for process in processes:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, deadline - time.monotonic()))
                if process.poll() is None:
                    process.kill()
                    process.wait()


class _Eye:
    """Follows one agent's record."""

    def __init__(self, agent: int, folder: Path) -> None:
        self.path, self.seen = folder / "events.jsonl", Seen(agent)
        self.tail = look(self.path, Tail()).tail  # past an earlier run

    def look(self, code: int | None) -> Seen:
        self.tail, lines, _ = look(self.path, self.tail)
        for line in lines:
            self._note(json.loads(line))
        if code is not None:
            state = {0: "complete", 4: "degraded"}.get(code, f"failed ({code})")
            self.seen = self.seen._replace(state=state)
        return self.seen

    def _note(self, fact: dict[str, Any]) -> None:
        kind, more = fact["kind"], dict[str, Any]()
        if kind == "task":
            more = {"state": "training", "task": fact["task"], "epoch": 0}
        elif kind == "epoch":
            missed = self.seen.missed + sum(b - a + 1 for spans in fact["missed"].values() for a, b in spans)
            more = {"task": fact["task"], "epoch": fact["epoch"] + 1, "loss": fact["loss"][0], "missed": missed}
        elif kind == "agree":
            more = {"state": "task's end"}
        elif kind == "eval":
            more = {"accuracy": sum(fact["accuracy"]) / len(fact["accuracy"])}
        elif kind == "member" and fact["state"] not in ("connected", "disconnected"):
            more = {"note": f"{fact['state']} {fact['agent']}"}
        self.seen = self.seen._replace(**more)


def _metrics(folder: Path) -> dict[str, Any] | None:
    try:
        return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
