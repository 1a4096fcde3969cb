"""`codecl figures`, as a user types it."""

import csv
import subprocess
import sys

import pytest

from tests.cli.test_cli import failed

SMALL = ("--set", "train.epochs=2", "--set", "data.tasks=2", "--set", "train.batch_size=20")
NAMES = ("figure-2-consensus", "figure-3-compression", "figure-7-loss")


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
    files = [f"drawn/{name}.{kind}" for name in NAMES for kind in ("svg", "png", "csv")]
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
        [f"{agents} agents", task] for agents in (4, 3) for task in ("digits", "clothes")
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
    for name in NAMES:
        for kind in ("svg", "png", "csv"):
            file = f"{name}.{kind}"
            assert (folder / "again" / file).read_bytes() == (folder / "drawn" / file).read_bytes()


def test_one_agent_alone_has_no_traffic_to_show(cli, tmp_path):
    done = cli("figures", *SMALL, "--agents", "1", "--quiet", "--set", "data.tasks=1", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [f"figures/figure-7-loss.{kind}" for kind in ("svg", "png", "csv")]
    assert [line.split(":")[1].strip() for line in done.stderr.splitlines()] == list(NAMES[:2])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nosuch",), "preset: 'nosuch' is unknown"),
        (("--agents", "x"), "--agents: 'x' is not a whole number"),
        (("--set", "train.epochs=0"), "train.epochs: 0 is not allowed"),
        (("--topology", "torus", "--agents", "5"), "agents: a torus is rows × columns"),
    ],
)
def test_a_mistake_is_one_line(cli, tmp_path, words, says):
    assert says in failed(cli("figures", *words, cwd=tmp_path), 2)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written(cli, first, tmp_path):
    folder, _ = first
    (tmp_path / "file").write_text("")
    where = ("--runs", str(folder / "runs"), "--out", str(tmp_path / "file"), "--quiet")
    assert "cannot be written" in failed(cli("figures", *SMALL, "--agents", "4,3", *where, cwd=tmp_path), 2)


def test_the_command_line_stays_light(tmp_path):
    code = "import sys, codecl, codecl.cli; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 0
