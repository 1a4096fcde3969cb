"""Following a run from its folder: the tail of its events, the fold over them, the state."""

import fcntl
import json
import os
import shutil
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codecl import api, files
from codecl.errors import DataError
from codecl.methods import METHODS
from codecl.runs import follow
from codecl.runs.follow import Follower, RunFolder, RunFollower, find, state_of, together
from codecl.runs.metrics import Progress, progress
from codecl.runs.reader import EventTail, read_events, read_metrics
from codecl.train.events import Agreed, EpochEnded, Evaluated, Grown, MemberChanged, RunStarted
from tests import problems


def record(folder, **fields):
    settings = problems.config(**fields)
    return api.run(settings, out=folder, module=problems.perceptron(), tasks=problems.tasks()).folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A real run of three tasks, two epochs each."""
    return record(tmp_path_factory.mktemp("run"))


def line(event):
    return json.dumps(event.record()).encode() + b"\n"


SCORES = st.lists(st.floats(0, 100), max_size=3)


@given(
    st.lists(st.builds(Evaluated, task=st.integers(0, 9), accuracy=SCORES, seconds=st.just(1.0)), max_size=8), st.data()
)
def test_a_tail_gives_every_event_once_however_the_file_grows(tmp_path_factory, events, data):
    folder, whole = tmp_path_factory.mktemp("tail"), b"".join(map(line, events))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
    tail = EventTail(folder)
    for cut in (*cuts, len(whole)):
        (folder / "events.jsonl").write_bytes(whole[:cut])
        known = len(tail.events)
        assert tail.read() == known  # not read anew
    assert tail.events == events == read_events(folder)


def test_a_file_that_was_cut_or_replaced_is_read_anew(tmp_path):
    path, tail = tmp_path / "events.jsonl", EventTail(tmp_path)
    one, two, three, four = (Evaluated(task=task, accuracy=[1.0], seconds=1.0) for task in range(4))
    assert (tail.read(), tail.events) == (0, [])  # not there yet
    path.write_bytes(line(one) + line(two) + line(three))
    assert (tail.read(), tail.events) == (0, [one, two, three])
    assert (tail.read(), tail.events) == (3, [one, two, three])
    path.write_bytes(line(one) + line(two))  # cut by a resume
    assert (tail.read(), tail.events) == (0, [one, two])
    path.write_bytes(line(one) + line(four) + line(three) + line(three))  # cut, and longer again before anyone looked
    assert (tail.read(), tail.events) == (0, [one, four, three, three])
    path.unlink()
    assert (tail.read(), tail.events) == (0, [])


def test_progress_is_what_the_metrics_say_in_the_end(run):
    now, metrics = progress(read_events(run), 2), read_metrics(run)
    assert now.ended == "complete"
    assert now.acc == metrics.acc
    assert (now.cc, now.cc_by_task) == (metrics.traffic.cc, metrics.traffic.cc_by_task)
    assert now.sent == metrics.traffic.train_bytes + metrics.traffic.boundary_bytes
    assert now.steps == now.all_steps == metrics.timing.iterations
    assert (now.opened, len(now.learned), now.tasks, now.epoch) == (3, 3, 3, 2)
    assert now.left_s == 0
    assert now.apart == metrics.consensus_error_by_task[-1]
    assert now.learned == [row[task] for task, row in enumerate(metrics.accuracy_matrix)]
    assert now.known == metrics.accuracy_matrix[-1]


def test_progress_at_every_event_goes_forward(run):
    events = read_events(run)
    stages = [progress(events[:count], 2) for count in range(len(events) + 1)]
    assert stages[0] == Progress(epochs=2)
    assert [now.steps for now in stages] == sorted(now.steps for now in stages)
    position = next(now for now in stages if now.opened == 2 and now.epoch == 1)
    assert (position.phase, len(position.learned), position.ended) == ("training", 1, None)
    assert position.all_steps == stages[-1].steps
    assert position.left_s == pytest.approx(
        (position.all_steps - position.steps) / position.steps_a_second
        + 2 * sum(event.seconds for event in events if isinstance(event, Grown | Evaluated) and event.task == 0)
    )
    assert len(position.losses) == 3
    assert position.names == ["t0", "t1"]


class Alone(METHODS["dpsgd"]):
    """A user's own method whose tasks do not follow each other."""

    each_task_alone: ClassVar[bool] = True


