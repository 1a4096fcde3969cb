"""A run that was stopped at any moment goes on and ends as one that never stopped: bit for bit."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import codecl
from codecl import exchange
from codecl.errors import ConfigError, DataError, RunFailed
from codecl.runs import checkpoint
from codecl.runs.checkpoint import CheckpointConfig
from codecl.runs.next_task import read_past
from tests.conftest import ROOT
from tests.faults.victim import run
from tests.problems import CPU, config

METHODS = ("codec", "codec-full", "d-ewc")


def numbers(folder):
    """All that a run ends with, times aside: metrics, events, and every tensor of the model."""
    metrics = json.loads((folder / "metrics.json").read_text())
    del metrics["timing"]["train_s"], metrics["timing"]["ms_per_iteration"], metrics["timing"]["wall_s"]
    lines = (folder / "events.jsonl").read_text().splitlines()
    events = [{k: v for k, v in json.loads(line).items() if k not in ("time", "seconds")} for line in lines]
    model = {path.name: load_file(path) for path in (folder / "model").glob("*.safetensors")}
    return metrics, events, model


def same(ours, theirs):
    assert ours[0] == theirs[0]
    assert ours[1] == theirs[1]
    assert ours[2].keys() == theirs[2].keys()
    for file, tensors in ours[2].items():
        assert tensors.keys() == theirs[2][file].keys()
        assert all(torch.equal(value, theirs[2][file][name]) for name, value in tensors.items()), file


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What a run that never stops ends with, by method."""
    return {method: numbers(run(tmp_path_factory.mktemp("whole"), method).folder) for method in METHODS}


class Stop(KeyboardInterrupt):
    """Ctrl-C."""


class Crash(Exception):
    """Any other end."""


def stopped_at(moment, out, method="codec", **more):
    """A run that is stopped at its so-many-th event; gives the folder."""
    seen, how = 0, (Stop, Crash)[moment % 2]

    def stop(event):
        nonlocal seen
        seen += 1
        if seen == moment:
            raise how

    with pytest.raises(how):
        run(out, method, on_event=stop, **more)
    (path,) = out.rglob("metrics.json")
    assert json.loads(path.read_text())["status"] == "partial"
    return path.parent


@pytest.mark.parametrize("method", ["codec", "d-ewc", pytest.param("codec-full", marks=pytest.mark.long)])
def test_stopped_at_any_event_it_ends_the_same(method, whole, tmp_path):
    events = 3 * (1 + 4 * (3 + 1) + 4)
    for moment in random.Random(method).sample(range(1, events), 8):
        shutil.rmtree(tmp_path, ignore_errors=True)
        stopped_at(moment, tmp_path, method)
        same(numbers(run(tmp_path, method).folder), whole[method])


OWN = {"own": {"directions": 2}, "free": {"directions": 6}, "norms": "own"}


@pytest.fixture(scope="module")
def whole_own(tmp_path_factory):
    """What a run that never stops ends with, where its tasks have directions and norms of their own."""
    return numbers(run(tmp_path_factory.mktemp("whole"), **OWN).folder)


@pytest.mark.parametrize(
    ("moment", "last"), [(22, "directions"), (23, "task"), (26, "task"), (33, "epoch"), (42, "flood"), (43, "eval")]
)
def test_stopped_in_a_task_with_directions_of_its_own_it_ends_the_same(moment, last, whole_own, tmp_path):
    folder = stopped_at(moment, tmp_path, every=1, **OWN)
    *_, seen, _ = (json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines())
    assert (seen["kind"], seen["task"]) == (last, 1)
    same(numbers(run(tmp_path, **OWN).folder), whole_own)
    assert [event["task"] for event in whole_own[1] if event["kind"] == "directions"] == [1, 2]


UNEQUAL = {"data": {"partition": "dirichlet(0.5)", "sizes": "dirichlet(0.5)"}, "growth": {"subspace_from": "all"}}


def test_stopped_with_unequal_numbers_of_images_it_ends_the_same(tmp_path):
    whole = numbers(run(tmp_path / "whole", **UNEQUAL).folder)
    for moment in (8, 26):
        stopped_at(moment, tmp_path / str(moment), **UNEQUAL)
        same(numbers(run(tmp_path / str(moment), **UNEQUAL).folder), whole)
    images = [event["images"] for event in whole[1] if event["kind"] == "task"]
    assert all(max(of_task) > min(of_task) + 1 for of_task in images)


