"""`codecl report` through the entry point: runs -> a page and pictures."""

import json
import re
import shutil
import time

import pytest

TINY = ("--set", "train.epochs=2", "--set", "data.tasks=2", "--quiet", "--json")


@pytest.fixture(scope="module")
def recorded(cli, tmp_path_factory):
    """Two configurations, one of them of two seeds."""
    folder = tmp_path_factory.mktemp("recorded")
    for more in (("--seeds", "1,2", "--method", "codec"), ("--method", "dpsgd")):
        done = cli("run", *TINY, *more, cwd=folder, OMP_NUM_THREADS="1")
        assert done.returncode == 0, done.stderr
    return folder / "runs"


def data_of(path):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(encoding="utf-8"))
    return json.loads(found[1])["sections"]


def test_a_page_and_every_figure_as_three_files(cli, recorded, tmp_path):
    done = cli("report", str(recorded), "--out", "out", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    page = tmp_path / "out" / "report.html"
    assert re.fullmatch(r"out/report\.html  \d+ kB", done.stdout.splitlines()[-1])
    assert "3 runs of 2 configurations" in page.read_text(encoding="utf-8")
    sections = data_of(page)
    figures = sum(len(section["figures"]) for section in sections)
    names = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    assert len(names) == 3 * figures
    assert {"consensus.svg", "consensus.png", "consensus.csv"} <= names
    assert sum(name.startswith("matrix--codec-ring-4") for name in names) == 3
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"report.html", "figures"}


def test_the_page_has_the_accuracies_that_were_recorded(cli, recorded, tmp_path):
    assert cli("report", str(recorded), "--no-figures", cwd=tmp_path).returncode == 0
    assert not (tmp_path / "report" / "figures").exists()
    matrix = next(section for section in data_of(tmp_path / "report" / "report.html") if section["key"] == "matrix")
    shown = next(figure for figure in matrix["figures"] if "dpsgd" in figure["of"])["values"]
    run = json.loads(next(recorded.glob("*dpsgd*/seed-*/metrics.json")).read_text())
    for row, expected in zip(shown, run["accuracy_matrix"], strict=True):
        assert row == [None if value is None else pytest.approx(value, rel=1e-5) for value in expected]


def test_a_broken_run_is_left_out_and_said(cli, recorded, tmp_path):
    shutil.copytree(recorded, tmp_path / "runs")
    broken = next((tmp_path / "runs").glob("*dpsgd*/seed-*"))
    (broken / "metrics.json").write_text("{")
    done = cli("report", "runs", "--no-figures", cwd=tmp_path)
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"codecl: left out {broken.relative_to(tmp_path)}: ")
    assert "Left out" in (tmp_path / "report" / "report.html").read_text(encoding="utf-8")


def test_a_report_is_replaced_and_what_lies_beside_it_stays(cli, recorded, tmp_path):
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "report.html").write_text("old")
    (tmp_path / "report" / "notes.txt").write_text("mine")
    assert cli("report", str(recorded), "--no-figures", cwd=tmp_path).returncode == 0
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"report.html", "notes.txt"}
    assert (tmp_path / "report" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "report" / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(("flags", "shown"), [((), False), (("--paper",), True), (("--no-paper",), False)])
def test_the_paper_stands_beside_where_it_is_asked_for(cli, recorded, tmp_path, flags, shown):
    assert cli("report", str(recorded), "--no-figures", *flags, cwd=tmp_path).returncode == 0
    assert ("paper ACC" in (tmp_path / "report" / "report.html").read_text(encoding="utf-8")) == shown


def test_no_runs_at_all_is_one_line(cli, tmp_path):
    done = cli("report", "nowhere", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    (line,) = done.stderr.splitlines()
    assert "nowhere" in line
    assert not (tmp_path / "report").exists()


def test_a_place_that_cannot_be_written_is_one_line(cli, recorded, tmp_path):
    (tmp_path / "report").write_text("a file")
    done = cli("report", str(recorded), "--no-figures", cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("codecl: --out: report cannot be written")


def long(folder, epochs):
    """The events of a run, as if each task had so many epochs."""
    out = []
    for line in (folder / "events.jsonl").read_text().splitlines():
        fact = json.loads(line)
        more = range(epochs) if fact["kind"] == "epoch" and fact["epoch"] == 0 else ()
        kept = [] if fact["kind"] == "epoch" else [fact]
        out += [*kept, *(fact | {"epoch": epoch, "step": (epoch + 1) * fact["step"]} for epoch in more)]
    return "".join(json.dumps(fact) + "\n" for fact in out)


def test_twelve_runs_of_a_thousand_epochs_are_small_and_soon_there(cli, recorded, tmp_path):
    source = next(recorded.glob("*codec*/seed-1"))
    events, found = long(source, 500), json.loads((source / "metrics.json").read_text())
    for number in range(12):
        folder = tmp_path / "runs" / f"quickstart-codec{number}-ring4" / "seed-1"
        folder.mkdir(parents=True)
        (folder / "events.jsonl").write_text(events)
        (folder / "metrics.json").write_text(json.dumps(found | {"method": f"codec{number}"}))
    began = time.monotonic()
    done = cli("report", "runs", "--no-figures", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - began < 20
    page = tmp_path / "report" / "report.html"
    assert page.stat().st_size < 3e6
    assert "12 runs of 12 configurations" in page.read_text(encoding="utf-8")


def test_every_kind_of_bad_folder_among_good_ones(cli, recorded, tmp_path):
    """Broken, empty, foreign, of another version: named on the page and in a line each; partial and degraded: shown."""
    runs = tmp_path / "runs"
    shutil.copytree(recorded, runs)
    one, two = sorted(runs.glob("*codec*/seed-*"))
    (one / "metrics.json").unlink()  # killed
    (one / "events.jsonl").write_text((one / "events.jsonl").read_text()[:-200])
    (two / "metrics.json").write_text((two / "metrics.json").read_text().replace("complete", "degraded"))
    for name, file, text in (
        ("foreign", "metrics.json", '{"accuracy": 0.9}'),
        ("future", "metrics.json", '{"schema": 3}'),
        ("broken", "events.jsonl", "{\n{}\n"),
        ("begun", "config.yaml", "preset: x\n"),
    ):
        (runs / name / "seed-0").mkdir(parents=True)
        (runs / name / "seed-0" / file).write_text(text)
    (tmp_path / "empty").mkdir()
    done = cli("report", "runs", "empty", "nowhere", "--no-figures", cwd=tmp_path)
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    bad = ("foreign", "future", "broken", "begun", "empty", "nowhere")
    assert len(lines) == len(bad)
    assert all(line.startswith("codecl: left out ") for line in lines)
    text = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    for name in bad:
        assert sum(name in line for line in lines) == 1, lines
        assert name in text
    assert "3 runs of 2 configurations" in text
    assert "partial" in text
    assert "degraded" in text
