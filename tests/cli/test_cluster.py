"""`codecl run` under a launcher gives what it gives alone."""

import json
import subprocess
import sys

import pytest

from tests.launching import run, variables

TINY = ("run", "--method", "codec", "--set", "train.epochs=1", "--set", "train.batch_size=25", "--set", "data.tasks=2")
EXACT = (*TINY, "--set", "dtype=float64", "--set", "train.execution=loop", "--mu")


def torchrun(ranks, *arguments, cwd):
    environment = {k: v for k, v in variables(0, 1, 0).items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += ["-m", "codecl", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


def recorded(folder):
    """What the one run folder in here holds: metrics without times, and the facts."""
    (path,) = folder.rglob("metrics.json")
    found = json.loads(path.read_text())
    iterations = found.pop("timing")["iterations"]
    return {**found, "iterations": iterations}, facts(path.parent)


def facts(folder):
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def test_torchrun_gives_the_metrics_of_one_process_and_prints_once(cli, tmp_path):
    alone, together = tmp_path / "alone", tmp_path / "together"
    for folder in (alone, together):
        folder.mkdir()
    one = cli(*EXACT, cwd=alone)
    two = torchrun(2, *EXACT, cwd=together)
    assert two.returncode == 0, two.stderr
    assert two.stdout.count("recorded in") == two.stdout.count("task 2/2") == one.stdout.count("task 2/2") == 1
    (ours, seen), (theirs, _) = recorded(together), recorded(alone)
    errors = [found.pop("consensus_error_by_task") for found in (ours, theirs)]
    assert errors[0] == pytest.approx(errors[1], rel=1e-9)
    constrained = [[[task["mean"], task["max"]] for task in found.pop("mu_by_task")] for found in (ours, theirs)]
    assert constrained[0] == [pytest.approx(task, rel=1e-9) for task in constrained[1]]
    assert ours == theirs
    assert (seen[0]["exchange"], seen[0]["ranks"]) == ("cluster", 2)
    assert (together / next(together.rglob("model")) / "task-2.safetensors").is_file()
    again = torchrun(2, *EXACT, cwd=together)
    assert "complete already, not repeated" in again.stdout
    assert again.returncode == 0


@pytest.mark.long
def test_the_way_of_running_is_chosen_by_the_leading_rank_for_all(tmp_path):
    done = run(3, ["-m", "codecl", *TINY, "--json", "--seeds", "1,2"], tmp_path)
    assert [code for code, *_ in done] == [0, 0, 0], done
    assert [bool(output) for _, output, _ in done] == [True, False, False]
    assert [run["seed"] for run in json.loads(done[0][1])] == [1, 2]
    assert done[1][2] == done[2][2] == ""
    for path in tmp_path.rglob("events.jsonl"):
        assert set(facts(path.parent)[0]["ms_per_step"]) == {"stacked", "loop"}
