"""A full disk loses no more than what could not be written: the run says so once, goes on, and ends with 1."""

import os
import resource
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from codecl.errors import RunFailed
from codecl.files import RecordFile, why_not
from codecl.runs.grid import preset, resolve
from codecl.runs.reader import read_metrics
from tests.faults.victim import run
from tests.launching import environment

SETTINGS = ("train.epochs=2", "data.tasks=3", "checkpoint.every=1")
SMALL = ["run", "--method", "codec", *(word for one in SETTINGS for word in ("--set", one)), "--quiet", "--out"]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 3 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3000k", "tmpfs", place], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no small file system can be mounted here ({done.stderr.strip()})")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def fill(place):
    """A file that takes all the room that is left."""
    with suppress(OSError), (place / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))
    return place / "ballast"


def command(out, *more):
    words = [sys.executable, "-m", "codecl", *SMALL, str(out), *more]
    return subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=200)


def test_a_disk_that_fills_while_a_run_is_at_work(small_disk, tmp_path):
    words, pipes = [sys.executable, "-m", "codecl", *SMALL, str(small_disk / "runs")], {"stderr": subprocess.PIPE}
    process = subprocess.Popen(words, env=environment(), stdout=subprocess.DEVNULL, text=True, **pipes)
    deadline = time.monotonic() + 100
    while not any(small_disk.glob("runs/*/seed-0/checkpoint/[0-9]*")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    ballast = fill(small_disk)
    _, said = process.communicate(timeout=100)
    assert process.returncode == 1, said
    lines = [line for line in said.splitlines() if "written" in line]
    assert len(lines) == 2, said
    assert "(No space left on device); the run goes on" in lines[0]
    assert "trained to the end, but" in lines[1]
    assert "make room, then the same command goes on from the last checkpoint" in lines[1]
    assert "Traceback" not in said
    ballast.unlink()
    again = command(small_disk / "runs")
    assert again.returncode == 0, again.stderr
    whole = command(tmp_path / "runs")
    assert whole.returncode == 0
    (ours,), (theirs,) = (list(place.glob("runs/*/seed-0")) for place in (small_disk, tmp_path))
    assert read_metrics(ours).accuracy_matrix == read_metrics(theirs).accuracy_matrix
    assert read_metrics(ours).status == "complete"


def test_a_disk_that_is_full_from_the_start_is_one_line(small_disk):
    fill(small_disk)
    done = command(small_disk / "runs")
    assert done.returncode in (1, 2)
    (line,) = done.stderr.splitlines()
    assert "cannot be written (No space left on device)" in line


def test_the_record_holds_whole_lines_whatever_fails(tmp_path, monkeypatch):
    """Law: what fails for a while is written later, in order; a line is there whole or not at all."""
    record, writes, real = RecordFile(tmp_path / "record"), [0], os.pwrite

    def failing(handle, data, at):
        writes[0] += 1
        if writes[0] % 3:
            real(handle, data[: len(data) // 2], at)
            raise OSError(28, "No space left on device")
        return real(handle, data[:7], at)  # a few bytes at a time

    monkeypatch.setattr(os, "pwrite", failing)
    lines, failed = [f"line {number}\n" for number in range(60)], 0
    for line in lines:
        try:
            record.add(line)
        except OSError:
            failed += 1
        text = (tmp_path / "record").read_text()
        assert text == "".join(lines)[: len(text)]
        assert not text or text.endswith("\n")
    monkeypatch.setattr(os, "pwrite", real)
    record.close()
    assert failed > 30
    assert (tmp_path / "record").read_text() == "".join(lines)


def test_a_model_that_cannot_be_written_leaves_a_run_to_go_on_with(tmp_path):
    """Files of a few kilobytes can be written, larger ones cannot."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(event):
        if event.kind == "task" and event.task == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, before[1]))

    try:
        with (
            pytest.warns(UserWarning, match="the run goes on"),
            pytest.raises(RunFailed, match=r"could not be written \(File too large\); make room"),
        ):
            run(tmp_path, on_event=limit)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    (folder,) = (path.parent for path in tmp_path.rglob("config.yaml"))
    assert not (folder / "metrics.json").exists() or read_metrics(folder).status == "partial"
    seen = []
    assert run(tmp_path, on_event=lambda event: seen.append(event.kind)).metrics["status"] == "complete"
    assert seen.count("eval") == 1, "only what came after the last checkpoint"


def test_reasons_are_the_systems_words():
    assert why_not(OSError(28, "No space left on device")) == "No space left on device"
    assert why_not(Exception("I/O error: Os { code: 28, kind: StorageFull }")) == "No space left on device"
    assert why_not(Exception("else")) == "else"


@pytest.mark.long
def test_an_agent_with_a_full_disk_goes_on_taking_part(tmp_path):
    """No file of agent 1 can grow any more after its first epoch; its log is written as before."""
    pytest.importorskip("grpc")
    from codecl.peers.decisions import PeersConfig
    from tests.fleets import LocalFleet

    fields = {"agents": 2, "method": {"name": "codec"}, "data": {"tasks": 2}, "train": {"epochs": 2}}
    fleet = LocalFleet(resolve(preset("quickstart"), fields), PeersConfig(), tmp_path)
    fleet.command = (sys.executable, "-m", "codecl", "agent")
    with fleet:
        fleet.until(1, "epoch", 0, 0)
        resource.prlimit(fleet.processes[1].pid, resource.RLIMIT_FSIZE, (3_000, 3_000))
        codes = fleet.finished(150)
        ours, theirs = fleet.log(1), fleet.log(0)
    assert codes == {0: 0, 1: 1}, (ours, theirs)
    assert ours.count("the run goes on") == 1
    assert ours.count("trained to the end, but the") == 1
    assert "Traceback" not in ours
    assert fleet.metrics(0)["status"] == "complete"
    assert fleet.metrics(0)["missed"] == 0, "its neighbour lost nothing"
