"""Runs that differ in their seed alone are one configuration, with a name of its own and means over seeds."""

import math
import shutil

import pytest

from codecl.report.configurations import common_tasks, gather, group
from codecl.report.figures import Series
from tests.report.conftest import changed, make, one_of


def named(*paths):
    found = group(gather(paths).runs)
    return {one.name: [run.metrics.seed for run in one.runs] for one in found}


def test_seeds_belong_together(recorded):
    assert named(recorded) == {"codec · ring 4": [1, 2], "dpsgd · ring 4": [1, 2]}


def test_how_runs_ended_is_said_and_never_mixed(copied):
    changed(one_of(copied), status="degraded")
    assert named(copied) == {"codec · ring 4 (degraded)": [1], "codec · ring 4": [2], "dpsgd · ring 4": [1, 2]}


def test_a_variant_is_said_only_where_it_tells_runs_apart(copied):
    make(copied, "codec", None, None, "1", "train.lr=0.05")
    names = list(named(copied))
    assert len(names) == 3
    assert "dpsgd · ring 4" in names
    (other,) = [name for name in names if "lr=0.05" in name]
    assert other.startswith("codec · ring 4, ")


def test_equal_runs_in_two_places_have_two_names(recorded, copied):
    names = named(recorded, copied)
    assert len(names) == 4
    assert all(len(seeds) == 2 for seeds in names.values())
    assert sum(name.endswith(f"{copied.parent.name}/runs") for name in names) == 2


def test_what_does_not_tell_runs_apart_is_not_said(copied):
    for folder in copied.glob("*/seed-*"):
        (folder / "config.yaml").unlink()  # no words about a variant
    for folder in list(copied.glob("quickstart-codec-*")):
        folder.rename(folder.with_name("a"))
        shutil.copytree(copied / "a", copied / "b")
    assert list(named(copied)) == ["codec · ring 4, a", "codec · ring 4, b", "dpsgd · ring 4"]


def test_presets_are_said_where_there_are_several(copied):
    changed(one_of(copied, "dpsgd", 1), benchmark="other")
    changed(one_of(copied, "dpsgd", 2), benchmark="other")
    assert list(named(copied)) == ["other: dpsgd · ring 4", "quickstart: codec · ring 4"]


def test_a_point_is_the_mean_of_the_seeds_that_have_it():
    line = Series.over_seeds("a", [{0: 1.0, 1: 2.0, 3: None}, {1: 4.0, 2: 5.0}, {0: math.nan, 1: None}])
    assert (line.x, line.y) == ([0, 1, 2], [1.0, 3.0, 5.0])
    assert line.std == [None, pytest.approx(math.sqrt(2)), None]
    assert Series.over_seeds("a", [{0: 1.0}]).std is None
    assert Series.over_seeds("a", []).x == []


def test_tasks_have_names_of_their_own(copied):
    found = group(gather([copied]).runs)
    assert found[0].tasks == common_tasks(found) == ["digits", "clothes"]
    path = one_of(copied) / "events.jsonl"
    path.write_text(path.read_text().replace('"clothes"', '"digits"'))
    same = group(gather([path.parent]).runs)
    assert same[0].tasks == ["digits (1)", "digits (2)"]
    assert common_tasks([found[0], same[0]]) == ["task 1", "task 2"]
