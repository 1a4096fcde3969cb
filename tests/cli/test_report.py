"""`codecl report` and `codecl figures`: runs -> a page and pictures."""

import csv
import json
import re
import shutil
import time

import pytest

from tests.cli.test_cli import failed
from tests.problems import recorded_run

SMALL = ("--set", "train.epochs=2", "--set", "data.tasks=2", "--set", "train.batch_size=20")
NAMES = ("figure-2-consensus", "figure-3-compression", "figure-7-loss")
KINDS = ("svg", "png", "csv")


def data_of(path):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(encoding="utf-8"))
    return json.loads(found[1])["sections"]


def test_a_page_and_every_figure_as_three_files(cli, recorded, tmp_path):
    done = cli("report", str(recorded), "--out", "out", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    page = tmp_path / "out" / "report.html"
    assert re.fullmatch(r"out/report\.html  \d+ kB", done.stdout.splitlines()[-1])
    assert "4 runs of 2 configurations" in page.read_text(encoding="utf-8")
    sections = data_of(page)
    figures = sum(len(section["figures"]) for section in sections)
    names = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    assert len(names) == 3 * figures
    assert {"consensus.svg", "consensus.png", "consensus.csv"} <= names
    assert sum(name.startswith("matrix--codec-ring-4") for name in names) == 3
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"report.html", "figures"}


def test_the_page_has_the_accuracies_that_were_recorded(cli, recorded, tmp_path):
    folders = [str(recorded_run(recorded, method)) for method in ("codec", "dpsgd")]
    assert cli("report", *folders, "--no-figures", cwd=tmp_path).returncode == 0
    assert not (tmp_path / "report" / "figures").exists()
    matrix = next(section for section in data_of(tmp_path / "report" / "report.html") if section["key"] == "matrix")
    shown = next(figure for figure in matrix["figures"] if "dpsgd" in figure["of"])["values"]
    run = json.loads((recorded_run(recorded, "dpsgd") / "metrics.json").read_text())
    for row, expected in zip(shown, run["accuracy_matrix"], strict=True):
        assert row == [None if value is None else pytest.approx(value, rel=1e-5) for value in expected]


def test_a_broken_run_is_left_out_and_said(cli, copied, tmp_path):
    broken = recorded_run(copied, "dpsgd")
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


def test_a_place_that_cannot_be_written_is_one_line(cli, recorded, tmp_path):
    (tmp_path / "report").write_text("a file")
    line = failed(cli("report", str(recorded), "--no-figures", cwd=tmp_path), 2)
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


