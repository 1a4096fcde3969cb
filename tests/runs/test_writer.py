"""The three ways to open a run folder, and what is read of it again."""

import os
import stat
import subprocess

import pytest

from codecl import api
from codecl.errors import ConfigError
from codecl.runs.machine import environment
from codecl.runs.reader import read_events, read_metrics, read_run
from codecl.runs.schema import Labels
from codecl.runs.writer import RunWriter, labels_of
from codecl.train.events import Evaluated, MemberChanged, RunEnded, RunStarted, Stepped
from tests.conftest import ROOT
from tests.problems import CPU, config, perceptron, tasks

MORE = {"edges": [(0, 1)], "contraction": 0.5, "digest": "d", "execution": "loop"}
LABELS = labels_of(config(), 2, agent=1)


@pytest.fixture
def folder(tmp_path):
    """A run that was stopped after its first task."""
    writer = RunWriter.new(tmp_path / "run", config(), LABELS)
    writer.event(LABELS.started(**MORE))
    writer.event(Stepped(task=0, epoch=0, loss_A="live"))
    writer.event(Evaluated(task=0, accuracy=[50.0], seconds=1.0, state="live"))
    written = writer.close("partial")
    assert read_events(writer.folder) == writer.events, "without live objects"
    assert read_metrics(writer.folder) == written
    return writer.folder


@pytest.mark.parametrize("labels", [LABELS, labels_of(config(), 2, each_task_alone=True)])
def test_the_first_event_says_what_a_run_is_called(labels):
    assert Labels.of(labels.started(**MORE)) == labels


def test_new_leaves_nothing_of_before(folder):
    writer = RunWriter.new(folder, config(), LABELS)
    assert (writer.events, read_events(folder)) == ([], [])
    assert not (folder / "metrics.json").exists()
    with pytest.raises(ConfigError, match="another process is writing this run"):
        RunWriter.append(folder, config(), LABELS)
    writer.close("partial")


def test_append_leaves_all_but_half_a_line(folder):
    with (folder / "events.jsonl").open("a") as file:
        file.write('{"kind": "eva')
    writer = RunWriter.append(folder, config(), LABELS)
    writer.event(MemberChanged(agent=1, state="restarted"))
    writer.close("degraded")
    run = read_run(folder)
    assert [type(event) for event in run.events] == [RunStarted, Evaluated, RunEnded, MemberChanged, RunEnded]
    assert (run.metrics.status, run.metrics.accuracy_matrix) == ("degraded", [[50.0, None]])


def test_resume_without_a_checkpoint_is_new(folder):
    writer = RunWriter.resume(folder, config(), LABELS, CPU)
    assert (writer.events, writer.point) == ([], None)
    writer.close("partial")


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_the_environment_names_the_commit():
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert environment(CPU)["commit"].startswith(head.strip())


def test_files_have_the_mode_that_the_user_wants(tmp_path):
    """Others of the group may read a run where the user's umask lets them."""
    before = os.umask(0o027)
    try:
        folder = api.run(
            config(preset="a"), module=perceptron(), tasks=tasks(1), out=tmp_path / "a", device="cpu"
        ).folder
    finally:
        os.umask(before)
    found = {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()}
    assert found == {0o640}
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_dir()} == {0o750}
