"""What `codecl watch` draws, and the command that it names to go on."""

import io
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from rich.console import Console

from codecl import api
from codecl.cli import display
from codecl.cli.live import training
from codecl.cli.watch import go_on
from codecl.report.formats import duration, size
from codecl.runs import grid as presets
from codecl.runs.follow import Follower
from codecl.runs.grid import grid
from codecl.runs.metrics import progress
from codecl.runs.reader import read_events, read_metrics
from codecl.runs.writer import folder_of
from codecl.train.events import EpochEnded
from tests import problems
from tests.runs.test_follow import record


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return record(tmp_path_factory.mktemp("run"))


def test_sparklines():
    assert display.sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert display.sparkline([5, 5, 5]) == "▁▁▁"
    assert display.sparkline([9, 9, 0, 7], width=2) == "▁█"
    assert display.sparkline([0, float("nan"), 7]) == "▁ █"
    assert display.sparkline([]) == ""


def drawn(view, width):
    console = Console(width=width, height=24, record=True, file=io.StringIO())
    console.print(display.drawn(view, width, 24))
    return console.export_text()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_all_that_is_drawn_fits(run, tmp_path, width):
    shutil.copytree(run, tmp_path / "runs" / "a-long-name-of-a-configuration-codec-ring4-123abc" / "seed-1")
    for agent in range(4):
        shutil.copytree(run, tmp_path / "runs" / "fleet" / "seed-1" / f"agent-{agent}")
    texts = [drawn(Follower(path).look(), width) for path in (run, tmp_path / "runs", tmp_path / "runs/fleet/seed-1")]
    now = progress(read_events(run), 2)
    for text in texts:
        assert max(map(len, text.splitlines())) <= width
        assert f"{now.acc:.2f}" in text
        assert "…" not in text
        assert "complete" in text
    assert f"{now.learned[0]:.2f}" in texts[0]
    assert f"{now.cc_by_task[2]:.2f}" in texts[0]


def test_the_cc_of_a_fleet_is_that_of_all_its_agents(run):
    """As a table has it: each agent counts what it sends itself, and one that grows sends more."""
    alone = Follower(run).look().alone
    counts = ((2.0, 100), (1.0, 300), (None, 0))
    parts = [alone.parts[0]._replace(progress=alone.parts[0].progress._replace(cc=cc, sent=n)) for cc, n in counts]
    assert display.fleet_cc(alone._replace(parts=tuple(parts))) == (2.0 * 100 + 1.0 * 300) / 400
    assert display.fleet_cc(alone._replace(parts=tuple(parts[2:]))) is None


def test_of_many_tasks_the_last_are_drawn(run):
    view = Follower(run).look()
    seen = view.alone.parts[0]
    names = [f"n{number}" for number in range(40)]
    more = seen.progress._replace(opened=40, tasks=40, names=names, learned=[1.0] * 40, known=[1.0] * 40)
    group = view.alone._replace(parts=(seen._replace(progress=more),))
    text = drawn(view._replace(runs=(group,)), 80)
    assert len(text.splitlines()) <= 24
    assert "40 n39" in text
    assert "1 n0" not in text
    assert "before)" in text


def test_durations():
    told = {0.4: "0 s", 59.4: "59 s", 60: "1 min", 61: "1 min 1 s", 3600: "1 h", 3660: "1 h 1 min", 90_000: "1 d 1 h"}
    assert {seconds: duration(seconds) for seconds in told} == told


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"agents": 8, "topology": {"name": "torus"}, "seed": 3},
        {"method": {"name": "d-ewc", "penalty": 7.0}, "train": {"milestones": [0.25], "epochs": 3}},
        {"head": None, "growth": {"images": [24, 100]}},
    ],
)
def test_the_command_to_go_on_is_that_of_this_very_run(tmp_path, changes):
    config = presets.resolve(presets.preset("quickstart"), changes)
    folder = folder_of(config, tmp_path)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(config.dump())
    program, run, preset, *words = shlex.split(re.fullmatch("go on with `(.*)`", go_on(folder))[1])
    assert (program, run, preset) == ("codecl", "run", "quickstart")
    given = {
        option: [value for name, value in zip(words[::2], words[1::2], strict=True) if name == option]
        for option in words[::2]
    }
    assert given["--out"] == [str(tmp_path)]
    names = ("--method", "--agents", "--topology", "--seeds")
    (made,) = grid(preset, *(given[name][0] for name in names), given.get("--set", []))
    assert made.decisive() == config.decisive()


def test_a_run_without_a_command_has_none_made_up(run, tmp_path):
    same = "the command that started it goes on where it stopped"
    assert go_on(run) == same  # made by a call
    assert go_on(tmp_path / "nowhere") == same
    assert go_on(Path("seed-1")) == same


class Stop(Exception):
    pass


def train(out, console, stop_at=None):
    """A run of this process that is shown on a console; stopped at the end of an epoch."""
    config = problems.config()
    with training(console, config, folder_of(config, out), quiet=False) as shown:

        def on_event(event):
            shown(event)
            if isinstance(event, EpochEnded) and (event.task, event.epoch) == stop_at:
                raise Stop

        return api.run(config, out=out, module=problems.perceptron(), tasks=problems.tasks(), on_event=on_event)


@pytest.mark.parametrize("terminal", [False, True])
def test_a_run_that_is_resumed_goes_on_counting(tmp_path, terminal):
    def console():
        return Console(width=160, file=io.StringIO(), force_terminal=terminal)

    torch.manual_seed(0)  # the same module each time
    with pytest.raises(Stop):
        train(tmp_path, console(), stop_at=(1, 1))
    torch.manual_seed(0)
    resumed = console()
    metrics = read_metrics(train(tmp_path, resumed).folder)
    text = resumed.file.getvalue()
    assert "task 1/3" not in text
    assert f"ACC {metrics.acc:.2f} % · cc {metrics.traffic.cc:.2f} · sent {size(metrics.traffic.sent_bytes)}" in text


def test_a_quiet_run_shows_nothing(tmp_path):
    console = Console(file=io.StringIO(), quiet=True)  # as where another rank prints
    train(tmp_path, console)
    assert console.file.getvalue() == ""