def test_the_trade_off_as_a_table_with_commands_and_figures(cli, recorded, tmp_path):
    done = cli("frontier", str(recorded), "--commands", "--out", "out", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for method in ("codec", "dpsgd"):
        assert re.search(rf"{method} +2 +\d+\.\d\d ± \d\.\d\d .* MB +3\.3 ", done.stdout)
        again = f"codecl run quickstart --method {method} --seeds 1,2 --set data.tasks=2 --set train.epochs=2"
        assert f"{again} --set train.batch_size=20\n" in done.stdout
    assert "best: no other configuration has at least this ACC" in done.stdout
    names = {f"frontier-{name}.{kind}" for name in ("bytes", "kept") for kind in KINDS}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    assert {f"out/{name}" for name in names} <= {*done.stdout.splitlines()}
    made = list(csv.DictReader((tmp_path / "out" / "frontier-bytes.csv").read_text().splitlines()))
    assert {row["series"] for row in made} == {"codec", "dpsgd"}


def test_the_trade_off_for_machines(cli, recorded, tmp_path):
    found = json.loads(cli("frontier", str(recorded), "--json", cwd=tmp_path).stdout)
    assert [row["method"] for row in found] == ["codec", "dpsgd"], "the one that sent less first"
    for row in found:
        runs = [
            json.loads((recorded_run(recorded, row["method"], seed) / "metrics.json").read_text()) for seed in (1, 2)
        ]
        assert row["acc"] == pytest.approx(sum(run["acc"] for run in runs) / 2)
        assert row["kept_percent"] == pytest.approx(100 * max(runs[0]["kept_by_task"]) / runs[0]["body"])
        assert row["command"].startswith("codecl run quickstart --method")
    (first, *_) = csv.DictReader(cli("frontier", str(recorded), "--format", "csv", cwd=tmp_path).stdout.splitlines())
    assert (float(first["sent_bytes"]), first["best"]) == (found[0]["sent_bytes"], "True")
    shown = cli("frontier", str(recorded), "--format", "markdown", "--commands", cwd=tmp_path).stdout
    assert found[0]["command"] in shown.splitlines()[2]


def test_a_trade_off_that_cannot_be_shown_is_one_line(cli, recorded, tmp_path):
    assert "nowhere: no such folder" in failed(cli("frontier", "nowhere", cwd=tmp_path), 3)
    assert "choose one" in failed(cli("frontier", str(recorded), "--json", "--format", "csv", cwd=tmp_path), 2)
    (tmp_path / "out").write_text("a file")
    line = failed(cli("frontier", str(recorded), "--format", "csv", "--out", "out", cwd=tmp_path), 2)
    assert line.startswith("codecl: out: out cannot be written")


def test_twelve_runs_of_a_thousand_epochs_are_small_and_soon_there(cli, recorded, tmp_path):
    source = recorded_run(recorded)
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


def test_every_kind_of_bad_folder_among_good_ones(cli, copied, tmp_path):
    """Broken, empty, foreign, of another version: named on the page and in a line each; partial and degraded: shown."""
    one, two = recorded_run(copied), recorded_run(copied, seed=2)
    (one / "metrics.json").unlink()  # killed
    (one / "events.jsonl").write_text((one / "events.jsonl").read_text()[:-200])
    (two / "metrics.json").write_text((two / "metrics.json").read_text().replace("complete", "degraded"))
    for name, file, text in (
        ("foreign", "metrics.json", '{"accuracy": 0.9}'),
        ("future", "metrics.json", '{"schema": 3}'),
        ("broken", "events.jsonl", "{\n{}\n"),
        ("begun", "config.yaml", "preset: x\n"),
    ):
        (copied / name / "seed-0").mkdir(parents=True)
        (copied / name / "seed-0" / file).write_text(text)
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
    assert "4 runs of 2 configurations" in text
    assert "partial" in text
    assert "degraded" in text


@pytest.fixture(scope="module")
def first(cli, tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    return folder, cli("figures", "quickstart", *SMALL, "--agents", "4,3", "--out", "drawn", cwd=folder)


def rows(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_runs_what_is_missing_and_draws_the_papers_figures(first):
    folder, done = first
    assert (done.returncode, done.stderr) == (0, "")
    files = [f"drawn/{name}.{kind}" for name in NAMES for kind in KINDS]
    assert done.stdout.splitlines()[-9:] == files
    assert all((folder / file).stat().st_size for file in files)
    assert "[5/5]" in done.stdout, "codec and dpsgd with a cosine schedule, codec of 4 and 3 agents, codec-full"
    assert len(list((folder / "runs").glob("quickstart-*/seed-0/metrics.json"))) == 5


def test_they_are_in_the_papers_form(first):
    folder, _ = first
    head, *consensus = rows(folder / "drawn" / "figure-2-consensus.csv")
    assert head == ["series", "epoch of the task", "consensus error"]
    assert [row[:2] for row in consensus] == [[f"task 2, {name}", at] for name in ("codec", "dpsgd") for at in "12"]
    _, *compression = rows(folder / "drawn" / "figure-3-compression.csv")
    assert [row[:2] for row in compression] == [
        [f"{agents} agents", task] for agents in (4, 3) for task in ("1 digits", "2 clothes")
    ]
    assert float(compression[0][2]) == 1 < float(compression[1][2])
    _, *loss = rows(folder / "drawn" / "figure-7-loss.csv")
    codec, full = loss[:2], loss[2:]
    assert (codec[0][0], full[0][0]) == ("task 2, codec", "task 2, codec-full")
    for ours, theirs in zip(codec, full, strict=True):
        assert float(ours[2]) == pytest.approx(float(theirs[2]), rel=1e-3), "compression loses nothing"


def test_complete_runs_are_shown_not_repeated(cli, first):
    folder, _ = first
    kept = {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("metrics.json")}
    done = cli("figures", *SMALL, "--agents", "4,3", "--out", "again", "--quiet", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 9
    assert kept == {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("metrics.json")}
    for path in (folder / "drawn").iterdir():
        assert (folder / "again" / path.name).read_bytes() == path.read_bytes()


def test_one_agent_alone_has_no_traffic_to_show(cli, tmp_path):
    done = cli("figures", *SMALL, "--agents", "1", "--quiet", "--set", "data.tasks=1", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [f"figures/figure-7-loss.{kind}" for kind in KINDS]
    assert [line.split(":")[1].strip() for line in done.stderr.splitlines()] == list(NAMES[:2])


def test_a_place_where_figures_cannot_be_written(cli, first, tmp_path):
    folder, _ = first
    (tmp_path / "file").write_text("")
    where = ("--runs", str(folder / "runs"), "--out", str(tmp_path / "file"), "--quiet")
    assert "cannot be written" in failed(cli("figures", *SMALL, "--agents", "4,3", *where, cwd=tmp_path), 2)


def test_one_of_them_runs_what_it_needs(cli, tmp_path):
    done = cli("figures", *SMALL, "--agents", "3", "--only", "compression", "--quiet", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"figures/figure-3-compression.{kind}" for kind in KINDS]
    (folder,) = tmp_path.glob("runs/*")
    assert folder.name.startswith("quickstart-codec-ring3")
    assert "--only: 'figure-3' is not one of consensus" in failed(cli("figures", "--only", "figure-3", cwd=tmp_path), 2)


@pytest.mark.parametrize("kept", ["metrics.json", "events.jsonl"])
def test_compression_is_drawn_from_metrics_or_from_events_alone(cli, first, tmp_path, kept):
    """Raw results keep no events, and metrics of older versions have no compression by task."""
    shutil.copytree(first[0] / "runs", tmp_path / "runs")
    for folder in tmp_path.glob("runs/*/*"):
        if kept == "metrics.json":
            (folder / "events.jsonl").unlink()
        else:
            metrics = json.loads((folder / "metrics.json").read_text())
            del metrics["traffic"]["cc_reference_by_task"]
            (folder / "metrics.json").write_text(json.dumps(metrics))
    done = cli("figures", *SMALL, "--agents", "4,3", "--only", "compression", "--quiet", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    drawn, before = (rows(path / "figure-3-compression.csv") for path in (tmp_path / "figures", first[0] / "drawn"))
    assert [row[2] for row in drawn] == [row[2] for row in before]
