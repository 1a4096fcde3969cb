"""`codecl peer local` and `codecl agent`, as a user types them."""

import csv
import json
import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save_file

from codecl.peers import agent as peer
from codecl.peers import fleet
from codecl.peers.decisions import PeersConfig
from codecl.report.configurations import gather
from codecl.report.page import sections
from codecl.runs.grid import preset, resolve
from codecl.runs.reader import as_fleets, find_runs, read_run
from codecl.train.events import TaskOpened
from tests.conftest import ROOT
from tests.fleets import LocalFleet
from tests.launching import codecl, running, wait_for

pytest.importorskip("grpc")

SMALL = ["--agents", "3", "--set", "train.epochs=2", "--set", "data.tasks=2"]


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    folder = tmp_path_factory.mktemp("local")
    return folder, codecl("peer", "local", "quickstart", *SMALL, cwd=folder)


@pytest.mark.alone
def test_a_local_fleet_runs_and_says_how_it_went(local):
    folder, done = local
    assert done.returncode == 0, done.stderr
    assert "quickstart: codec, 3 peers on ring" in done.stdout
    for agent in range(3):  # as `codecl watch` says it
        assert f"agent {agent}: complete · task 2/2 · loss " in done.stdout
    (seed,) = (folder / "runs").glob("*/seed-0")
    names = sorted(path.name for path in seed.iterdir() if path.is_dir())
    assert names == ["agent-0", "agent-1", "agent-2"]
    assert len(list((folder / "runs" / ".fleets").glob("*/seed-0/agent-?/key.pem"))) == 3
    for path in sorted(seed.glob("agent-?")):
        found = json.loads((path / "metrics.json").read_text())
        assert (found["status"], found["missed"], found["exchange"]) == ("complete", 0, "peers")
        assert len(found["links"]) == 2
        assert found["traffic"]["wire_bytes"] > found["traffic"]["train_bytes"]
        assert len(found["disagreement_by_task"]) == 2


@pytest.mark.alone
def test_a_fleet_is_one_run_in_figures(local):
    folder, _ = local
    (run,) = gather([folder / "runs"]).runs
    agents = [json.loads(path.read_text()) for path in sorted(folder.glob("runs/*/seed-0/agent-?/metrics.json"))]
    assert run.folder.name == "seed-0"
    assert run.metrics.traffic.train_bytes == sum(agent["traffic"]["train_bytes"] for agent in agents)
    shown = {section.key: section.figures for section in sections([run])}
    assert "consensus" not in shown, "no peer knows it"
    assert len(shown["loss"][""].series) == 1
    (network,) = shown["network"].values()
    sent = {(int(agent["agent"]), int(to)): link["sent"] for agent in agents for to, link in agent["links"].items()}
    assert {edge[:2]: edge[2] for edge in network.edges} == {link: count for link, count in sent.items() if count}
    assert len(network.edges) == 3


@pytest.mark.alone
def test_a_fleet_is_one_run_in_a_table_and_scores_as_a_simulated_one(local):
    folder, _ = local
    assert codecl("run", "quickstart", "--method", "codec", *SMALL, cwd=folder).returncode == 0
    shown = codecl("table", "runs", "--format", "csv", cwd=folder).stdout.splitlines()
    simulated, together = csv.DictReader(shown)
    differing = {name for name, value in simulated.items() if value != together[name]}
    assert {"variant"} <= differing <= {"variant", "ms a step", "ms_per_iteration"}, shown
    assert together["variant"].startswith("peers")


@pytest.mark.alone
def test_what_is_complete_is_not_repeated(local):
    folder, _ = local
    again = codecl("peer", "local", "quickstart", *SMALL, cwd=folder)
    assert again.returncode == 0
    assert "under way" not in again.stdout


@pytest.mark.alone
def test_an_interrupted_fleet_leaves_nobody_behind_and_goes_on(tmp_path):
    more = ["--agents", "3", "--set", "data.tasks=2", "--set", "train.epochs=10"]

    def evaluated():
        records = [path.read_text() for path in tmp_path.glob("runs/*/seed-0/agent-?/events.jsonl")]
        return sum('"kind": "eval"' in record for record in records) == 3

    with running("peer", "local", "quickstart", *more, cwd=tmp_path) as process:
        wait_for(evaluated, process)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) == 3
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    for path in tmp_path.glob("runs/*/seed-0/agent-?/metrics.json"):
        assert json.loads(path.read_text())["status"] == "partial"
    again = codecl("peer", "local", "quickstart", *more, cwd=tmp_path)
    assert again.returncode == 4, again.stderr
    for path in tmp_path.glob("runs/*/seed-0/agent-?/events.jsonl"):
        facts = [json.loads(line) for line in path.read_text().splitlines()]
        assert [fact["task"] for fact in facts if fact["kind"] == "flood"] == [0, 1]  # the first task was not repeated
        assert json.loads(path.with_name("metrics.json").read_text())["status"] == "degraded"


@pytest.mark.long
def test_a_fleet_that_is_started_again_goes_on_from_its_last_chart(tmp_path):
    fields = {"agents": 3, "data": {"tasks": 3}, "train": {"epochs": 2}, "method": {"name": "codec"}}
    with LocalFleet(resolve(preset("quickstart"), fields), PeersConfig(), tmp_path) as running:
        for agent in range(3):
            running.until(agent, "eval", 0)
        for agent in range(3):
            running.signal(agent, signal.SIGKILL)
        before = {agent: running.events(agent) for agent in range(3)}
        for agent in range(3):
            running.start(agent)
        assert set(running.finished(120).values()) == {4}, running.log(0)
        for agent in range(3):
            events = running.events(agent)
            assert events[: len(before[agent])] == before[agent]  # what was recorded stays
            later = events[len(before[agent]) :]
            assert {event["state"] for event in later if event["kind"] == "member"} >= {"restarted"}
            assert not any(event["kind"] == "flood" and event["task"] == 0 for event in later)
            found = running.metrics(agent)
            assert (found["status"], len(found["accuracy_matrix"])) == ("degraded", 3)
            assert all(score is not None for score in found["accuracy_matrix"][2])


