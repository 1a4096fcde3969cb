"""A learner: tasks that arrive one by one, in any process, end as a fit of all of them, without old training data."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from torch import nn

import codecl
from codecl import api
from codecl.errors import ConfigError, ConfigWarning, DataError
from codecl.runs.grid import preset, resolve
from codecl.runs.reader import BEFORE, find_runs
from tests.conftest import ROOT
from tests.faults.pupil import COUNT, MORE, learner
from tests.faults.test_resume import numbers, same
from tests.faults.victim import module
from tests.problems import tasks


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """By the number of tasks: what a fit of so many ends with."""
    out = tmp_path_factory.mktemp("whole")
    return {count: codecl.fit(module(), tasks(count), out=out, **MORE).folder for count in (2, 3, COUNT)}


def process(out, number, *options):
    words = [sys.executable, "-m", "tests.faults.pupil", str(out), str(number), *options]
    path = os.pathsep.join(sys.path)
    return subprocess.run(words, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}).returncode


def taught(out, count, **more):
    """A learner of so many tasks."""
    ours = codecl.Learner(module(), out=out, **MORE, **more)
    for task in tasks(count):
        ours.learn(task)
    return ours


@pytest.mark.slow
def test_five_processes_one_of_them_killed_end_as_one_run(whole, tmp_path):
    for number in range(COUNT):
        if number == 2:
            assert process(tmp_path, number, "kill") == -signal.SIGKILL
        assert process(tmp_path, number) == 0
    (folder,) = find_runs([tmp_path])
    same(numbers(folder), numbers(whole[COUNT]))


def test_five_learners_one_of_them_killed_end_as_one_run(whole, tmp_path):
    """Each opens the folder that the one before it left, and knows nothing else."""
    stream = tasks(COUNT)
    for number, task in enumerate(stream):
        if number == 1:
            assert process(tmp_path, number, "kill") == -signal.SIGKILL
        tests = {one.name: one.test for one in stream[:number]}
        learner(tmp_path, number).learn(task, test_again=tests)
    (folder,) = find_runs([tmp_path])
    same(numbers(folder), numbers(whole[COUNT]))
    assert (folder / "config.yaml").read_text() == (whole[COUNT] / "config.yaml").read_text()
    assert {path.name for path in folder.iterdir()} == {path.name for path in whole[COUNT].iterdir()}


def test_a_folder_that_was_copied_learns_the_next_task_without_old_data(whole, tmp_path):
    first = taught(tmp_path / "here", 2)
    place = shutil.copytree(first.folder, tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "here")
    result = codecl.Learner.open(place, module()).learn(tasks(3)[2])
    assert result.folder == place
    ours, theirs = numbers(place), numbers(whole[3])
    same((None, [], ours[2]), (None, [], theirs[2]))
    row, full = (metrics["accuracy_matrix"][2] for metrics in (ours[0], theirs[0]))
    assert row == [None, None, full[2]]
    assert ours[0]["not_scored"] == [0, 1]
    assert (ours[0]["acc"], ours[0]["bwt"]) == (full[2], None)
    assert ours[0]["traffic"] == theirs[0]["traffic"]


def test_in_one_process_old_tasks_are_scored_again_by_themselves(whole, tmp_path):
    ours = taught(tmp_path, 3)
    same(numbers(ours.folder), numbers(whole[3]))
    assert ours.tasks == ["t0", "t1", "t2"]
    assert torch.equal(ours.model(0)[0].weight, ours.model(2)[0].weight)
    assert not torch.equal(ours.model(0)[7].weight, ours.model(2)[7].weight)


def test_a_task_that_is_learned_is_not_learned_twice(tmp_path):
    ours, stream = taught(tmp_path, 2), tasks(2)
    before = (ours.folder / "events.jsonl").read_bytes()
    again = codecl.Learner(module(), out=tmp_path, **MORE)  # the whole script once more
    for task in stream:
        result = again.learn(task)
        assert not result.trained
        assert result.metrics == ours.metrics
    assert (ours.folder / "events.jsonl").read_bytes() == before
    assert again.learn(stream[0], again=True).trained
    assert again.tasks == ["t0", "t1", "t0"]


class Stop(KeyboardInterrupt):
    """Ctrl-C."""


def stopped(ours, task, moment):
    """Stopped at the so-many-th event of this task."""
    seen = 0

    def stop(event):
        nonlocal seen
        seen += 1
        if seen == moment:
            raise Stop

    ours._options = ours._options._replace(on_event=stop)
    with pytest.raises(Stop):
        ours.learn(task)


@pytest.mark.parametrize("moment", [1, 9, 14])
def test_stopped_at_any_event_it_goes_on(moment, whole, tmp_path):
    stream, ours = tasks(3), taught(tmp_path, 2)
    stopped(ours, stream[2], moment)
    assert ours.tasks == ["t0", "t1"]
    assert ours.model(1) is not None  # what is finished stays of use
    assert find_runs([tmp_path]) == [ours.folder]
    again = codecl.Learner.open(ours.folder, module())
    assert not again.learn(stream[1]).trained
    with pytest.raises(ConfigError, match=r"another task than 't3' was begun in .*; learn that one .*undo\(\)"):
        again.learn(tasks(4)[3])
    result = again.learn(stream[2], test_again=stream[:2])
    assert result.trained
    same(numbers(result.folder), numbers(whole[3]))


def test_a_script_that_was_stopped_is_started_again(whole, tmp_path):
    stopped(taught(tmp_path, 2), tasks(3)[2], 9)
    ours = taught(tmp_path, 3)  # it hands over all tasks once more
    same(numbers(ours.folder), numbers(whole[3]))


@pytest.mark.parametrize("what", ["_remove", "write_text", "checkpoint.write"])
def test_stopped_between_two_tasks_nothing_is_lost(what, whole, tmp_path, monkeypatch):
    ours, stream = taught(tmp_path, 2), tasks(3)

    def power_cut(*_):
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(f"codecl.runs.writer.{what}", power_cut)
        patch.setattr("codecl.runs.growing.tidy", lambda _: None)
        with pytest.raises(Stop):
            ours.learn(stream[2])
    assert (ours.folder / BEFORE).is_dir()
    again = codecl.Learner.open(ours.folder, module())
    assert not (ours.folder / BEFORE).exists()
    same(numbers(ours.folder), numbers(whole[2]))
    again.learn(stream[2], test_again=dict(enumerate(task.test for task in stream[:2])))
    same(numbers(again.folder), numbers(whole[3]))


def test_a_task_that_was_begun_can_be_given_up(whole, tmp_path):
    ours, stream = taught(tmp_path, 2), tasks(4)
    with pytest.raises(ConfigError, match="undo: no task is begun"):
        ours.undo()
    stopped(ours, stream[3], 14)
    ours.undo()
    assert not (ours.folder / BEFORE).exists()
    same(numbers(ours.folder), numbers(whole[2]))
    ours._options = ours._options._replace(on_event=None)
    ours.learn(stream[2])
    same(numbers(ours.folder), numbers(whole[3]))


def test_the_first_task_goes_on_too(whole, tmp_path):
    ours, stream = codecl.Learner(module(), out=tmp_path, **MORE), tasks(2)
    assert ours.metrics == {}
    stopped(ours, stream[0], 9)
    with pytest.raises(DataError, match=r"its first task is not finished; go on with codecl.Learner\(model, …\)"):
        codecl.Learner.open(ours.folder, module())
    with pytest.raises(ConfigError, match=r"undo: the first task is begun in .*; remove the folder instead"):
        ours.undo()
    again = codecl.Learner(module(), out=tmp_path, **MORE)
    for task in stream:
        again.learn(task)
    same(numbers(again.folder), numbers(whole[2]))


def test_a_module_that_does_not_fit_is_refused_and_named(tmp_path):
    folder = taught(tmp_path, 1).folder
    layers = list(module())
    cases = (
        ([*layers[:7], nn.Linear(8, 4)], r"model: '7' is Linear\(.*out_features=4.*but Linear\(.*out_features=3"),
        ([*layers[:6], nn.ReLU(), layers[7]], r"model: '6' is ReLU\(\), but Tanh\(\) in"),
        ([*layers, nn.Identity()], r"model: '8' is in this module, but is not in that of"),
        (layers[:7], r"model: '7' is not in this module, but is in that of"),
    )
    for parts, reason in cases:
        with pytest.raises(ConfigError, match=reason) as caught:
            codecl.Learner.open(folder, nn.Sequential(*parts))
        assert "\n" not in str(caught.value)
    frozen = module()
    frozen[0].weight.requires_grad_(False)
    with pytest.raises(ConfigError, match="model: '0' has other attributes, or trains other parameters"):
        codecl.Learner.open(folder, frozen)
    with pytest.raises(ConfigError, match=r"was made with a model of your own: pass one, codecl.Learner.open"):
        codecl.Learner.open(folder)
    with pytest.raises(DataError, match=r"config.yaml is broken"):
        codecl.Learner.open(tmp_path / "nowhere")


class Shifted(nn.Module):
    """With a buffer that decides what it computes."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.register_buffer("shift", torch.full((72,), shift))
        self.body, self.fc = nn.Linear(72, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.tanh(self.body(x.flatten(1) + self.shift)))


