"""Data sets that are not the originals: every result that was got with them names them."""

import json
from dataclasses import replace

import pytest

from codecl.data import store
from codecl.data.catalogue import CATALOGUE
from codecl.data.verify import content_digest
from codecl.report.tables import NOTE
from codecl.runs.reader import read_events, read_run
from codecl.runs.schema import Metrics
from tests.cli.test_cli import TINY
from tests.data.canonical import arrays
from tests.problems import change_metrics

SAYS = "mnist: not the original: made up [/for] a test"
NEAR = {"status": "near", "reason": SAYS.removeprefix("mnist: ")}


@pytest.fixture
def run(cli, tmp_path, monkeypatch):
    """A run on a made up mnist that the catalogue knows as a near copy, and on a data set of one's own."""
    monkeypatch.setenv("CODECL_DATA", str(tmp_path / "data"))
    made = arrays("mnist", 60, 20)
    for name in ("mnist", "mine"):
        store.write(name, made)
    known = {"counts": ((60, 20),), "near_copies": {content_digest(made): "made up [/for] a test"}}
    monkeypatch.setitem(CATALOGUE, "mnist", replace(CATALOGUE["mnist"], **known))
    words = ("--method", "codec", "--agents", "2", "--set", "data.stream=split(mnist, 5) + whole(mine)")
    done = cli("run", *TINY, *words, "--set", "train.batch_size=5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert SAYS in done.stdout.splitlines()
    (path,) = (tmp_path / "runs").rglob("metrics.json")
    return path.parent


def test_a_run_records_them(run):
    assert json.loads((run / "metrics.json").read_text())["data_sets"] == {"mnist": NEAR}
    assert read_events(run)[0].record()["data_sets"] == {"mnist": NEAR}
    whole = read_run(run).metrics
    assert whole.not_original == {"mnist": NEAR["reason"]}
    change_metrics(run, status="partial")
    assert read_run(run).metrics.data_sets == whole.data_sets, "also of a run that goes on"


def test_tables_and_the_page_name_them(run, cli, tmp_path):
    shown = {form: cli("table", "runs", "--format", form, cwd=tmp_path).stdout for form in ("text", "markdown", "csv")}
    assert shown["text"].splitlines()[-1] == SAYS
    assert shown["markdown"].endswith(f"|\n\n{NOTE}\n\n{SAYS}\n")
    assert shown["csv"].splitlines()[1].endswith(f",{SAYS}")
    beside = cli("table", "runs", "--paper", "--format", "markdown", cwd=tmp_path).stdout
    assert beside.split("\n\n")[-1] == f"{SAYS}\n", "below the note, in a paragraph of its own"
    assert "not the original: made up" in cli("table", "runs", "--format", "latex", cwd=tmp_path).stdout
    assert json.loads(cli("table", "runs", "--json", cwd=tmp_path).stdout)[0]["data_sets"] == {"mnist": NEAR}
    assert SAYS in cli("frontier", "runs", cwd=tmp_path).stdout.splitlines()
    assert cli("report", "runs", "--no-figures", cwd=tmp_path).returncode == 0
    assert f'<p class="note">{SAYS}</p>' in (tmp_path / "report" / "report.html").read_text()


def test_a_comparison_says_whose_they_are(run, cli, tmp_path):
    for name in ("other", "before"):
        (tmp_path / name).mkdir()
        for file in ("metrics.json", "config.yaml"):
            (tmp_path / name / file).write_text((run / file).read_text())
    change_metrics(tmp_path / "before", data_sets=None)
    lines = {b: cli("compare", str(run), b, cwd=tmp_path).stdout.splitlines() for b in ("other", "before")}
    assert SAYS in lines["other"]
    assert f"A: {SAYS}" in lines["before"]
    assert SAYS not in lines["before"]


def test_of_what_was_recorded_before_and_of_originals_nothing_is_said(run, cli, tmp_path):
    for data_sets in (None, {"mnist": {"status": "ok", "reason": "the original's"}}):
        change_metrics(run, data_sets=data_sets)
        assert "original" not in cli("table", "runs", cwd=tmp_path).stdout
    change_metrics(run, data_sets={"mnist": {"status": "wrong", "reason": "class 3 has no test images"}})
    assert "mnist: class 3 has no test images" in cli("table", "runs", cwd=tmp_path).stdout.splitlines()
    dumped = json.loads((run / "metrics.json").read_text()) | {"data_sets": None}
    assert "data_sets" not in Metrics(**dumped).dump()


def test_a_run_that_goes_on_with_one_names_it(run, cli, tmp_path):
    """As a run would that had all tasks from the start."""
    tiny = (*TINY, "--method", "codec", "--agents", "2", "--set", "train.batch_size=5", "--json")
    first = json.loads(cli("run", *tiny, "--set", "data.stream=whole(mine)", cwd=tmp_path).stdout)[0]
    assert "data_sets" not in first
    more = json.loads(cli("extend", first["folder"], "--task", "split(mnist, 5)", "--json", cwd=tmp_path).stdout)[0]
    assert more["data_sets"] == {"mnist": NEAR}
