"""`codecl plan`: tables, JSON, one line for what cannot be planned."""

import json

import pytest

TINY = ("--method", "codec", "--set", "data.tasks=2", "--set", "train.epochs=1", "--set", "train.batch_size=50")


def test_topologies_side_by_side(cli, tmp_path):
    done = cli("plan", "quickstart", "--topology", "ring,torus,exponential", "--agents", "16", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    (head,) = [line for line in done.stdout.splitlines() if "codec, ring16" in line]
    assert "codec, torus16" in head
    assert "dpsgd, exponential16" in head
    assert "warning: mixing: ring takes 119 rounds" in done.stdout
    assert "warning: lr: mixing before the step is stable only while lr × curvature is below 0.40 on torus" in (
        done.stdout
    )
    assert list(tmp_path.iterdir()) == []  # nothing was run


def test_json_says_what_the_run_then_records(cli, tmp_path):
    assert cli("run", *TINY, "--quiet", cwd=tmp_path).returncode == 0
    done = cli("plan", *TINY, "--like", "runs", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (planned,) = json.loads(done.stdout)
    (file,) = tmp_path.rglob("metrics.json")
    traffic = json.loads(file.read_text())["traffic"]
    assert planned["known"] == "exact"
    for name in ("train_bytes", "boundary_bytes", "full_bytes"):
        assert planned[name] == traffic[name]


def test_the_tasks_of_one_plan_with_times(cli, tmp_path):
    words = ("--measure", "--device", "cpu", "--bandwidth", "10Mbit")
    done = cli("plan", *TINY, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "clothes" in done.stdout
    assert "a step of all agents here" in done.stdout
    (planned,) = json.loads(cli("plan", *TINY, *words, "--json", cwd=tmp_path).stdout)
    steps = sum(task["steps"] * task["epochs"] for task in planned["tasks"])
    assert planned["train_s"] == pytest.approx(planned["ms_per_step"] * steps / 1000)
    assert planned["messages_s"] > 0


def refused(cli, folder, *words, code=2, **env):
    done = cli("plan", *words, cwd=folder, **env)
    assert done.returncode == code
    assert done.stdout == ""
    (line,) = done.stderr.strip().splitlines()
    return line


def test_what_cannot_be_planned_is_one_line(cli, tmp_path):
    assert "there is no" in refused(cli, tmp_path, "split-cifar100", code=3, CODECL_DATA=str(tmp_path))
    assert "is not a bandwidth; write 10Mbit" in refused(cli, tmp_path, "--bandwidth", "10MB")
    assert "no such folder" in refused(cli, tmp_path, "--like", "nowhere", code=3)
    assert "hypercube needs a power of two" in refused(cli, tmp_path, "--topology", "hypercube", "--agents", "6")
    assert "train.batch_size: 600" in refused(cli, tmp_path, "--set", "train.batch_size=600")


def test_a_run_of_another_method_is_not_like_it(cli, tmp_path):
    assert cli("run", *TINY, "--quiet", cwd=tmp_path).returncode == 0
    line = refused(cli, tmp_path, *TINY, "--method", "dpsgd", "--like", "runs")
    assert "is a run of codec, which is not planned" in line
    both = cli("plan", *TINY, "--method", "codec,dpsgd", "--like", "runs", "--json", cwd=tmp_path)
    assert [planned["known"] for planned in json.loads(both.stdout)] == ["exact", "exact"]
