"""The next task of a fleet: a stopped one goes on after what it has learned, without its old data."""

import hashlib
import json
import os
import shutil
import time

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("grpc")

from codecl import api
from codecl.data import store
from codecl.errors import ConfigError
from codecl.files import lock
from codecl.peers import agent as peer
from codecl.peers import fleet, next_task
from codecl.peers.agent import added_up
from codecl.peers.decisions import PeersConfig
from codecl.peers.history import History
from codecl.runs.grid import preset, resolve
from codecl.train.events import LinkBytes
from tests.data.canonical import arrays
from tests.fleets import LocalFleet
from tests.laws.test_history import START, commit
from tests.problems import write_metrics

RULES = PeersConfig(deadline=None, silence=60, meet=60)


def config(**data):
    settings = {"train": {"epochs": 2, "batch_size": 10}, "dtype": "float64", "growth": {"images": 20}}
    fields = {"agents": 4, "seed": 1, "method": {"name": "codec"}, "data": {"stream": "split(mnist, 5)", **data}}
    return resolve(preset("quickstart"), {**settings, **fields})


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Two data sets: one whose classes are the first two tasks, one that comes later."""
    monkeypatch.setenv("CODECL_DATA", str(tmp_path / "data"))
    for number, name in enumerate(("mnist", "fashion-mnist")):
        store.write(name, arrays(name, 200, 50, number))


class Later(LocalFleet):
    """The same fleet, started again."""

    def __init__(self, first: LocalFleet) -> None:
        self.folder, self.files, self.ports, self.wires, self.processes = first.folder, first.files, (), {}, {}
        self.config = fleet.read(first.files[0]).fleet.run_config()


def bodies(fleet_):
    return [load_file(fleet_.run_folder(agent) / "model" / "body.safetensors") for agent in range(4)]


@pytest.mark.alone
@pytest.mark.slow
def test_a_third_task_after_two_without_old_data(data, tmp_path):
    """Four processes, stopped and started again, end as a simulated run of all three tasks."""
    first = LocalFleet(config(), RULES, tmp_path)
    whole = api.run(config(stream="split(mnist, 5) + whole(fashion-mnist)"), out=tmp_path / "whole", device="cpu")
    with first:
        assert set(first.finished(240).values()) == {0}, first.log(0)
    added = next_task.learn(tmp_path / "fleet", "fashion-mnist", tmp_path / "runs")
    assert added.tasks == 2
    assert len(added.written) == 5
    store.path_of("mnist").unlink()
    later = Later(first)
    with later:
        assert set(later.finished(240).values()) == {0}, later.log(0)
    theirs = load_file(whole.folder / "model" / "body.safetensors")
    for ours in bodies(later):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
    for agent in range(4):
        metrics = later.metrics(agent)
        assert metrics["status"] == "complete"
        assert metrics["tasks"] == 3
        assert metrics["accuracy_matrix"][-1][:2] == [None, None]
        assert metrics["accuracy_matrix"][-1][2] == pytest.approx(whole.metrics["accuracy_matrix"][-1][2])
        kinds = [event["kind"] for event in later.events(agent)]
        assert (kinds.count("run"), kinds.count("task"), kinds.count("end")) == (1, 3, 1)
        sent = sum(link["sent"] for link in metrics["links"].values())
        assert sent >= metrics["traffic"]["train_bytes"]  # of all three tasks
    assert peer.take_part(fleet.read(later.files[0]), tmp_path / "runs").metrics.status == "complete"  # not repeated


@pytest.mark.long
def test_an_agent_without_its_past_takes_it_from_the_others(tmp_path):
    """The next task of the fleet's own stream, and one agent whose folder is gone."""
    first = LocalFleet(config(stream="quickstart", tasks=1), PeersConfig(deadline=5, silence=20, meet=60), tmp_path)
    with first:
        assert set(first.finished(240).values()) == {0}, first.log(0)
    next_task.learn(tmp_path / "fleet", "next", tmp_path / "runs")
    shutil.rmtree(first.run_folder(3))
    later = Later(first)
    with later:
        assert set(later.finished(240).values()) <= {0, 4}, later.log(3)
    ours, *others = bodies(later)
    for theirs in others:
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    assert (later.run_folder(3) / "model" / "task-2.safetensors").is_file()
    assert later.metrics(0)["accuracy_matrix"][-1][0] is not None  # its stream is still here


def finished_fleet(tmp_path, status="complete"):
    """Files of a fleet of four, and runs that look as if it had ended."""
    settings = config(stream="quickstart", tasks=2)
    fleet.init(settings, [("127.0.0.1", 7700 + n) for n in range(4)], RULES, tmp_path / "fleet")
    about = {"name": "t", "classes": 10, "labels": [], "shape": [1, 28, 28], "original": [1, 28, 28]}
    tasks = [{**about, "stored": "uint8", "mean": [], "std": []}] * 2
    run = peer.folder_of(settings, tmp_path / "runs", 0)
    (run / "model").mkdir(parents=True)
    (run / "model" / "tasks.json").write_text(json.dumps({"tasks": tasks, "layers": []}))
    labels = {"benchmark": "quickstart", "method": "codec", "agents": 4, "topology": "ring", "seed": 1}
    write_metrics(run, **labels, status=status)
    return run