def test_a_checkpoint_holds_the_directions_of_the_open_task(tmp_path):
    folder = stopped_at(33, tmp_path, every=1, **OWN)
    point = checkpoint.latest(folder / "checkpoint", CPU)
    assert point.position.epoch == 2
    assert {name.split("/")[0] for name in point.state.directions} == {"own", "free"}
    chosen = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    (digest,) = [event["digest"] for event in chosen if event["kind"] == "directions"]
    assert exchange.digest(point.state.directions) == digest  # bit for bit what was flooded


def test_stopped_again_and_again(whole, tmp_path):
    rest = random.Random(7)
    for _ in range(6):
        stopped_at(rest.randint(9, 14), tmp_path, every=1)
    ours = run(tmp_path)
    same(numbers(ours.folder), whole["codec"])
    assert len(json.loads((ours.folder / "environment.json").read_text())["before"]) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("times", [4, pytest.param(10, marks=pytest.mark.long)])
def test_kills_at_random_moments(times, whole, tmp_path):
    """kill -9, each time followed by the same command."""
    moments = random.Random(3)
    kills = 0
    for _ in range(40):
        words = [sys.executable, "-m", "tests.faults.victim", str(tmp_path), "codec"]
        threads = {**os.environ, "OMP_NUM_THREADS": "1"}  # as here: other threads round in another order
        process = subprocess.Popen(words, cwd=ROOT, env=threads, stdout=subprocess.PIPE, text=True)
        with process:
            assert process.stdout.readline() == "ready\n"
            try:
                process.wait(timeout=moments.uniform(0.05, 0.35) if kills < times else 60)
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
                continue
        assert process.returncode == 0
        break
    assert kills == times
    (path,) = tmp_path.rglob("metrics.json")
    same(numbers(path.parent), whole["codec"])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