def test_buffers_come_from_the_folder_too_and_changed_code_is_said(tmp_path, monkeypatch):
    small = {"train": {"epochs": 1, "batch_size": 4}, "growth": {"threshold": 0.9, "images": 12}}
    stream = tasks(2)
    torch.manual_seed(1)
    whole = codecl.fit(Shifted(0.7), stream, out=tmp_path / "whole", **small)
    torch.manual_seed(1)
    ours = codecl.Learner(Shifted(0.7), out=tmp_path, **small)
    ours.learn(stream[0])
    monkeypatch.setattr("codecl.runs.own.code_digest", lambda _: "other")
    with pytest.warns(ConfigWarning, match="the file with the code of Shifted has changed since"):
        later = codecl.Learner.open(ours.folder, Shifted(0.0))
    with pytest.warns(ConfigWarning):
        later.learn(stream[1], test_again=stream[:1])
    same((None, [], numbers(later.folder)[2]), (None, [], numbers(whole.folder)[2]))
    assert later.metrics["accuracy_matrix"] == whole.metrics["accuracy_matrix"]


def test_test_data_that_is_not_of_a_learned_task_is_refused(tmp_path):
    ours, stream = taught(tmp_path, 1), tasks(2)
    with pytest.raises(ConfigError, match=r"test_again: 't7' is not a task that is learned; there are t0"):
        ours.learn(stream[1], test_again={"t7": stream[0].test})
    images, labels = stream[0].test
    with pytest.raises(ConfigError, match=r"its task 1 is another \(shape: \(2, 6, 6\), \(2, 6, 5\)\)"):
        ours.learn(stream[1], test_again={0: (images[..., :5], labels)})
    wrong = stream[1]._replace(train=(images[:, :1], labels), test=(images[:, :1], labels))
    with pytest.raises(ConfigError, match=r"images of shape \[1, 6, 6\] fails"):
        ours.learn(wrong)
    names = {path.name for path in ours.folder.iterdir()}
    assert names == {"config.yaml", "environment.json", "events.jsonl", "metrics.json", "model", "checkpoint"}
    assert ours.tasks == ["t0"]


