"""What the quickstart promises, measured as a user would see it."""

import itertools
import json
import math
import re
import statistics
import time

import pytest

from codecl.runs.reader import read_events
from codecl.train.events import EpochEnded, of_type
from tests.conftest import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(cli, tmp_path_factory):
    folder = tmp_path_factory.mktemp("quickstart")
    began = time.process_time()  # what it takes by itself, whatever runs beside it
    done = cli("run", "--json", "--mu", cwd=folder)
    seconds = time.process_time() - began
    assert done.returncode == 0, done.stderr
    full = cli("run", "--method", "codec-full", "--json", "--quiet", cwd=folder)
    found = {run["method"]: run for run in [*json.loads(done.stdout), *json.loads(full.stdout)]}
    return {name: run | {"folder": folder / run["folder"]} for name, run in found.items()}, seconds


def test_codec_remembers_and_dpsgd_forgets(runs):
    codec, dpsgd = runs[0]["codec"], runs[0]["dpsgd"]
    assert codec["bwt"] > -3
    assert dpsgd["bwt"] < -8
    assert codec["acc"] > dpsgd["acc"] + 8


def test_bytes_are_saved(runs):
    traffic = runs[0]["codec"]["traffic"]
    assert traffic["cc"] >= 1.3
    assert traffic["cc_by_task"] == sorted(traffic["cc_by_task"])


def test_compression_loses_nothing_in_float32(runs):
    assert abs(runs[0]["codec"]["acc"] - runs[0]["codec-full"]["acc"]) < 1


def consensus_by_task(folder):
    """The consensus error after each epoch, a list a task."""
    epochs = itertools.groupby(of_type(read_events(folder), EpochEnded), key=lambda event: event.task)
    return [[event.consensus_error for event in events] for _, events in epochs]


def test_consensus_error_falls_with_training_as_well_with_constraints_as_without(runs):
    """The shape of the paper's Figure 2."""
    ours, free = (consensus_by_task(runs[0][method]["folder"]) for method in ("codec", "dpsgd"))
    for with_constraints, without in zip(ours, free, strict=True):
        for errors in (with_constraints, without):
            assert errors[-1] < 1e-3 * errors[0]
        ratios = [math.log10(a / b) for a, b in zip(with_constraints, without, strict=True)]
        assert abs(statistics.fmean(ratios)) < 0.7, "within a factor of five of each other"


def test_how_constrained_a_gradient_is_grows_with_the_core_space(runs):
    codec, dpsgd = (runs[0][method]["mu_by_task"] for method in ("codec", "dpsgd"))
    assert [task["mean"] for task in dpsgd] == [1] * 5
    assert codec[0] == {"mean": 1, "max": 1}
    for before, after in itertools.pairwise(codec[:4]):
        assert after["mean"] < 0.9 * before["mean"]
    assert all(task["mean"] <= task["max"] < 0.7 for task in codec[1:])


def test_both_methods_take_at_most_a_minute(runs):
    assert runs[1] < 60


def test_the_picture_in_the_readme_shows_these_numbers(runs):
    """To within what float32 on another processor may change."""
    picture = (ROOT / "docs" / "quickstart.svg").read_text().replace("&#160;", " ")
    for method in ("codec", "dpsgd"):
        acc, bwt = re.search(rf"[> ]{method} +ring 4 +1 +([\d.]+) +(-?[\d.]+) ", picture).groups()
        assert float(acc) == pytest.approx(runs[0][method]["acc"], abs=2)
        assert float(bwt) == pytest.approx(runs[0][method]["bwt"], abs=2.5)
