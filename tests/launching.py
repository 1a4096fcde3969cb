"""A launcher as plain as can be: processes with the variables that `torch.distributed` reads, on the loopback."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

Process = subprocess.Popen  # of text
PYTHON = (sys.executable, "-W", "error")


def variables(rank: int, size: int, port: int) -> dict[str, str]:
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    who = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, **where, **who, "OMP_NUM_THREADS": "1", "COLUMNS": "140", "PYTHONPATH": path}


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
