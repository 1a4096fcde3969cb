"""Ranks that are killed: the others end by themselves, and the same command goes on, to the same end."""

import os
import random
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT
from tests.faults.test_resume import numbers, same

RANKS = 2


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def launch(out, ranks=RANKS, pause=0.03):
    """The victim, spread over so many processes, with a pause after each event."""
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    words = [sys.executable, "-m", "tests.faults.victim", str(out), "codec", str(pause)]
    return [
        subprocess.Popen(
            words,
            cwd=ROOT,
            env={**os.environ, **meet, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]


def ended(processes):
    """Exit codes and what was said, of processes that all end within a minute."""
    said = [process.communicate(timeout=60)[1] for process in processes]
    return [process.returncode for process in processes], said


def folder_of(out):
    (path,) = out.rglob("metrics.json")
    return path.parent


def lines(out):
    """Of the record so far."""
    return sum(path.read_text().count("\n") for path in out.rglob("events.jsonl"))


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.mark.slow
def test_ten_kills_of_a_rank(tmp_path):
    """Bit for bit with equal ranks, dropout and all."""
    codes, said = ended(launch(tmp_path / "whole", pause=0))
    assert codes == [0, 0], said
    whole, out = numbers(folder_of(tmp_path / "whole")), tmp_path / "killed"
    moments = random.Random(5)
    for _ in range(10):
        before, more, victim = lines(out), moments.randint(1, 4), moments.randrange(RANKS)
        processes = launch(out)
        started = [process.stdout.readline() for process in processes]
        assert started == ["ready\n"] * RANKS
        wait_until(lambda: lines(out) not in range(before, before + more))  # noqa: B023
        time.sleep(moments.uniform(0, 0.1))
        os.kill(processes[victim].pid, signal.SIGKILL)
        codes, said = ended(processes)
        assert codes[victim] == -signal.SIGKILL
        assert codes[1 - victim] == 1, said
        assert f"rank {victim} " in said[1 - victim].splitlines()[-1]
    codes, said = ended(launch(out, pause=0))
    assert codes == [0, 0], said
    same(numbers(folder_of(out)), whole)


@pytest.mark.slow
def test_another_number_of_ranks_goes_on_too(tmp_path):
    processes = launch(tmp_path)
    wait_until(lambda: list(tmp_path.rglob("checkpoint.json")))
    os.kill(processes[1].pid, signal.SIGKILL)
    ended(processes)
    codes, said = ended(launch(tmp_path, ranks=4, pause=0))
    assert codes == [0] * 4, said
    metrics, events, _ = numbers(folder_of(tmp_path))
    assert metrics["status"] == "complete"
    assert [fact["kind"] for fact in events].count("run") == 1
    assert [fact["kind"] for fact in events].count("eval") == 3
