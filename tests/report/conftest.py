"""Small real runs to make figures of, and metrics by hand."""

import json
import shutil

import pytest

from codecl import api
from codecl.runs.config import grid
from codecl.runs.schema import Metrics, Timing, Traffic


def make(out, method="codec", agents=None, topology=None, seeds=None, *settings):
    small = ["train.epochs=2", "data.tasks=2", "train.batch_size=20", *settings]
    for config in grid("quickstart", method, agents, topology, seeds, small):
        api.run(config, out=out, device="cpu", mu=True)
    return out


def write_metrics(folder, traffic=None, ms_per_iteration=3.0, **fields):
    """metrics.json of a run with these labels and scores; all else is made up."""
    sent = {"cc": 2.0, "cc_reference": 1.75, "train_bytes": 1000, "boundary_bytes": 500, "full_bytes": 3000}
    metrics = Metrics(
        **{"acc": 54.0, "bwt": -1.0, "tasks": 1, "accuracy_matrix": [], "consensus_error_by_task": []} | fields,
        traffic=Traffic(**{"cc_by_task": [], "wire_bytes": None} | sent | (traffic or {})),
        timing=Timing(train_s=1.0, iterations=100, ms_per_iteration=ms_per_iteration, wall_s=2.0),
        free_by_task=[],
        kept_by_task=[],
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.json").write_text(json.dumps(metrics.dump()))


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """codec and dpsgd on a ring of 4, two seeds each. To be read only."""
    return make(tmp_path_factory.mktemp("runs"), "codec,dpsgd", seeds="1,2")


@pytest.fixture(scope="session")
def others(tmp_path_factory):
    """One agent alone, tasks alone, a torus. To be read only."""
    out = tmp_path_factory.mktemp("others")
    make(out, "stl")
    make(out, "codec", agents="1")
    return make(out, "codec", agents="8", topology="torus")


@pytest.fixture
def copied(recorded, tmp_path):
    """The runs of `recorded`, to be changed."""
    return shutil.copytree(recorded, tmp_path / "runs")


def one_of(runs, method="codec", seed=1):
    (folder,) = runs.glob(f"quickstart-{method}-ring4-*/seed-{seed}")
    return folder


def events(folder):
    return (folder / "events.jsonl").read_text().splitlines(keepends=True)


def changed(folder, **fields):
    path = folder / "metrics.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
