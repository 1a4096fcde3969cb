"""A whole fleet on this machine, on loopback ports: for trying out what will run on many."""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from codecl.errors import CodeclError, ConfigError, RunFailed
from codecl.files import is_locked, write_text
from codecl.peers import agent as peer
from codecl.peers import fleet
from codecl.peers.decisions import PeersConfig
from codecl.runs.config import RunConfig
from codecl.runs.follow import Follower, FollowerView, RunFolder
from codecl.runs.writer import folder_of

Show = Callable[[FollowerView], None]
LOOK_S = 0.5
FILES = ".fleets"  # the folder, where runs go, of fleets' files
PORTS = range(20_000, 30_000)
GRACE_S = 10.0


def run(config: RunConfig, rules: PeersConfig, out: Path, again: bool, show: Show) -> list[int]:
    """Start all agents, follow what they record, wait for them; gives their exit codes. A fleet that was stopped goes
    on: its files are kept, outside its run's folder since there are keys among them."""
    folder = folder_of(config, out)
    agents = tuple(peer.folder_of(config, out, agent) for agent in range(config.agents))
    follower = Follower(folder, known=[RunFolder(folder, agents)])
    files = _files(config, rules, out / FILES / folder.relative_to(out), again)
    folder.mkdir(parents=True, exist_ok=True)
    options = ["--allow-code", *(["--again"] if again else [])]  # the user's own command names what there is
    command = [sys.executable, "-m", "codecl", "agent", "--out", str(out), *options]
    with _started([[*command, str(file)] for file in files], folder) as processes:
        while any(process.poll() is None for process in processes):
            running = [path for process, path in zip(processes, agents, strict=True) if process.poll() is None]
            if all(is_locked(path) is not False for path in running):  # what they hold is not an earlier run's
                show(follower.look())
            time.sleep(LOOK_S)
    show(follower.look())
    if not any((path / "metrics.json").is_file() for path in agents):
        raise RunFailed(f"{folder}: no agent came to an end; see {folder / 'agent-0.log'}")
    return [process.returncode for process in processes]


def ending(code: int) -> str:
    """How a process ended, in words."""
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def _files(config: RunConfig, rules: PeersConfig, folder: Path, again: bool) -> list[Path]:
    """Of the fleet that was here, at ports that are free now; or of a new one."""
    files = [folder / f"agent-{agent}" / "agent.yaml" for agent in range(config.agents)]
    addresses = [("127.0.0.1", port) for port in free_ports(config.agents)]
    known = None
    with suppress(CodeclError):
        known = None if again else fleet.read(files[0]).fleet
    if known is not None and known.earlier:
        raise ConfigError(
            f"{folder}: this fleet was given more tasks since; start its agents with `codecl agent`, or start anew with"
            " --again"
        )
    if known is None or known.digest != config.digest():
        shutil.rmtree(folder, ignore_errors=True)
        return fleet.init(config, addresses, rules, folder)
    pairs = zip(known.addresses, addresses, strict=True)
    moved = tuple(address.model_copy(update={"port": port}) for address, (_, port) in pairs)
    text = known.model_copy(update={"addresses": moved, "peers": rules}).dump()
    for file in files:
        write_text(file.parent / "fleet.yaml", text)
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
    env = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // len(commands))), **os.environ}
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for agent, command in enumerate(commands):
            with (folder / f"agent-{agent}.log").open("w") as log:
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