def test_a_run_of_a_named_model_and_stream_goes_on_with_own_data(tmp_path):
    fields = {"train": {"epochs": 1, "batch_size": 40, "execution": "loop"}, "agents": 2, "data": {"tasks": 5}}
    run = api.run(resolve(preset("quickstart"), fields), out=tmp_path)
    before = numbers(run.folder)
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.randint(256, (160, 1, 28, 28), generator=generator).byte(), torch.arange(160) % 4
    task = codecl.Task((images, labels), (images, labels), 4, "noise")
    ours = codecl.Learner.open(run.folder)
    result = ours.learn(task)
    assert ours.folder == result.folder != run.folder
    assert ours.folder.parents[1] == tmp_path
    assert all(score is not None for score in result.metrics["accuracy_matrix"][-1])  # the stream is still here
    same(numbers(run.folder), before)
    assert result.model()(images[:2].float()).shape == (2, 4)
    again = codecl.Learner.open(run.folder).learn(task)
    assert not again.trained
    assert again.folder == result.folder


def test_a_fit_after_another_needs_neither_its_data_nor_its_weights(whole, tmp_path):
    stream, other = tasks(3), module()
    with torch.no_grad():
        other[7].weight += 1
    later = codecl.fit(other, stream[2:], out=tmp_path, after=whole[2], **MORE)
    same((None, [], numbers(later.folder)[2]), (None, [], numbers(whole[3])[2]))
    assert later.metrics["not_scored"] == [0, 1]
    started = json.loads((later.folder / "events.jsonl").read_text().splitlines()[0])
    assert started["tasks"] == 3


def test_the_example_in_the_documents_runs(tmp_path, monkeypatch, capsys):
    example = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "next-task.md").read_text(), re.DOTALL)[1]
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "next-task.md", "exec"), {"__name__": "example"})
    assert "[None, None, " in capsys.readouterr().out