DAMAGE = {
    "a tensor": lambda place: flip(place / "state.safetensors"),
    "no tensors": lambda place: (place / "state.safetensors").unlink(),
    "facts": lambda place: flip(place / "checkpoint.json"),
    "half the facts": lambda place: os.truncate(place / "checkpoint.json", 40),
    "nothing in it": lambda place: shutil.rmtree(place) or place.mkdir(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_passed_over(damage, whole, tmp_path):
    folder = stopped_at(40, tmp_path)
    places = sorted((folder / "checkpoint").iterdir(), key=lambda path: int(path.name))
    assert len(places) == 2
    DAMAGE[damage](places[-1])
    with pytest.warns(UserWarning, match=rf"checkpoint.{places[-1].name}: is damaged .*; going on from the one before"):
        ours = run(tmp_path)
    same(numbers(ours.folder), whole["codec"])


def test_without_a_whole_checkpoint_it_starts_again(whole, tmp_path):
    folder = stopped_at(40, tmp_path)
    for place in (folder / "checkpoint").iterdir():
        flip(place / "state.safetensors")
    with pytest.warns(UserWarning, match="is damaged"):
        same(numbers(run(tmp_path).folder), whole["codec"])


def test_events_that_were_changed_are_not_gone_on_from(whole, tmp_path):
    folder = stopped_at(40, tmp_path)
    text = (folder / "events.jsonl").read_text()
    (folder / "events.jsonl").write_text(text.replace('"loss": [', '"loss": [9', 1))
    with pytest.warns(UserWarning, match="events.jsonl is not what it was"):
        same(numbers(run(tmp_path).folder), whole["codec"])


def test_what_was_written_after_the_checkpoint_is_cut(whole, tmp_path):
    folder = stopped_at(40, tmp_path)
    with (folder / "events.jsonl").open("a") as file:
        file.write('{"kind": "epoch", "half a li')
    (folder / "checkpoint" / ".99").mkdir()  # a checkpoint that was never finished
    same(numbers(run(tmp_path).folder), whole["codec"])


def test_another_version_is_refused_and_named(tmp_path, monkeypatch):
    stopped_at(40, tmp_path)
    monkeypatch.setattr(codecl, "__version__", "9.9")
    with pytest.raises(ConfigError, match=r"is a checkpoint of codecl .*, this is 9.9 .*or start again with --again"):
        run(tmp_path)
    assert run(tmp_path, again=True).metrics["status"] == "complete"


def test_how_often_it_saves_itself_is_not_another_run(whole, tmp_path):
    stopped_at(40, tmp_path, every=1)
    ours = run(tmp_path, every="1h")
    assert len(list(tmp_path.rglob("metrics.json"))) == 1
    same(numbers(ours.folder), whole["codec"])


def test_two_checkpoints_are_kept_and_one_of_a_finished_run(tmp_path):
    folder = stopped_at(40, tmp_path, every=1)
    assert len(list((folder / "checkpoint").iterdir())) == 2
    finished = run(tmp_path).folder
    (last,) = (finished / "checkpoint").iterdir()
    point = checkpoint.latest(finished / "checkpoint", CPU)
    assert point.position is None
    assert len(point.state.kept) == 3
    assert last.name == str(point.step) == "36"


def test_what_others_put_into_a_run_folder_stays(tmp_path):
    folder = run(tmp_path).folder
    (folder / "notes.txt").write_text("mine")
    (folder / "checkpoint").rename(tmp_path / "elsewhere")
    (folder / "checkpoint").symlink_to(tmp_path / "elsewhere")
    again = run(tmp_path, again=True)
    assert again.trained
    assert (folder / "notes.txt").read_text() == "mine"
    assert (folder / "checkpoint").is_dir()


def test_a_file_in_the_place_of_a_run_folder(tmp_path):
    folder = run(tmp_path).folder
    shutil.rmtree(folder)
    folder.write_text("a file")
    with pytest.raises(ConfigError, match="is a file, not a run folder; choose another --out"):
        run(tmp_path)


def test_nothing_in_a_run_folder_is_pickled(tmp_path):
    folder = stopped_at(40, tmp_path)
    kinds = {path.suffix for path in folder.rglob("*") if path.is_file()}
    assert kinds == {".json", ".jsonl", ".yaml", ".safetensors"}


@pytest.mark.parametrize(
    ("every", "steps", "seconds", "due"),
    [(10, 9, 999, False), (10, 10, 0, True), ("30s", 999, 29, False), ("30s", 1, 30, True), ("2min", 1, 121, True)],
)
def test_steps_or_time(every, steps, seconds, due):
    assert CheckpointConfig(every=every).due(steps, seconds) is due


@pytest.mark.parametrize("every", [0, "0s", "often", "5 days", -1])
def test_other_intervals_are_refused(every):
    with pytest.raises(ConfigError, match=r"checkpoint.every: .* is not allowed: .*such as 30s, 5min"):
        config(checkpoint={"every": every})


def test_a_checkpoint_that_cannot_be_written_does_not_end_the_run(whole, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.warns(UserWarning, match=r"no checkpoint could be written \(No space left on device\); the run"):
        ours = run(tmp_path)
    metrics, events, *model = numbers(ours.folder)
    said = [event for event in events if event["kind"] == "unwritten"]
    assert [(event["what"], event["why"]) for event in said] == [("checkpoint", "No space left on device")]
    same((metrics, [event for event in events if event not in said], *model), whole["codec"])
    with pytest.raises(DataError, match="holds no checkpoint to go on from"):
        read_past(ours.folder)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_ends_it_in_one_line_and_the_next_call_goes_on(whole, tmp_path):
    seen = []

    def fill(event):
        seen.append(event.kind)
        if seen.count("eval") == 1 and event.kind == "epoch":
            for events in [fd for fd in os.listdir("/proc/self/fd") if _opened(fd).endswith("events.jsonl")]:
                os.dup2(os.open("/dev/full", os.O_WRONLY), int(events))

    with (
        pytest.warns(UserWarning, match=r"events.jsonl cannot be written \(No space left on device\); the run goes on"),
        pytest.raises(RunFailed, match=r"trained to the end, but the events could not be written \(No space left"),
    ):
        run(tmp_path, on_event=fill)
    assert seen.count("eval") > 1, "it went on"
    again = []
    ours = run(tmp_path, on_event=lambda event: again.append(event.kind))
    assert 0 < again.count("epoch") < seen.count("epoch"), "from the last checkpoint"
    same(numbers(ours.folder), whole["codec"])


def _opened(fd):
    return os.path.realpath(f"/proc/self/fd/{fd}")
