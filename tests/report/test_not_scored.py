"""Tasks that were not scored again, since their test data was not there: every reader copes, and says so."""

import json

import pytest

import codecl
from codecl.report.compare import compare
from codecl.report.configurations import gather, group
from codecl.report.figures import learned
from codecl.report.headline import headline
from codecl.runs.follow import Follower
from codecl.runs.metrics import acc, bwt, not_scored
from tests.problems import perceptron, tasks

SMALL = {"train": {"epochs": 1, "batch_size": 4}, "growth": {"threshold": 0.9, "images": 12}, "dtype": "float64"}
SAYS = "not scored again at the end: tasks 1; ACC and BWT are over the others"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three tasks, of which the first was scored no more after the second."""
    out, stream = tmp_path_factory.mktemp("runs"), tasks(3)
    first = codecl.Learner(perceptron(), out=out / "learner", **SMALL)
    for task in stream[:2]:
        first.learn(task)
    codecl.Learner.open(first.folder, perceptron()).learn(stream[2], test_again=stream[1:2])
    codecl.fit(perceptron(), stream, out=out / "fit", seed=1, **SMALL)
    return out


def test_acc_and_bwt_are_over_what_was_scored():
    rows = [[90.0], [80.0, 70.0], [None, 60.0, 50.0]]
    assert acc(rows) == 55
    assert bwt(rows) == -10
    assert not_scored(rows, each_task_alone=False) == [0]
    assert acc([[90.0], [None, 70.0]], each_task_alone=True) == 80
    assert not_scored([[90.0], [None, 70.0]], each_task_alone=True) == []
    assert bwt([[90.0], [None, 70.0]]) is None


def test_metrics_say_which(runs):
    (path,) = (runs / "learner").rglob("metrics.json")
    metrics = json.loads(path.read_text())
    assert metrics["not_scored"] == [0]
    row = metrics["accuracy_matrix"][-1]
    assert row[0] is None
    assert metrics["acc"] == sum(row[1:]) / 2


def test_tables_say_so(runs, cli):
    shown = cli("table", "learner", cwd=runs).stdout
    assert shown.rstrip().endswith(f"fit, codec, ring 4, seed 0: {SAYS}")
    assert SAYS in cli("table", "learner", "--format", "csv", cwd=runs).stdout
    assert "not scored" not in cli("table", "fit", cwd=runs).stdout


def test_the_page_and_its_first_words_say_so(runs, cli, tmp_path):
    configurations = group(gather([runs / "learner"]).runs)
    assert "on 2 of its 3 tasks (the others were not scored again)" in headline(configurations).results[0]
    figure = learned.matrix(configurations[0])
    assert figure.values[2][0] is None
    assert "the task was not scored again" in figure.about
    assert "to 0.0 %" not in learned.forgetting(configurations[0]).about  # what is not known was not forgotten
    done = cli("report", str(runs), "--out", ".", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert SAYS in (tmp_path / "report.html").read_text()


def test_scores_over_other_tasks_are_not_compared(runs):
    comparison = compare(runs / "learner", runs / "fit")
    assert not {"acc", "bwt"} & {one.key for one in comparison.quantities}
    assert {"cc", "accuracy_2"} <= {one.key for one in comparison.quantities}


def test_watching_shows_them_as_unknown(runs, cli):
    shown = cli("watch", str(next((runs / "learner").glob("*/*"))), cwd=runs).stdout
    assert "(2 of 3 tasks, others not scored again)" in shown
    (run,) = Follower(next((runs / "learner").glob("*/*"))).look().runs
    assert run.parts[0].progress.known[0] is None
