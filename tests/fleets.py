"""A fleet of real processes on the loopback, with the faults that real ones meet: agents that are killed, stopped or
restarted, links that are cut and healed."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import yaml

from codecl.peers import agent as peer
from codecl.peers import fleet
from codecl.peers.decisions import PeersConfig
from codecl.peers.local import free_ports
from codecl.runs.config import RunConfig
from tests.conftest import ROOT

CODECL = (sys.executable, "-W", "error", "-m", "codecl")


class Wire:
    """Between two agents: what it carries can be cut off, and comes back."""

    def __init__(self, port: int) -> None:
        self.port, self.whole, self._open = port, True, []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                try:
                    if not self.whole:
                        raise OSError
                    far = socket.create_connection(("127.0.0.1", self.port))
                except OSError:
                    near.close()
                    continue
                self._open += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def cut(self) -> None:
        self.whole = False
        for end in self._open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._open = []

    def heal(self) -> None:
        self.whole = True

    def close(self) -> None:
        self.cut()
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


class LocalFleet:
    """Law: nothing of it is left behind."""

    def __init__(self, config: RunConfig, rules: PeersConfig, folder: Path, wires: bool = False) -> None:
        self.config, self.folder, self.processes = config, folder, dict[int, subprocess.Popen]()
        self.ports = free_ports(config.agents)
        self.files = fleet.init(config, [("127.0.0.1", port) for port in self.ports], rules, folder / "fleet")
        self.wires = self._wired() if wires else {}

    def _wired(self) -> dict[tuple[int, int], Wire]:
        """A wire of its own for each pair: the one with the lower number dials."""
        agents = range(self.config.agents)
        wires = {(low, high): Wire(self.ports[high]) for low in agents for high in agents if low < high}
        for agent, path in enumerate(self.files):
            known = yaml.safe_load(path.read_text())
            reach = {high: wire.address for (low, high), wire in wires.items() if low == agent}
            path.write_text(yaml.safe_dump({**known, "reach": reach}))
        return wires

    command: tuple[str, ...] = (*CODECL, "agent")

    def start(self, agent: int) -> None:
        log = self._logs.enter_context((self.folder / f"{agent}.log").open("a"))
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        args = [*self.command, str(self.files[agent]), "--out", str(self.folder / "runs"), "--allow-code"]
        self.processes[agent] = subprocess.Popen(args, env=env, stdout=log, stderr=log, cwd=self.folder)

    def signal(self, agent: int, number: int) -> None:
        self.processes[agent].send_signal(number)
        if number == signal.SIGKILL:
            self.processes.pop(agent).wait()

    def run_folder(self, agent: int) -> Path:
        return peer.folder_of(self.config, self.folder / "runs", agent)

    def events(self, agent: int) -> list[dict]:
        try:
            lines = (self.run_folder(agent) / "events.jsonl").read_text().splitlines()
        except OSError:
            return []
        found = []
        for line in lines:
            with suppress(ValueError):  # a line that is being written
                found.append(json.loads(line))
        return found

    def metrics(self, agent: int) -> dict:
        return json.loads((self.run_folder(agent) / "metrics.json").read_text())

    def log(self, agent: int) -> str:
        return (self.folder / f"{agent}.log").read_text()

    def until(self, agent: int, kind: str, task: int, epoch: int | None = None, seconds: float = 120) -> None:
        """Wait until this agent has recorded such an event."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for event in self.events(agent):
                if event["kind"] == kind and event["task"] == task and epoch in (None, event["epoch"]):
                    return
            assert self.processes[agent].poll() is None, self.log(agent)
            time.sleep(0.02)
        raise AssertionError(f"agent {agent} did not come to {kind} of task {task}: {self.log(agent)[-2000:]}")

    def finished(self, seconds: float) -> dict[int, int]:
        """Exit codes, when all that run have ended."""
        deadline = time.monotonic() + seconds
        return {agent: one.wait(max(0.1, deadline - time.monotonic())) for agent, one in self.processes.items()}

    def __enter__(self) -> "LocalFleet":
        self._logs = ExitStack()
        for agent in range(self.config.agents):
            self.start(agent)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        self._logs.close()
        for wire in self.wires.values():
            wire.close()