@pytest.mark.alone
def test_agents_train_on_data_of_their_own(tmp_path):
    """Two machines, each with images that the other does not have."""
    fields = {
        "data": {"stream": "split(shapes, 2, 4)", "steps_per_epoch": 5, "mean": [0.5], "std": [0.25]},
        "agents": 2,
        "topology": {"name": "complete"},
        "train": {"epochs": 4, "batch_size": 8, "lr": 0.05},
        "growth": {"images": 30},
        "model": {"name": "mlp"},
        "method": {"name": "codec"},
    }
    shapes = torch.randint(150, (4, 1, 8, 8), generator=torch.Generator().manual_seed(9))
    for agent in range(2):
        generator = torch.Generator().manual_seed(agent)
        labels = torch.arange(80) % 4
        images = shapes[labels] + torch.randint(100, (80, 1, 8, 8), generator=generator)
        parts = {"images": images.to(torch.uint8), "labels": labels}
        both = {f"{split}_{name}": part.clone() for split in ("train", "test") for name, part in parts.items()}
        (tmp_path / f"own-{agent}").mkdir()
        save_file(both, tmp_path / f"own-{agent}" / "shapes.safetensors")
    config = resolve(preset("quickstart"), fields)
    running = LocalFleet(config, PeersConfig(min_images=10), tmp_path)
    for agent, path in enumerate(running.files):
        known = yaml.safe_load(path.read_text())
        path.write_text(yaml.safe_dump({**known, "data": {"local_path": str(tmp_path / f"own-{agent}")}}))
    with running:
        assert set(running.finished(120).values()) == {0}, running.log(0)
        scores = [running.metrics(agent)["acc"] for agent in range(2)]
    assert min(scores) > 80
    (fleet,) = as_fleets([read_run(folder) for folder in find_runs([tmp_path])])
    counts = [event.class_counts for event in fleet.of(TaskOpened)]
    assert counts == [{"0": [20, 20], "1": [20, 20]}, {"2": [20, 20], "3": [20, 20]}], (
        "each recorded its own, the fleet shows all"
    )


def test_growing_from_a_few_images_is_refused(tmp_path):
    config = resolve(preset("quickstart"), {"agents": 2, "topology": {"name": "complete"}, "method": {"name": "codec"}})
    rules = PeersConfig(min_images=100_000)
    file = fleet.init(config, [("127.0.0.1", 7790), ("127.0.0.1", 7791)], rules, tmp_path / "fleet")[0]
    done = codecl("agent", str(file), cwd=tmp_path)
    assert done.returncode == 2
    assert "min_images" in done.stderr


def test_an_address_in_use_is_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = resolve(preset("quickstart"), {"agents": 2, "topology": {"name": "complete"}})
        addresses = [("127.0.0.1", taken.getsockname()[1]), ("127.0.0.1", 7791)]
        file = fleet.init(config, addresses, PeersConfig(), tmp_path / "fleet")[0]
        done = codecl("agent", str(file), cwd=tmp_path)
    assert done.returncode == 2
    assert "cannot be listened on" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_spans_say_who_was_missed_when():
    assert peer.spans([(3, 1), (4, 1), (9, 1), (4, 2)]) == {"1": [(3, 4), (9, 9)], "2": [(4, 4)]}


def test_the_page_says_how_a_fleet_is_made(tmp_path):
    page = (ROOT / "docs" / "peers.md").read_text()
    (line,) = [line.split() for line in page.splitlines() if line.strip().startswith("$ codecl peer init")]
    done = codecl(*line[2:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    made = sorted(path.name for path in (tmp_path / "fleet" / "agent-3").iterdir())
    assert made == ["agent.yaml", "certificate.pem", "fleet.yaml", "key.pem"]
    for state in ("connected", "lost", "back", "dead", "alive", "linked", "joined", "gone", "discarded"):
        assert state in page


def agents_of(fleet_folder):
    """Process numbers of the agents of a local fleet, by agent."""
    out = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")
            files = [word for word in words if word.endswith("agent.yaml") and str(fleet_folder) in word]
            if files and "agent" in words:
                out[int(Path(files[0]).parent.name.removeprefix("agent-"))] = int(path.parent.name)
    return out


@pytest.mark.alone
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
def test_a_local_fleet_whose_member_is_killed_is_degraded_not_failed(tmp_path):
    out = tmp_path / "runs"
    more = ["--set", "train.epochs=6", "--set", "data.tasks=2", "--agents", "3", "--silence", "2", "--deadline", "1"]
    with running("peer", "local", "quickstart", *more, "--out", out, cwd=tmp_path, output=subprocess.PIPE) as process:
        records = lambda: [path.read_text() for path in out.glob("*/seed-0/agent-1/events.jsonl")]  # noqa: E731
        wait_for(lambda: any('"kind": "epoch"' in record for record in records()), process)
        os.kill(agents_of(out)[1], signal.SIGKILL)
        _, said = process.communicate(timeout=150)
    assert process.returncode == 4, said
    assert "agent 1 was lost (killed by signal 9); see" in said
    assert "Traceback" not in said
    statuses = [json.loads(path.read_text())["status"] for path in sorted(out.glob("*/seed-0/agent-?/metrics.json"))]
    assert statuses == ["degraded", "degraded"]