def test_of_a_users_own_method_with_tasks_alone_each_own_model_counts(tmp_path):
    folder = record(tmp_path, method={"name": f"{__name__}:Alone"}, train={"lr": 0.1})
    now, metrics = RunFollower(folder).look().progress, read_metrics(folder)
    own = [row[task] for task, row in enumerate(metrics.accuracy_matrix)]
    assert now.about.each_task_alone
    assert now.acc == metrics.acc == pytest.approx(sum(own) / len(own))
    assert metrics.acc != pytest.approx(sum(metrics.accuracy_matrix[-1]) / len(own))
    assert metrics.bwt is None


ABOUT = RunStarted(
    **{"benchmark": "b", "method": "codec", "agents": 1, "topology": "ring", "seed": 0, "tasks": 1, "edges": []},
    **{"contraction": 0.0, "digest": "", "execution": "loop"},
)


@pytest.mark.parametrize(
    ("ended", "written", "left", "silent_s", "state"),
    [
        ("complete", False, True, 0, "complete"),
        ("degraded", False, False, 1e6, "degraded"),
        ("partial", False, False, 0, "stopped"),
        (None, True, False, 1e6, "under way"),  # a long epoch
        (None, False, True, 0, "stopped"),  # its process was seen, and is gone
        (None, False, False, 1, "under way"),  # on another machine, perhaps
        (None, False, False, 20, "silent"),
        (None, False, False, 61, "stopped"),
    ],
)
def test_the_state_of_a_run(ended, written, left, silent_s, state):
    now = Progress(ABOUT, ended=ended, longest_s=2.0)
    assert state_of(now, written, left, silent_s) == state


def test_who_has_long_epochs_may_be_silent_for_longer():
    now = Progress(ABOUT, longest_s=100.0)
    assert state_of(now, False, False, 299) == "silent"
    assert state_of(now, False, False, 301) == "stopped"
    assert state_of(Progress(), True, False, 0) == "starting"


@pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="locks cannot be seen here")
def test_a_lock_is_seen_without_being_taken(tmp_path):
    assert files.is_locked(tmp_path) is False
    handle = files.lock(tmp_path)
    assert files.is_locked(tmp_path) is True
    os.close(handle)
    assert files.is_locked(tmp_path) is False
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody else has it
    os.close(other)
    assert files.is_locked(tmp_path / "nowhere") is None


class Writing:
    """A run folder that grows as a real one did."""

    def __init__(self, run, folder):
        self.folder, self.source = folder, run
        folder.mkdir(parents=True)
        shutil.copy(run / "config.yaml", folder)
        self.lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
        self.at = 0

    def until(self, kind, task=None):
        for line in self.lines[self.at :]:
            self.append(line)
            self.at += 1
            fact = json.loads(line)
            if (fact["kind"], fact["task"]) == (kind, task):
                return

    def append(self, text):
        with (self.folder / "events.jsonl").open("a") as file:
            file.write(text)

    def close(self):
        self.until("end")
        shutil.copy(self.source / "metrics.json", self.folder)


def test_a_run_is_followed_to_its_end(run, tmp_path):
    writing = Writing(run, tmp_path / "seed-3")
    follower, lock = RunFollower(writing.folder), files.lock(writing.folder)
    assert follower.look().state == "starting"
    writing.until("task", 0)
    assert follower.look().progress.phase == "training"
    writing.append('{"kind": "epo')
    assert follower.look().progress.phase == "training"  # half a line waits
    (writing.folder / "events.jsonl").write_text("".join(writing.lines[: writing.at]))
    writing.until("eval", 1)
    seen = follower.look()
    assert [len(end.learned) for end in seen.new] == [1, 2]  # both task ends are told, though nobody looked in between
    assert seen.state == "under way"
    writing.until("end")
    assert follower.look().state == "under way"  # its metrics are not there yet
    writing.close()
    os.close(lock)
    assert follower.look().state == "complete"


def test_a_process_that_is_gone_is_noticed_at_once(run, tmp_path):
    writing = Writing(run, tmp_path / "seed-3")
    follower, lock = RunFollower(writing.folder), files.lock(writing.folder)
    writing.until("eval", 0)
    assert follower.look().state == "under way"
    os.close(lock)
    assert follower.look().state == "stopped"
    assert RunFollower(writing.folder).look().state == "under way"  # who came later cannot know yet
    lock = files.lock(writing.folder)  # the run goes on
    assert follower.look().state == "under way"
    os.close(lock)


