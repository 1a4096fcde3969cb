"""Another score than accuracy is shown by its name, and plain, everywhere."""

import json
from datetime import datetime

import pytest
import torch

import codecl
from codecl.report import compare, frontier, tables
from codecl.report.configurations import finished, gather, group
from codecl.report.headline import headline
from codecl.report.page import page_of, render
from codecl.report.score_words import ScoreWords
from codecl.runs.metrics import metrics
from codecl.runs.reader import read_events
from codecl.runs.schema import Labels
from codecl.train.events import RunStarted, of_type
from tests.train.test_objective import TRAIN, body, regression


@pytest.fixture(scope="module")
def curves(tmp_path_factory):
    """codec and dpsgd on numbers."""
    out = tmp_path_factory.mktemp("curves")
    for method in ("codec", "dpsgd"):
        torch.manual_seed(0)
        stream = [regression(number, flat=True) for number in (1, 2)]
        common = {"agents": 3, "topology": "complete", "growth": {"threshold": 0.8}, "train": TRAIN | {"epochs": 6}}
        codecl.fit(body(1), stream, loss="mse", method=method, out=out, **common)
    return out


def test_metrics_say_the_score(curves):
    for run in finished([curves]):
        assert json.loads((run.folder / "metrics.json").read_text())["score"] == "r2"
        events = read_events(run.folder)
        (started,) = of_type(events, RunStarted)
        assert metrics(events, Labels.of(started), "complete", run.metrics.timing.wall_s) == run.metrics


def test_tables_show_it_plainly(curves):
    runs = finished([curves])
    sheet = tables.results(runs)
    titles = [column.title for column in sheet.columns]
    assert "ACC (r2)" in titles
    assert "BWT (r2)" in titles
    assert "accuracy" not in sheet.note
    assert {record["score"] for record in sheet.records} == {"r2"}
    cell = sheet.columns[titles.index("ACC (r2)")].cells[0]
    assert float(cell) == pytest.approx(runs[0].metrics.acc, rel=1e-3)
    words = tables.in_words([run.metrics for run in runs])
    assert "points" not in words
    assert tables.forgetting([run.metrics for run in runs], ["a", "b"]).title.startswith("r2: when learned")


def test_the_page_and_its_headline(curves):
    runs = gather([curves])
    (first, *_), _ = headline(group(runs.runs))
    assert "r2 " in first
    assert "points" not in first
    assert "guessing" not in first
    page = page_of(runs, None, datetime(2024, 1, 1))
    titles = [section.title for section in page.sections]
    assert "Mean r2" in titles
    assert "R2 matrix" in titles
    assert not [title for title in titles if "ccuracy" in title]
    (matrix,) = [section for section in page.sections if section.title == "R2 matrix"]
    assert next(iter(matrix.figures.values())).unit == ""
    assert "accuracy in %" not in render(page)


def test_runs_of_other_scores_do_not_compare(curves, recorded):
    one, other = finished([curves])[0], finished([recorded])[0]
    comparison = compare.compare(one.folder, other.folder)
    assert not {"acc", "bwt", "accuracy_1"} & {quantity.key for quantity in comparison.quantities}
    assert "A is scored with r2, B with accuracy: their scores do not compare" in compare.about(comparison)
    alike = compare.compare(*[run.folder for run in finished([curves])])
    assert "ACC (r2)" in [quantity.title for quantity in alike.quantities]
    titles = [column.title for column in tables.results([one, other]).columns]
    assert titles[titles.index("ACC") - 1] == "score"
    assert "ACC (r2)" in [column.title for column in frontier.sheet(frontier.choices(finished([curves]))).columns]
    with pytest.raises(codecl.ConfigError, match="several benchmarks"):
        frontier.choices([one, other])


def test_the_command_shows_it(curves, cli):
    shown = cli("table", str(curves), cwd=curves)
    assert "ACC (r2)" in shown.stdout
    watched = cli("watch", str(finished([curves])[0].folder), "--once", cwd=curves)
    assert "learned (r2)" in watched.stdout
    assert "r2 " in watched.stdout


@pytest.mark.parametrize(
    ("score", "title", "said", "points"),
    [
        ("accuracy", "ACC %", "71.2 %", "71.2 points"),
        ("label-accuracy", "ACC (label-accuracy) %", "71.2 %", "71.2 points"),
        ("f1", "ACC (f1)", "71.23", "71.23"),
        ("mine.py:rmse", "ACC (rmse)", "71.23", "71.23"),
    ],
)
def test_words(score, title, said, points):
    labels = Labels(benchmark="b", method="m", agents=1, topology="ring", seed=0, tasks=1, score=score)
    words = ScoreWords.of([labels])
    assert (words.title("ACC"), words.said(71.23), words.points(71.23)) == (title, said, points)
