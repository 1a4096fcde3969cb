"""Runs of agents that were on several machines come together as one."""

import os
import shutil

import pytest

from tests.cli.test_cli import failed
from tests.problems import change_metrics, recorded_run


@pytest.fixture
def machines(copied, tmp_path):
    """Two folders, as two machines would have them, each with the run of one agent; `far` is only there for scp."""
    run = recorded_run(copied)
    for agent, place in enumerate(("near", "far")):
        folder = tmp_path / place / "runs" / run.parent.name / run.name / f"agent-{agent}"
        shutil.copytree(run, folder)
        change_metrics(folder, agent=agent, exchange="peers", links={1 - agent: {"sent": 5}})
    scp = tmp_path / "bin" / "scp"
    scp.parent.mkdir()
    scp.write_text(f'#!/bin/sh\n[ "$4" = far:runs ] || exit 7\ncp -r "{tmp_path}/far/runs" "$5"\n')
    scp.chmod(0o755)
    return tmp_path


def test_here_and_elsewhere(cli, machines):
    path = f"{machines / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = cli("peer", "gather", "near", "far:runs", "--out", "all", cwd=machines, PATH=path)
    assert done.returncode == 0, done.stderr
    (run,) = (machines / "all").glob("*/seed-1")
    assert f"{run.relative_to(machines)}: agents 0, 1" in done.stdout
    assert "codec" in done.stdout.partition("results")[2]
    again = cli("peer", "gather", "near", "--out", "all", cwd=machines)
    assert "agents 0, 1" in again.stdout, "what was there stays"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("nowhere", "nowhere: no such folder; write HOST:FOLDER for one on another machine"),
        ("bin", "bin: holds no run of an agent"),
        ("other:runs", "other:runs: scp could not fetch it (exit code 7)"),
    ],
)
def test_what_cannot_be_gathered_is_said(cli, machines, place, said):
    path = f"{machines / 'bin'}{os.pathsep}{os.environ['PATH']}"
    assert said in failed(cli("peer", "gather", place, cwd=machines, PATH=path), 3)
