"""`codecl run --jobs`: the runs of a grid side by side, and what happens to the others when one of them ends early."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from codecl.cli.common import INTERRUPTED
from codecl.files import is_locked
from tests.launching import codecl, running, wait_for

TINY = ("--agents", "3", "--set", "data.tasks=2", "--set", "train.batch_size=50", "--set", "train.execution=loop")
SHORT = (*TINY, "--set", "train.epochs=1")
LONG = (*TINY, "--set", "train.epochs=200", "--set", "checkpoint.every=4")
BROKEN = """
from codecl.methods.dpsgd import Dpsgd


class Broken(Dpsgd):
    def step(self, memory, base_AD, coords_AD, grad_AD, lr):
        return base_AD * float("nan")
"""

STREAM = """
import torch
from torch.utils.data import Dataset

import codecl


class Items(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, number):
        return torch.full((1, 8, 8), number / 40), number % 4


def stream():
    return [codecl.Task(Items(), Items(), 4)]
"""


def scores(folder: Path) -> dict[str, list[list[float]]]:
    files = folder.glob("**/seed-*/metrics.json")
    return {str(path.parent): json.loads(path.read_text())["accuracy_matrix"] for path in files}


def locked(folder: Path) -> list[Path]:
    return [path.parent for path in folder.glob("runs/*/*/events.jsonl") if is_locked(path.parent)]


def writers(folder: Path) -> list[int]:
    """The processes that hold the locks of runs."""
    inodes = {str(path.stat().st_ino) for path in locked(folder)}
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return [int(words[4]) for words in lines if words[1] == "FLOCK" and words[5].split(":")[-1] in inodes]


def alive(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jobs")
    return folder, codecl("run", "--method", "codec,dpsgd", "--seeds", "1,2", "--jobs", 3, *SHORT, cwd=folder)


def test_runs_side_by_side_give_what_they_give_one_after_another(together, cli, tmp_path):
    folder, done = together
    assert done.returncode == 0, done.stderr
    assert re.search(r"codec +ring 3 +2 +\d+\.\d\d ± \d+\.\d\d", done.stdout)
    assert len(re.findall(r"seed-[12]: complete · task 2/2", done.stdout)) == 4
    alone = cli("run", "--method", "codec,dpsgd", "--seeds", "1,2", *SHORT, "--out", tmp_path, cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    assert list(scores(folder / "runs").values()) == list(scores(tmp_path).values())


def test_what_is_complete_is_not_run_again(together, cli):
    folder, _ = together
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("events.jsonl")}
    done = cli("run", "--method", "codec,dpsgd", "--seeds", "1,2", "--jobs", "2", "--json", *SHORT, cwd=folder)
    assert len(json.loads(done.stdout)) == len(before) == 4
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("events.jsonl")} == before


def test_one_that_fails_leaves_the_others_alone(tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN)
    done = codecl("run", "--method", "broken.py:Broken,dpsgd", "--jobs", 2, "--json", *SHORT, cwd=tmp_path)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("codecl: ")]
    assert re.search(r"codecl: task 1 \(digits\), step \d.*; what was recorded is in runs/quickstart-Broken", line)
    assert [run["method"] for run in json.loads(done.stdout)] == ["dpsgd"]


def test_one_that_is_killed_leaves_the_others_alone_and_goes_on_later(tmp_path):
    words = ("run", "--method", "dpsgd", "--seeds", "1,2", "--jobs", 2, *LONG[:-4], "--set", "train.epochs=8")
    with running(*words, cwd=tmp_path, output=subprocess.PIPE) as process:
        first, _ = wait_for(lambda: len(found := writers(tmp_path)) == 2 and found, process)
        os.kill(first, signal.SIGKILL)
        said = process.communicate(timeout=120)[1]
    assert process.returncode == 1
    assert re.search(r"seed-\d: its process ended early \(killed by signal 9\); the same command goes on with it", said)
    assert len(scores(tmp_path)) == 1
    again = codecl(*words, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert len(scores(tmp_path)) == 2
    assert "complete already" in again.stdout


@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGKILL])
def test_no_run_is_left_behind(way, tmp_path):
    """By Ctrl-C all are interrupted, and say so once; where the first process is gone, they notice."""
    words = ("run", "--method", "dpsgd", "--seeds", "1,2,3", "--jobs", 2, *LONG)
    with running(*words, cwd=tmp_path, output=subprocess.PIPE) as process:
        both = wait_for(lambda: len(found := writers(tmp_path)) == 2 and found, process)
        wait_for(lambda: len([*tmp_path.glob("runs/*/*/checkpoint")]) == 2, process)
        process.send_signal(way)
        process.wait(60)
        deadline = time.monotonic() + 60
        while any(map(alive, both)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        said = process.stderr.read()
    if way == signal.SIGINT:
        assert process.returncode == INTERRUPTED
        assert said.count("interrupted") == 1
        assert "codecl: interrupted; 2 runs were under way; the same command goes on" in said
    statuses = [json.loads(path.read_text())["status"] for path in tmp_path.rglob("metrics.json")]
    assert statuses in ([], ["partial"], ["partial", "partial"])  # none before a task ended
    assert not locked(tmp_path)


def test_their_data_may_be_read_by_processes_of_their_own(tmp_path):
    (tmp_path / "mine.py").write_text(STREAM)
    settings = (
        "data.stream=mine.py:stream",
        "data.loading=stream",
        "data.workers=1",
        "model=mlp",
        "train.batch_size=5",
    )
    words = [word for setting in settings for word in ("--set", setting)]
    words += ["--agents", "2", "--set", "train.epochs=1"]
    done = codecl("run", "--method", "stl", "--seeds", "1,2", "--jobs", 2, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(scores(tmp_path)) == 2


def test_a_warning_is_shown_once(tmp_path):
    words = [sys.executable, "-m", "codecl", "run", "--seeds", "1,2", "--method", "dpsgd", "--jobs", "2", *SHORT]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert lines
    assert len({*lines}) == len(lines)
    assert all(line.startswith("codecl: ") for line in lines)


def test_what_cannot_be_is_refused(cli, tmp_path):
    done = cli("run", "--jobs", "0", cwd=tmp_path)
    assert done.returncode == 2
    assert "--jobs" in done.stderr