def test_watching_writes_nothing_and_takes_no_lock(run):
    def state():
        return sorted((path, path.stat().st_mtime_ns) for path in (run, *run.rglob("*")))

    before = state()
    lock = files.lock(run)
    view = Follower(run).look()
    os.close(lock)
    assert state() == before
    assert view.alone.state == "complete"


def test_damaged_events_are_named(run, tmp_path):
    writing = Writing(run, tmp_path / "seed-3")
    for line in ("not JSON\n", "[1, 2]\n", '{"kind": "run"}\n', '{"time": 1}\n'):
        (writing.folder / "events.jsonl").write_text(line)
        with pytest.raises(DataError, match=r"events.jsonl is (broken at line 1|not a run's \(line 1 has no kind)"):
            RunFollower(writing.folder).look()


def test_what_is_found_at_a_path(run, tmp_path):
    for name in ("b/seed-1", "b/seed-10", "b/seed-2", "a/seed-0/agent-10", "a/seed-0/agent-9", "c/not-a-run"):
        (tmp_path / name).mkdir(parents=True)
        if "not" not in name:
            (tmp_path / name / "events.jsonl").touch()
    fleet, *seeds = find(tmp_path)
    assert [path.name for path in fleet.agents] == ["agent-9", "agent-10"]
    assert [place.folder.name for place in seeds] == ["seed-1", "seed-2", "seed-10"]
    assert find(tmp_path / "a" / "seed-0") == [fleet]
    assert find(tmp_path / "a" / "seed-0" / "agent-9") == [RunFolder(tmp_path / "a" / "seed-0" / "agent-9")]
    assert find(tmp_path / "c") == find(tmp_path / "nowhere") == []


def test_states_together():
    assert together(["complete", "under way", "stopped"]) == "under way"
    assert together(["complete", "stopped", "degraded"]) == "stopped"
    assert together(["complete", "degraded"]) == "degraded"
    assert together(["complete", "complete"]) == "complete"


def test_a_folder_of_runs_ends_with_the_last_and_tells_of_those_that_were_under_way(run, tmp_path, monkeypatch):
    monkeypatch.setattr(follow, "LINGER_S", 0.0)
    Writing(run, tmp_path / "old" / "seed-1").until("eval", 0)
    os.utime(tmp_path / "old" / "seed-1" / "events.jsonl", (0, 0))
    view = Follower(tmp_path).look()
    assert (view.over, view.exit_code, view.runs[0].state) == (True, 0, "stopped")  # long ago: not our concern
    follower, writing = Follower(tmp_path), Writing(run, tmp_path / "new" / "seed-2")
    writing.until("eval", 0)
    assert not follower.look().over
    writing.close()
    view = follower.look()
    assert (view.over, view.exit_code) == (True, 0)
    Writing(run, tmp_path / "third" / "seed-2").until("eval", 0)
    lock = files.lock(tmp_path / "third" / "seed-2")
    assert not follower.look().over
    os.close(lock)
    view = follower.look()
    assert (view.over, view.exit_code) == (True, 1)


def peer_events(events, changes):
    """Events as a peer records them."""
    out = []
    for event in events[:-1]:
        if isinstance(event, RunStarted):
            event = event.model_copy(update={"agent": 1, "exchange": "peers", "fleet": "f"})
        if isinstance(event, EpochEnded | Agreed):
            apart = {"disagreement": event.consensus_error, "consensus_error": None}
            event = event.model_copy(update={**apart, "missed": {"2": [(3, 5), (7, 7)]}})
        out.append(event)
    return [*out, *(MemberChanged(task=1, agent=agent, state=state) for state, agent in changes)]


def test_a_peer_knows_who_is_away(run):
    changes = [("connected", 0), ("connected", 2), ("lost", 0), ("disconnected", 2), ("dead", 2), ("linked", 3)]
    events = peer_events(read_events(run), changes)
    now = progress(events, 2)
    assert (now.away, now.missed) == ([0, 2], 6 * 4)
    assert now.apart == [event for event in read_events(run) if isinstance(event, EpochEnded)][-1].consensus_error
    assert progress([*events, MemberChanged(agent=2, state="alive")], 2).away == [0]
