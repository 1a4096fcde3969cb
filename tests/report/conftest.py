"""Small real runs to make figures of."""

import shutil

import pytest

from codecl import api
from codecl.runs import grid


def make(out, method="codec", agents=None, topology=None, seeds=None, *settings):
    small = ["train.epochs=2", "data.tasks=2", "train.batch_size=20", *settings]
    for config in grid.configs("quickstart", method, agents, topology, seeds, small):
        api.run(config, out=out, device="cpu", mu=True)
    return out


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
