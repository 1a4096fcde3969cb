"""When a process of a run fails, all end soon, with its reason, said once; the same command goes on to the same end."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.conftest import ROOT
from tests.faults.test_resume import numbers, same
from tests.faults.victim import run as alone_in_one_process
from tests.launching import finished, launched, run, variables

COMMAND = ["-m", "codecl", "run", "--method", "codec", "--set", "train.batch_size=50", "--set", "train.execution=loop"]
LONG = [*COMMAND, "--set", "train.epochs=400"]
SHORT = [*COMMAND, "--set", "train.epochs=1"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def codes(done):
    return [code for code, *_ in done]


def unlaunched():
    """What a launcher is started with: the variables of a rank without those that it sets itself."""
    return {k: v for k, v in variables(0, 1, 0).items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}


def lines(done):
    return [line for _, _, errors in done for line in errors.splitlines() if line.strip()]


def training(folder, process):
    """Wait until a run is in the middle of it."""
    while process.poll() is None:
        for path in folder.rglob("events.jsonl"):
            if path.read_text().count('"epoch", ') > 1:
                return path.parent
        time.sleep(0.1)
    raise AssertionError(process.communicate())


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_ends_the_others_with_one_line_that_names_it(tmp_path, victim):
    with launched(4, LONG, tmp_path) as processes:
        folder = training(tmp_path, processes[0])
        processes[victim].kill()
        began = time.monotonic()
        done = finished(processes)
    assert time.monotonic() - began < 20
    assert codes(done) == [-signal.SIGKILL if rank == victim else 1 for rank in range(4)]
    said = lines(done)
    assert all(line.startswith(f"codecl: rank {victim} ") and "is gone" in line for line in said), said
    if victim:  # with rank 0 go the place where all meet and the record
        (line,) = said
        assert line == (
            "codecl: rank 2 (agent 2) is gone (its connection closed); what was recorded is in "
            + str(folder.relative_to(tmp_path))
        )
        assert json.loads((folder / "metrics.json").read_text())["status"] == "partial"


def test_a_killed_rank_under_torchrun(tmp_path):
    how = {"cwd": tmp_path, "env": unlaunched(), "text": True}
    process = subprocess.Popen([*TORCHRUN, *LONG], stderr=subprocess.PIPE, **how)
    try:
        folder = training(tmp_path, process)
        workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        ranks = {dict(line.split("=", 1) for line in _environment(pid))["RANK"]: int(pid) for pid in workers}
        os.kill(ranks["1"], signal.SIGKILL)
        _, errors = process.communicate(timeout=40)
    finally:
        process.kill()
    assert process.returncode == 1
    (line,) = [line for line in errors.splitlines() if line.startswith("codecl: ")]
    assert line.startswith("codecl: rank 1 (agents 2-3) is gone")
    assert json.loads((folder / "metrics.json").read_text())["status"] == "partial"


def _environment(pid):
    return [part for part in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in part]


@pytest.mark.long
def test_what_all_ranks_refuse_is_said_once(tmp_path):
    done = run(3, [*SHORT, "--agents", "2"], tmp_path)
    assert codes(done) == [2, 2, 2]
    (line,) = lines(done)
    assert line.startswith("codecl: agents: 2 cannot be spread over 3 ranks; start at most 2 processes (rank ")


def test_an_error_of_one_rank_is_the_error_of_all(tmp_path):
    """Rank 0 alone finds that the folder holds something else."""
    assert codes(run(2, SHORT, tmp_path)) == [0, 0]
    (config,) = tmp_path.rglob("config.yaml")
    config.write_text(config.read_text().replace("batch_size: 50", "batch_size: 40"))
    done = run(2, SHORT, tmp_path)
    assert codes(done) == [2, 2]
    (line,) = lines(done)
    assert "holds a run with another config (train.batch_size: 40, 50)" in line
    assert line.endswith("(rank 0 of 2)")


def test_a_loss_that_is_not_finite_is_said_once(tmp_path):
    done = run(2, [*SHORT, "--set", "train.lr=1e300"], tmp_path)
    assert codes(done) == [1, 1]
    (line,) = lines(done)
    assert "the loss is nan" in line or "the loss is inf" in line


def test_a_rank_that_never_comes(tmp_path):
    code = (
        "from datetime import timedelta; import torch; from codecl.exchange.cluster import ranks;"
        "ranks.MEET = timedelta(seconds=2); ranks.joined('cluster', torch.device('cpu')).__enter__()"
    )
    with launched(2, ["-c", code], tmp_path) as processes:
        processes[1].kill()
        (code, _, errors), _ = finished(processes)
    assert code == 1
    assert "rank 0: 2 ranks did not meet at 127.0.0.1" in errors


def test_a_rank_that_fails_is_missed_at_once_even_if_a_message_is_held(tmp_path):
    """Gloo keeps connections open for it, and the others would wait until rank 0 has left with the reason."""
    code = (
        "import time; import torch; from codecl.errors import RunFailed; from codecl.exchange.cluster import ranks\n"
        "from codecl.exchange.cluster.wire import Wire\n"
        "wire, held = Wire(torch.device('cpu')), []\n"
        "with ranks.joined('cluster', torch.device('cpu')) as joined:\n"
        "    try:\n"
        "        held.append(wire.post({}, {1 - joined.rank: torch.zeros(1)}))\n"
        "        if joined.is_main: raise RunFailed('the disk is on fire')\n"
        "        held[0].wait(ranks.MEET)\n"
        "    finally: print(time.monotonic())\n"
    )
    done = run(2, ["-c", code], tmp_path)
    assert codes(done) == [1, 1]
    failed_at, missed_at = (float(output) for _, output, _ in done)
    assert missed_at - failed_at < 2
    for _, _, errors in done:
        assert errors.splitlines()[-1].endswith("RunFailed: the disk is on fire (rank 0 of 2)")


@pytest.mark.long
def test_two_calls_in_one_process_under_torchrun(tmp_path):
    """The launcher's store outlives the first meeting."""
    words = [*TORCHRUN, "-m", "tests.faults.victim", str(tmp_path), "twice"]
    done = subprocess.run(words, cwd=tmp_path, env=unlaunched(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("complete") == 4  # two ranks, two calls


def test_ranks_with_other_models_are_refused(tmp_path):
    done = run(2, ["-m", "tests.faults.victim", str(tmp_path), "twice", "other"], tmp_path)
    assert codes(done) == [1, 1]  # a script's own traceback
    assert "ranks: rank 1 has another config than rank 0 (model.digest: " in done[1][2].splitlines()[-1]
    assert not list(tmp_path.rglob("metrics.json"))


@pytest.mark.long
def test_a_rank_that_waits_for_another_heeds_signals(tmp_path):
    """Rank 1 is stuck at a task's end, where rank 0 has the patience of half an hour."""
    with launched(2, ["-m", "tests.faults.victim", str(tmp_path), "codec", "0", "stuck"], tmp_path) as processes:
        deadline = time.monotonic() + 60
        while '"grow"' not in "".join(path.read_text() for path in tmp_path.rglob("events.jsonl")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(1)
        began = time.monotonic()
        processes[0].send_signal(signal.SIGTERM)
        assert processes[0].wait(timeout=30) == 1
        assert time.monotonic() - began < 15
        processes[1].kill()


def command(out, pause, *more):
    """The command, with a pause after each event."""
    return ["-m", "tests.faults.victim", str(out), "codec", str(pause), *more]


def folder_of(out):
    (path,) = out.rglob("metrics.json")
    return path.parent


def recorded(out):
    """Of the record so far."""
    return sum(path.read_text().count("\n") for path in out.rglob("events.jsonl"))


def killed(out, rank, moment, *more):
    """Start, kill this rank when it is the moment, and wait until all have ended."""
    with launched(2, command(out, 0.03, *more), ROOT) as processes:
        deadline = time.monotonic() + 60
        while not moment() and time.monotonic() < deadline:
            time.sleep(0.01)
        processes[rank].kill()
        return finished(processes, timeout=60)


@pytest.mark.long
def test_ten_kills_of_a_rank(tmp_path):
    """Bit for bit with equal ranks, dropout and all."""
    assert codes(run(2, command(tmp_path / "whole", 0), ROOT)) == [0, 0]
    whole, out, moments = numbers(folder_of(tmp_path / "whole")), tmp_path / "killed", random.Random(5)
    for _ in range(10):
        before, more, rank = recorded(out), moments.randint(1, 4), moments.randrange(2)
        done = killed(out, rank, lambda: recorded(out) not in range(before, before + more))  # noqa: B023
        assert done[rank][0] == -signal.SIGKILL, done
        assert done[1 - rank][0] == 1, done
        assert f"rank {rank} " in done[1 - rank][2].splitlines()[-1]
    assert codes(run(2, command(out, 0), ROOT)) == [0, 0]
    same(numbers(folder_of(out)), whole)


@pytest.mark.long
def test_another_number_of_ranks_goes_on_too(tmp_path):
    out = tmp_path / "killed"
    killed(out, 1, lambda: list(out.rglob("checkpoint/[0-9]*")), "exact")
    done = run(4, command(out, 0, "exact"), ROOT)
    assert codes(done) == [0] * 4, done
    metrics, events, model = numbers(folder_of(out))
    alone = numbers(alone_in_one_process(tmp_path / "alone", exact=True).folder)
    for field in ("status", "accuracy_matrix", "traffic", "free_by_task"):
        assert metrics[field] == alone[0][field]
    assert [fact["kind"] for fact in events] == [fact["kind"] for fact in alone[1]]
    for file, tensors in model.items():
        for name, value in tensors.items():
            torch.testing.assert_close(value, alone[2][file][name], rtol=0, atol=1e-10)
