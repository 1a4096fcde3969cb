"""`codecl plan`: tables, JSON, one line for what cannot be planned."""

import json

import pytest

from tests.cli.test_cli import failed

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


@pytest.fixture(scope="module")
def ran(cli, tmp_path_factory):
    """The folder with the run that is planned."""
    folder = tmp_path_factory.mktemp("ran")
    assert cli("run", *TINY, "--quiet", cwd=folder).returncode == 0
    return folder


def test_json_says_what_the_run_then_records(cli, ran):
    done = cli("plan", *TINY, "--like", "runs", "--json", cwd=ran)
    assert done.returncode == 0, done.stderr
    (planned,) = json.loads(done.stdout)
    (file,) = ran.rglob("metrics.json")
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


def test_a_run_of_another_method_is_not_like_it(cli, ran):
    done = cli("plan", *TINY, "--method", "dpsgd", "--like", "runs", cwd=ran)
    assert "is a run of codec, which is not planned" in failed(done, 2)
    assert done.stdout == ""
    both = cli("plan", *TINY, "--method", "codec,dpsgd", "--like", "runs", "--json", cwd=ran)
    assert [planned["known"] for planned in json.loads(both.stdout)] == ["exact", "exact"]
