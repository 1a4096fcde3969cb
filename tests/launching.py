"""Processes of their own: commands, on a terminal too, and ranks as a launcher starts them, on the loopback."""

import os
import pty
import select
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

Process = subprocess.Popen  # of text
PYTHON = (sys.executable, "-W", "error", "-W", "ignore:mixing")  # tests are full of runs that are too short
CODECL = (*PYTHON, "-m", "codecl")
ENTRY = str(Path(sys.executable).with_name("codecl"))  # as it is installed


def environment(**more: str) -> dict[str, str]:
    """Variables of a process that finds the package and the tests."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "140", "PYTHONPATH": path, **more}


def codecl(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [*CODECL, *map(str, words)]
    return subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=200)


@contextmanager
def running(*words: object, cwd: Path, output: int = subprocess.DEVNULL) -> Iterator[Process]:
    """A command under way; it is not left behind."""
    command = [*CODECL, *map(str, words)]
    with subprocess.Popen(command, cwd=cwd, env=environment(), stdout=output, stderr=output, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(condition: Callable[[], Any], process: Process, seconds: float = 90) -> Any:
    """What the condition gives once it holds; until then the process is at work."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert process.poll() is None, "it ended too soon"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


def on_a_terminal(command: Sequence[str], cwd: Path, columns: int | None = None, **variables: str) -> tuple[int, str]:
    """The exit code of a command on a pseudo-terminal, and all that it showed. `columns`: that the terminal has."""
    near, far = pty.openpty()
    env = environment(**variables)
    if columns is not None:
        termios.tcsetwinsize(far, (40, columns))
        del env["COLUMNS"]  # which would be believed first
    process = subprocess.Popen(command, cwd=cwd, env=env, stdin=far, stdout=far, stderr=far)
    os.close(far)
    shown = b""
    with suppress(OSError):  # the other side is closed
        while select.select([near], [], [], 120)[0] and (some := os.read(near, 1 << 16)):
            shown += some
    os.close(near)
    return process.wait(60), shown.decode()


def variables(rank: int, size: int, port: int) -> dict[str, str]:
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    who = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
    return {**environment(), **where, **who}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def launched(size: int, command: Sequence[str], cwd: Path) -> Iterator[list[Process]]:
    """The ranks at work; none is left behind."""
    port = free_port()
    how: dict[str, Any] = {"cwd": cwd, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with ExitStack() as stack:
        ranks = [variables(rank, size, port) for rank in range(size)]
        processes = [stack.enter_context(subprocess.Popen([*PYTHON, *command], env=env, **how)) for env in ranks]
        try:
            yield processes
        finally:
            for process in processes:
                process.kill()


def finished(processes: Sequence[Process], timeout: float = 120) -> list[tuple[int, str, str]]:
    """(exit code, output, errors) of each rank."""
    said = [process.communicate(timeout=timeout) for process in processes]
    return [(process.returncode, *both) for process, both in zip(processes, said, strict=True)]


def run(size: int, command: Sequence[str], cwd: Path) -> list[tuple[int, str, str]]:
    with launched(size, command, cwd) as processes:
        return finished(processes)
