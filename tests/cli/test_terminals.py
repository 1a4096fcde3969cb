"""What commands print on a real terminal of 80 and of 60 columns: whole words and numbers, no line too long."""

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.launching import ENTRY, on_a_terminal

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
TINY = ("--set", "train.epochs=1", "--set", "train.batch_size=100", "--set", "data.tasks=2")
BENCHMARKS = ROOT / "benchmarks"
CODEC, OTHER = (f"split-cifar100/split-cifar100-{name}" for name in ("codec-ring8", "codec-ring16"))


def on_terminal(columns: int, *words: str, cwd: Path) -> list[str]:
    """The lines of a command on a terminal of so many columns, also those that were overwritten."""
    code, shown = on_a_terminal([ENTRY, *words], cwd, columns, TERM="xterm-256color")
    assert code == 0, shown
    return re.split(r"[\r\n]+", CONTROL.sub("", shown))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("terminals")
    shown = on_terminal(60, "run", "--method", "codec,dpsgd", "--seeds", "1,2", *TINY, cwd=folder)
    return folder, shown


def check(lines: list[str], columns: int, *words: str) -> None:
    """`words` stand there whole, and nothing is cut or runs past the edge but what wraps anywhere: paths, warnings."""
    tables = [
        line
        for line in lines
        if not line.startswith(("codecl: ", "warning: ", "recorded in ", "A: ", "B: ", "configs "))
    ]
    assert max(map(len, tables)) <= columns, max(tables, key=len)
    text = "\n".join(lines)
    assert not re.search(r"\w…", text)
    shown = set(re.findall(r"[^\s·]+", text))
    assert {*words} <= shown, {*words} - shown


def test_a_run(runs):
    _, shown = runs
    results = shown[next(place for place, line in enumerate(shown) if line.startswith("results")) :]
    check(results, 60, "codec", "dpsgd", "ring", "seeds", "ACC", "BWT", "sent", "cc", "MB", "BWT:", "cc:")
    assert any(line.startswith("codecl: mixing: ring takes 7 rounds") for line in shown)


@pytest.mark.parametrize("columns", [pytest.param(80, marks=pytest.mark.long), 60])
def test_tables(runs, columns):
    folder, _ = runs
    check(on_terminal(columns, "table", "runs", cwd=folder), columns, "codec", "ring", "seeds", "ACC", "cc", "kept")
    paper = on_terminal(columns, "table", "split-cifar100", "--paper", cwd=BENCHMARKS)
    check(paper, columns, "split-cifar100", "53.84", "53.63", "+0.21", "cc_reference", "1.91", "1.85", "2.14")
    assert not re.search(r"\bCC\b", " ".join(paper))
    one = on_terminal(columns, "compare", CODEC, OTHER, cwd=BENCHMARKS)
    check(one, columns, "ACC", "53.84", "47.78", "less", "cc_reference", "kept")


@pytest.mark.parametrize("columns", [pytest.param(80, marks=pytest.mark.long), 60])
def test_plans(runs, columns):
    folder, _ = runs
    plan = on_terminal(columns, "plan", "--method", "codec", *TINY, cwd=folder)
    check(plan, columns, "digits", "clothes", "epochs", "training", "agreement", "links", "kept", "memory")
    check(on_terminal(columns, "plan", *TINY, cwd=folder), columns, "links", "memory", "cc:")


@pytest.mark.parametrize("columns", [pytest.param(80, marks=pytest.mark.long), 60])
def test_watching(runs, columns):
    folder, _ = runs
    check(on_terminal(columns, "watch", "runs", "--once", cwd=folder), columns, "complete", "ACC", "task", "2/2")
    (one, *_) = (folder / "runs").glob("*codec*/seed-1")
    check(
        on_terminal(columns, "watch", str(one), "--once", cwd=folder),
        columns,
        "complete",
        "learned",
        "digits",
        "sent",
        "cc",
    )
