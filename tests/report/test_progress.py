"""`fit` shows how it goes on where somebody looks, and nothing elsewhere; what a callback gets."""

import io
import sys
import types
from contextlib import redirect_stderr
from pathlib import Path

import pytest
import torch

import codecl
from codecl.report.progress import in_notebook
from codecl.train.events import EpochEnded, Evaluated, RunStarted, Stepped, TaskOpened
from tests.problems import perceptron, tasks

SETTINGS = {"agents": 2, "topology": "complete", "train": {"epochs": 2, "batch_size": 8}}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def fit(out, **more):
    torch.manual_seed(0)
    stream = [task._replace(train=(task.train[0].float(), task.train[1])) for task in tasks(2)]
    stream = [task._replace(test=(task.test[0].float(), task.test[1])) for task in stream]
    return codecl.fit(perceptron(), stream, out=out, **SETTINGS | more)


@pytest.fixture
def terminal(monkeypatch):
    """What `fit` writes to a terminal: pytest puts its own stderr there between a fixture and a test."""
    shown = Terminal()
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    return shown


@pytest.fixture
def kernel(monkeypatch):
    """As in a notebook: IPython is there, and its shell has a kernel."""
    ipython = types.ModuleType("IPython")
    shell = types.SimpleNamespace(kernel=object())
    ipython.get_ipython = lambda: shell
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    return shell


def test_nothing_is_printed_where_nobody_looks(tmp_path, capfd):
    fit(tmp_path)
    assert capfd.readouterr() == ("", "")


def test_a_terminal_shows_a_bar_and_keeps_a_line(tmp_path, capsys, terminal):
    with redirect_stderr(terminal):
        result = fit(tmp_path)
    shown = terminal.getvalue()
    assert "\x1b[" in shown, "it is drawn in its place"
    last = shown.splitlines()[-1]
    assert last.endswith(str(result.folder))
    assert "codec · task 2/2 · loss" in last
    assert f"ACC {result.metrics['acc']:.2f} %" in last
    assert capsys.readouterr().out == ""


def test_a_run_that_is_recorded_shows_no_bar(tmp_path, terminal):
    with redirect_stderr(terminal):
        fit(tmp_path, progress=False)
        assert not fit(tmp_path).trained
    assert terminal.getvalue() == ""


def test_a_notebook_has_one_line_that_is_written_over(tmp_path, kernel, capsys):
    result = fit(tmp_path)
    out, err = capsys.readouterr()
    assert err == ""
    assert out.count("\n") == 1
    assert out.startswith("\r")
    lines = out.strip().split("\r")
    assert any("task 1/2" in line for line in lines)
    assert lines[-1].strip().endswith(str(result.folder))


def test_what_fails_leaves_the_line_as_it_was(tmp_path, kernel, capsys):
    def stop(event):
        if event.kind == "eval":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, on_event=stop)
    assert capsys.readouterr().out.endswith("\n")


def test_a_kernel_is_told_without_an_import(monkeypatch, kernel):
    assert in_notebook()
    kernel.kernel = None
    assert not in_notebook()
    monkeypatch.delitem(sys.modules, "ipykernel")
    assert not in_notebook()


def test_events_are_what_the_page_says(tmp_path):
    """Callbacks get typed records: kinds, fields, order."""
    seen = []
    fit(tmp_path, on_event=seen.append)
    kinds = [event.kind for event in seen if not isinstance(event, Stepped)]
    assert kinds == 2 * ["task", "epoch", "epoch", "agree", "grow", "flood", "eval"]
    assert not [event for event in seen if isinstance(event, RunStarted)], "it is recorded, before any"
    opened = [event for event in seen if isinstance(event, TaskOpened)]
    assert [event.name for event in opened] == ["t0", "t1"]
    epochs = [event for event in seen if isinstance(event, EpochEnded)]
    assert all(len(event.loss) == 2 and event.bytes > 0 for event in epochs)
    assert len([event for event in seen if isinstance(event, Evaluated)][-1].accuracy) == 2


class Fake:
    """A run of Weights & Biases, as far as the example needs it."""

    def __init__(self):
        self.logged = []

    def log(self, values):
        self.logged.append(values)


def test_the_example_for_weights_and_biases_logs(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "events.md").read_text(encoding="utf-8")
    code = text.split("```python\n")[1].split("```")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    names = {}
    exec(code, names)
    run = Fake()
    result = fit(tmp_path, on_event=names["log_to"](run))
    losses = [values["loss"] for values in run.logged if "loss" in values]
    assert len(losses) == 4
    assert run.logged[-1]["acc"] == pytest.approx(result.metrics["acc"])
    assert run.logged[-1]["score/1"] == result.metrics["accuracy_matrix"][-1][0]
