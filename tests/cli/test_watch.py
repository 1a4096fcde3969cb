"""`codecl watch` beside real runs in processes of their own: to the end, killed, interrupted, on a terminal."""

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from codecl import files
from tests.conftest import ROOT

SETTINGS = ["--method", "codec", "--set", "data.tasks=2", "--set", "train.epochs=3"]
LONG = ["--method", "codec", "--set", "data.tasks=2", "--set", "train.epochs=400"]


def env(**more):
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "100", **more}


COMMAND = (sys.executable, "-W", "error", "-m", "codecl")


def watch(*words, cwd):
    command = [*COMMAND, "watch", *map(str, words)]
    return subprocess.run(command, cwd=cwd, env=env(), capture_output=True, text=True, timeout=120)


@contextmanager
def running(words, cwd):
    """A run under way; none is left behind."""
    process = subprocess.Popen(
        [*COMMAND, "run", *words], cwd=cwd, env=env(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def begun(folder, kind="epoch"):
    """The folder of the run, when it has recorded such a fact."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for path in folder.glob("runs/*/seed-*/events.jsonl"):
            if f'"kind": "{kind}"' in path.read_text():
                return path.parent
        time.sleep(0.05)
    raise AssertionError("no run began")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Of a run that was watched from before it began: the folder, and what was said."""
    folder = tmp_path_factory.mktemp("done")
    with running(SETTINGS, folder):
        said = watch("runs", "--patience", 60, cwd=folder)
    return folder, said


def test_a_run_is_waited_for_and_followed_to_its_end(done):
    folder, said = done
    assert (said.returncode, said.stderr) == (0, "")
    (run,) = folder.glob("runs/*/seed-0")
    found = json.loads((run / "metrics.json").read_text())
    name = str(run.relative_to(folder / "runs"))
    lines = said.stdout.splitlines()
    assert all(line.startswith(f"{name}: ") for line in lines)
    assert re.search(rf"complete · task 2/2 .* ACC {found['acc']:.2f} % · CC {found['traffic']['cc']:.2f}", lines[-1])
    assert "\x1b" not in said.stdout


def test_what_is_complete_is_shown_and_that_is_all(done):
    folder, _ = done
    (run,) = folder.glob("runs/*/seed-0")
    said = watch(run, cwd=folder)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.splitlines()[0] == "quickstart: codec, 4 agents on ring, seed 0"
    once = watch(run, "--once", cwd=folder).stdout
    for word in ("complete", "100 %", "1 digits", "2 clothes", "learned %", "consensus error"):
        assert word in once
    assert str(run) in "".join(once.split()), "folded where it is long"
    assert re.search(r"run +state +task .*\n.* complete +2/2", watch("runs", "--once", cwd=folder).stdout)


def test_a_degraded_run(done, tmp_path):
    folder, _ = done
    (run,) = folder.glob("runs/*/seed-0")
    shutil.copytree(run, tmp_path / "seed-0")
    for name in ("events.jsonl", "metrics.json"):
        path = tmp_path / "seed-0" / name
        path.write_text(path.read_text().replace('"status": "complete"', '"status": "degraded"'))
    said = watch("seed-0", cwd=tmp_path)
    assert said.returncode == 4
    assert "degraded · task 2/2" in said.stdout


@pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="locks cannot be seen here")
def test_a_run_that_was_killed_is_known_as_stopped_and_goes_on_with_what_is_said(tmp_path):
    with running(LONG, tmp_path) as process:
        run = begun(tmp_path)
        command = [*COMMAND, "watch", str(run.relative_to(tmp_path))]
        watching = subprocess.Popen(
            command, cwd=tmp_path, env=env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        time.sleep(2)
        assert watching.poll() is None
        process.kill()
        said, errors = watching.communicate(timeout=30)
    assert (watching.returncode, errors) == (1, "")
    assert "under way · task 1/2" in said
    (way_on,) = re.findall("^stopped: go on with `codecl (run .*)`$", said, re.M)
    assert "--set train.epochs=400" in way_on
    with running(way_on.split()[1:], tmp_path):  # it is the same run: it takes the folder's lock
        deadline = time.monotonic() + 30
        while not files.is_locked(run):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert len(list(tmp_path.glob("runs/*/seed-*"))) == 1


def test_ctrl_c_ends_the_watching_not_the_run(tmp_path):
    with running(LONG, tmp_path) as process:
        run = begun(tmp_path)
        watching = subprocess.Popen(
            [*COMMAND, "watch", str(run)], env=env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
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
    folder, _ = done
    (run,) = folder.glob("runs/*/seed-0")
    near, far = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "watch", str(run)], env=env(COLUMNS="60", TERM="xterm"), stdout=far, stderr=far, stdin=far
    )
    os.close(far)
    text = b""
    while select.select([near], [], [], 30)[0]:
        try:
            text += os.read(near, 1 << 16)
        except OSError:  # it has ended
            break
    os.close(near)
    assert process.wait(10) == 0
    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text.decode())
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


def test_watching_needs_no_torch():
    code = (
        "import sys, codecl.runs.follow, codecl.cli.live, codecl.cli.display, codecl.cli;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'scipy', 'matplotlib', 'tensorboard')))"
    )
    assert subprocess.run([sys.executable, "-c", code], env=env(), timeout=60).returncode == 0