def test_the_file_of_every_agent_names_the_next_task(tmp_path):
    finished_fleet(tmp_path)
    before = fleet.read(tmp_path / "fleet" / "agent-2" / "agent.yaml").fleet
    next_task.learn(tmp_path / "fleet", "next", tmp_path / "runs")
    texts = {path.read_text() for path in (tmp_path / "fleet").rglob("fleet.yaml")}
    assert len(texts) == 1
    after = fleet.read(tmp_path / "fleet" / "agent-2" / "agent.yaml").fleet
    assert after.run_config().data.tasks == 3
    assert [earlier.run_config() for earlier in after.earlier] == [before.run_config()]
    assert (after.name, after.addresses) == (before.name, before.addresses)
    with pytest.raises(ConfigError, match=r"no agent of this fleet has a run here .*say where: --out"):
        next_task.learn(tmp_path / "fleet", "next", tmp_path / "runs")  # it has to learn that one first


def test_a_fleet_that_was_stopped_is_told_to_end_first(tmp_path):
    finished_fleet(tmp_path, "partial")
    with pytest.raises(ConfigError, match=r"this agent has not ended; start it again"):
        next_task.learn(tmp_path / "fleet", "next", tmp_path / "runs")


def test_the_next_task_of_a_fleet_at_work_waits_until_an_agent_has_ended(tmp_path):
    handle = lock(finished_fleet(tmp_path, "partial"))
    before = [fleet.read(tmp_path / "fleet" / f"agent-{agent}" / "agent.yaml") for agent in range(4)]
    assert not next_task.take_next(before[0])
    added = next_task.learn(tmp_path / "fleet", "next", tmp_path / "runs")
    assert added.at_work
    assert [path.name for path in added.written] == [next_task.NEXT] * 4
    assert fleet.read(tmp_path / "fleet" / "agent-1" / "agent.yaml").fleet == before[1].fleet  # not yet
    with pytest.raises(ConfigError, match=r"next.yaml: a next task is waiting there already"):
        next_task.learn(tmp_path / "fleet", "next", tmp_path / "runs")
    os.close(handle)
    assert next_task.take_next(before[1])
    after = fleet.read(tmp_path / "fleet" / "agent-1" / "agent.yaml")
    assert after.fleet.run_config().data.tasks == 3
    assert not next_task.take_next(after)
    others = added.written[2]
    others.write_text(others.read_text().replace(before[0].fleet.name, "0" * 12))
    with pytest.raises(ConfigError):
        next_task.take_next(before[2])


@pytest.mark.alone
@pytest.mark.slow
def test_a_fleet_at_work_goes_on_with_the_task_that_it_is_given(data, tmp_path):
    """Four processes that are never started again end as a simulated run of all three tasks."""
    settings = config(tasks=None)
    working = LocalFleet(settings, RULES, tmp_path)
    whole = api.run(config(stream="split(mnist, 5) + whole(fashion-mnist)"), out=tmp_path / "whole", device="cpu")
    with working:
        while not all(working.run_folder(agent).joinpath("model", "tasks.json").is_file() for agent in range(4)):
            time.sleep(0.05)
        assert next_task.learn(tmp_path / "fleet", "fashion-mnist", tmp_path / "runs").at_work
        assert set(working.finished(240).values()) == {0}, working.log(0)
    later = Later(working)
    theirs = load_file(whole.folder / "model" / "body.safetensors")
    for agent, ours in enumerate(bodies(later)):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
        assert later.metrics(agent)["status"] == "complete"
        assert later.metrics(agent)["tasks"] == 3


def test_the_command_says_what_to_do_next(cli, tmp_path):
    finished_fleet(tmp_path)
    done = cli("peer", "learn", "fleet", "--task", "next", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "has 2 tasks; next: next" in done.stdout
    assert "start every agent again" in done.stdout


def test_agents_whose_next_task_differs_have_other_ids():
    alike = [History(START, {"head"}, (), {1: digest}) for digest in ("birds", "birds", "cats")]
    plain = History(START, {"head"})
    first = commit()
    for history in (*alike, plain):
        assert history.take(first) == 0
    ids = [history.newest_id for history in (*alike, plain)]
    assert ids[0] == ids[1]
    assert len({*ids}) == 3
    assert ids[0] == hashlib.sha256(first.id + b"birds").digest()
    assert [history.ids[0] for history in alike] == [START] * 3


def test_bytes_of_links_are_added_up():
    one, two = {"1": LinkBytes(sent=3, received=1)}, {"1": LinkBytes(sent=4), "2": LinkBytes(headers_sent=5)}
    assert added_up(one, two) == {"1": LinkBytes(sent=7, received=1), "2": LinkBytes(headers_sent=5)}
