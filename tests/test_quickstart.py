"""What the quickstart promises, measured as a user would see it."""

import json
import re
import time

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(cli, tmp_path_factory):
    folder = tmp_path_factory.mktemp("quickstart")
    began = time.monotonic()
    done = cli("run", "--json", cwd=folder)
    seconds = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    full = cli("run", "--method", "codec-full", "--json", "--quiet", cwd=folder)
    found = {run["method"]: run for run in [*json.loads(done.stdout), *json.loads(full.stdout)]}
    return found, seconds


def test_codec_remembers_and_dpsgd_forgets(runs):
    found, _ = runs
    codec, dpsgd = found["codec"], found["dpsgd"]
    assert codec["bwt"] > -3
    assert dpsgd["bwt"] < -8
    assert codec["acc"] > dpsgd["acc"] + 8


def test_bytes_are_saved(runs):
    traffic = runs[0]["codec"]["traffic"]
    assert traffic["cc"] >= 1.3
    assert traffic["cc_by_task"] == sorted(traffic["cc_by_task"])


def test_compression_loses_nothing_in_float32(runs):
    found, _ = runs
    assert abs(found["codec"]["acc"] - found["codec-full"]["acc"]) < 1


def test_both_methods_take_at_most_a_minute(runs):
    assert runs[1] < 60


def test_the_picture_in_the_readme_shows_these_numbers(runs):
    """To within what float32 on another processor may change."""
    picture = (ROOT / "docs" / "quickstart.svg").read_text().replace("&#160;", " ")
    for method in ("codec", "dpsgd"):
        acc, bwt = re.search(rf"[> ]{method} +ring 4 +1 +([\d.]+) +(-?[\d.]+) ", picture).groups()
        assert float(acc) == pytest.approx(runs[0][method]["acc"], abs=2)
        assert float(bwt) == pytest.approx(runs[0][method]["bwt"], abs=2.5)
