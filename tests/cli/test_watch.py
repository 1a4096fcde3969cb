"""`codecl watch` beside real runs in processes of their own: to the end, killed, interrupted, on a terminal."""

import json
import os
import re
import shutil
import signal
import subprocess

import pytest

from codecl import files
from tests.launching import CODECL, codecl, on_a_terminal, running, wait_for

SETTINGS = ["--method", "codec", "--set", "data.tasks=2", "--set", "train.epochs=3"]
LONG = ["--method", "codec", "--set", "data.tasks=2", "--set", "train.epochs=400"]


def watch(*words, cwd):
    return codecl("watch", *words, cwd=cwd)


def begun(folder, process):
    """The folder of the run, when it has recorded an epoch."""

    def recorded():
        paths = folder.glob("runs/*/seed-*/events.jsonl")
        return next((path.parent for path in paths if '"kind": "epoch"' in path.read_text()), None)

    return wait_for(recorded, process)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Of a run that was watched from before it began: its folder, and what was said."""
    folder = tmp_path_factory.mktemp("done")
    with running("run", *SETTINGS, cwd=folder):
        said = watch("runs", "--patience", 60, cwd=folder)
    (run,) = folder.glob("runs/*/seed-0")
    return run, said


def test_a_run_is_waited_for_and_followed_to_its_end(done):
    run, said = done
    assert (said.returncode, said.stderr) == (0, "")
    found = json.loads((run / "metrics.json").read_text())
    name = f"{run.parent.name}/{run.name}"
    lines = said.stdout.splitlines()
    assert all(line.startswith(f"{name}: ") for line in lines)
    assert re.search(rf"complete · task 2/2 .* ACC {found['acc']:.2f} % · cc {found['traffic']['cc']:.2f}", lines[-1])
    assert "\x1b" not in said.stdout


def test_what_is_complete_is_shown_and_that_is_all(done):
    run, _ = done
    said = watch(run, cwd=run)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.splitlines()[0] == "quickstart: codec, 4 agents on ring, seed 0"
    once = watch(run, "--once", cwd=run).stdout
    for word in ("complete", "100 %", "1 digits", "2 clothes", "learned %", "consensus error"):
        assert word in once
    assert str(run) in "".join(once.split()), "folded where it is long"
    assert re.search(r"run +state +task .*\n.* complete +2/2", watch("runs", "--once", cwd=run.parents[2]).stdout)


def test_a_degraded_run(done, tmp_path):
    run, _ = done
    shutil.copytree(run, tmp_path / "seed-0")
    for name in ("events.jsonl", "metrics.json"):
        path = tmp_path / "seed-0" / name
        path.write_text(path.read_text().replace('"status": "complete"', '"status": "degraded"'))
    said = watch("seed-0", cwd=tmp_path)
    assert said.returncode == 4
    assert "degraded · task 2/2" in said.stdout


@pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="locks cannot be seen here")
def test_a_run_that_was_killed_is_known_as_stopped_and_goes_on_with_what_is_said(tmp_path):
    with running("run", *LONG, cwd=tmp_path) as process:
        run = begun(tmp_path, process)
        with running("watch", run.relative_to(tmp_path), cwd=tmp_path, output=subprocess.PIPE) as watching:
            assert watching.stdout.readline().startswith("quickstart: codec")
            assert watching.stdout.readline().startswith("under way · task 1/2")  # it has seen the run at work
            process.kill()
            said, errors = watching.communicate(timeout=30)
    assert (watching.returncode, errors) == (1, "")
    (way_on,) = re.findall("^stopped: go on with `codecl (run .*)`$", said, re.M)
    assert "--set train.epochs=400" in way_on
    with running(*way_on.split(), cwd=tmp_path) as process:  # it is the same run: it takes the folder's lock
        wait_for(lambda: files.is_locked(run), process, 30)
        assert len(list(tmp_path.glob("runs/*/seed-*"))) == 1


def test_ctrl_c_ends_the_watching_not_the_run(tmp_path):
    with running("run", *LONG, cwd=tmp_path) as process:
        run = begun(tmp_path, process)
        with running("watch", run, cwd=tmp_path, output=subprocess.PIPE) as watching:
            assert watching.stdout.readline().startswith("quickstart: codec")
            watching.send_signal(signal.SIGINT)
            _, errors = watching.communicate(timeout=30)
        assert (watching.returncode, errors) == (130, "codecl: interrupted\n")
        assert process.poll() is None
        process.send_signal(signal.SIGINT)  # which the run itself takes as: stop, and keep what there is
        process.wait(30)
    said = watch(run, cwd=tmp_path)
    assert said.returncode == 1
    assert "stopped: go on with `codecl run quickstart" in said.stdout


def test_on_a_terminal_all_stays_in_its_place(done):
    run, _ = done
    code, text = on_a_terminal([*CODECL, "watch", str(run)], run, COLUMNS="60", TERM="xterm")
    assert code == 0
    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text)
    assert max(map(len, re.split(r"[\r\n]", plain))) <= 60
    assert "2 clothes" in plain
    assert "codecl" not in plain


def test_nothing_to_watch(tmp_path):
    said = watch("nowhere", cwd=tmp_path)
    assert said.returncode == 3
    assert said.stderr == "codecl: nowhere: no such folder (--patience 60 waits a minute for a run to begin)\n"
    (tmp_path / "empty").mkdir()
    said = watch("empty", "--patience", "0.2", cwd=tmp_path)
    assert (said.returncode, said.stderr) == (3, "codecl: empty: holds no run, begun or finished\n")
