"""Ranks that are killed: the others end by themselves, and the same command goes on, to the same end."""

import random
import signal
import time

import pytest
import torch

from tests.conftest import ROOT
from tests.faults.test_resume import numbers, same
from tests.faults.victim import run as alone_in_one_process
from tests.launching import finished, launched, run

RANKS = 2


def victim(out, pause, *more):
    """The command, with a pause after each event."""
    return ["-m", "tests.faults.victim", str(out), "codec", str(pause), *more]


def folder_of(out):
    (path,) = out.rglob("metrics.json")
    return path.parent


def lines(out):
    """Of the record so far."""
    return sum(path.read_text().count("\n") for path in out.rglob("events.jsonl"))


def killed(out, rank, moment, *more):
    """Start, kill this rank when it is the moment, and wait until all have ended."""
    with launched(RANKS, victim(out, 0.03, *more), ROOT) as processes:
        deadline = time.monotonic() + 60
        while not moment() and time.monotonic() < deadline:
            time.sleep(0.01)
        processes[rank].kill()
        return finished(processes, timeout=60)


@pytest.mark.long
def test_ten_kills_of_a_rank(tmp_path):
    """Bit for bit with equal ranks, dropout and all."""
    assert [code for code, *_ in run(RANKS, victim(tmp_path / "whole", 0), ROOT)] == [0, 0]
    whole, out, moments = numbers(folder_of(tmp_path / "whole")), tmp_path / "killed", random.Random(5)
    for _ in range(10):
        before, more, rank = lines(out), moments.randint(1, 4), moments.randrange(RANKS)
        done = killed(out, rank, lambda: lines(out) not in range(before, before + more))  # noqa: B023
        assert done[rank][0] == -signal.SIGKILL
        assert done[1 - rank][0] == 1
        assert f"rank {rank} " in done[1 - rank][2].splitlines()[-1]
    assert [code for code, *_ in run(RANKS, victim(out, 0), ROOT)] == [0, 0]
    same(numbers(folder_of(out)), whole)


@pytest.mark.slow
def test_another_number_of_ranks_goes_on_too(tmp_path):
    out = tmp_path / "killed"
    killed(out, 1, lambda: list(out.rglob("checkpoint/[0-9]*")), "exact")
    done = run(4, victim(out, 0, "exact"), ROOT)
    assert [code for code, *_ in done] == [0] * 4, done
    metrics, events, model = numbers(folder_of(out))
    alone = numbers(alone_in_one_process(tmp_path / "alone", exact=True).folder)
    for field in ("status", "accuracy_matrix", "traffic", "free_by_task"):
        assert metrics[field] == alone[0][field]
    assert [fact["kind"] for fact in events] == [fact["kind"] for fact in alone[1]]
    for file, tensors in model.items():
        for name, value in tensors.items():
            torch.testing.assert_close(value, alone[2][file][name], rtol=0, atol=1e-10)
