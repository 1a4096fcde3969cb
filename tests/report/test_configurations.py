"""What can be used of some folders is used, of the rest it is said why not; runs that differ in their seed alone are
one configuration, with a name of its own and means over seeds."""

import json
import math
import shutil

import pytest
import yaml

from codecl.errors import DataError
from codecl.report.configurations import common_tasks, gather, group
from codecl.report.figures import Series
from codecl.report.page import sections
from codecl.runs.reader import find_runs, read_config, read_metrics
from codecl.train.events import EpochEnded
from tests.problems import change_metrics, event_lines, record, recorded_run


def test_all_runs_as_they_were_recorded(recorded):
    found = gather([recorded])
    assert found.refused == []
    assert [run.folder for run in found.runs] == find_runs([recorded])
    for run in found.runs:
        assert run.metrics == read_metrics(run.folder)
        assert run.config == read_config(run.folder)
        assert [json.dumps(event.record()) + "\n" for event in run.events] == event_lines(run.folder)


def test_a_run_of_which_only_scores_were_kept_has_no_curves(copied):
    (recorded_run(copied) / "events.jsonl").unlink()
    found = gather([copied])
    assert (len(found.runs), found.refused) == (4, [])
    (run,) = [run for run in found.runs if not run.events]
    assert run.metrics == read_metrics(recorded_run(copied))
    shown = {section.key for section in sections([run])}
    assert {"forgetting", "mean", "matrix", "compression", "free", "bytes"} <= shown
    assert not {"consensus", "loss", "network", "mu"} & shown


def test_the_paper_method_comes_first_and_its_opponents_after_it(copied):
    for path in copied.glob("quickstart-codec-ring4-*/seed-1"):
        change_metrics(path, method="zebra")
    methods = [run.metrics.method for run in gather([copied]).runs]
    assert methods == ["codec", "dpsgd", "dpsgd", "zebra"]


def test_a_run_that_two_paths_hold_is_one(recorded):
    twice = gather([recorded, recorded_run(recorded).parent, recorded_run(recorded)])
    assert len(twice.runs) == 4


def test_a_run_under_way_has_the_metrics_of_what_it_recorded(copied):
    folder = recorded_run(copied)
    whole = read_metrics(folder)
    (folder / "metrics.json").unlink()
    lines = event_lines(folder)
    place = next(i for i, line in enumerate(lines) if '"kind": "epoch"' in line and '"task": 1' in line)
    (folder / "events.jsonl").write_text("".join(lines[: place + 1]) + lines[place + 1][:40])
    found = gather([copied])
    assert (len(found.runs), found.refused) == (4, [])
    (run,) = [run for run in found.runs if run.folder == folder]
    assert run.metrics.status == "partial"
    assert run.metrics.accuracy_matrix == whole.accuracy_matrix[:1]
    assert run.metrics.traffic.cc_by_task[0] == whole.traffic.cc_by_task[0]
    labels = run.metrics
    assert (labels.benchmark, labels.method, labels.seed, labels.tasks) == ("quickstart", "codec", 1, 2)
    assert (labels.agents, labels.topology) == (4, "ring")
    assert len(run.of(EpochEnded)) == 3, "the half line is not an event"


def test_a_run_that_went_on_after_its_last_metrics_shows_what_is_new(copied):
    folder = recorded_run(copied)
    whole = read_metrics(folder)
    change_metrics(folder, status="partial", accuracy_matrix=whole.accuracy_matrix[:1])
    (run,) = [run for run in gather([copied]).runs if run.folder == folder]
    assert (run.metrics.status, run.metrics.accuracy_matrix) == ("partial", whole.accuracy_matrix)


def test_degraded_runs_and_broken_configs_are_used(copied):
    change_metrics(recorded_run(copied), status="degraded")
    (recorded_run(copied, seed=2) / "config.yaml").write_text("{")
    found = gather([copied])
    assert found.refused == []
    assert [run.metrics.status for run in found.runs].count("degraded") == 1
    assert [run.config for run in found.runs].count(None) == 1


SPOILED = {
    "broken metrics": ("metrics.json", "{", "metrics.json is broken, it cannot be read as JSON"),
    "a list": ("metrics.json", "[]", "metrics.json is not a run's (it names no schema)"),
    "another's": ("metrics.json", '{"loss": 1}', "metrics.json is not a run's (it names no schema)"),
    "a later version": ("metrics.json", '{"schema": 3}', "metrics.json is of another version (schema 3, known is 2)"),
    "half of it": ("metrics.json", '{"schema": 2}', "metrics.json is broken, benchmark is not in it"),
    "a broken line": ("events.jsonl", '{"kind": "run\n{"kind": "end"}\n', "events.jsonl is broken at line 1"),
    "no kind": ("events.jsonl", '{"loss": 1}\n', "events.jsonl is not a run's (line 1 has no kind)"),
    "a fact too short": ("events.jsonl", '{"kind": "eval", "task": 0}\n', "line 1, accuracy is not in it"),
    "nothing yet": ("events.jsonl", "", "nothing is recorded in it yet"),
}


@pytest.mark.parametrize(("name", "text", "why"), SPOILED.values(), ids=SPOILED)
def test_what_cannot_be_used_is_said_and_the_rest_goes_on(copied, name, text, why):
    path = recorded_run(copied) / name
    path.write_text(text)
    found = gather([copied])
    assert len(found.runs) == 3
    (refused,) = found.refused
    assert refused.folder == path.parent
    assert why in refused.why
    assert str(path.parent) not in refused.why
    with pytest.raises(DataError) as raised:
        gather([path.parent])
    assert str(raised.value) == f"{path.parent}: {refused.why}"


def test_folders_that_were_never_runs(copied):
    for name in ("empty", "foreign", "begun"):
        (copied.parent / name).mkdir()
    (copied.parent / "foreign" / "config.yaml").write_text("lr: 3\n")
    shutil.copy(recorded_run(copied) / "config.yaml", copied.parent / "begun")
    found = gather([copied, *(copied.parent / name for name in ("empty", "gone", "foreign", "begun"))])
    assert len(found.runs) == 4
    assert {refused.folder.name: refused.why for refused in found.refused} == {
        "empty": "no runs in it (no metrics.json or events.jsonl or config.yaml)",
        "gone": "no such folder",
        "foreign": "config.yaml in it is not a run's (no events.jsonl)",
        "begun": "nothing is recorded in it yet (no events.jsonl)",
    }


def test_a_fleet_and_a_simulated_run_in_one_folder_stay_apart(copied):
    """Of a fleet, the agent that got furthest tells of the time; one that was killed is not left out."""
    folder = recorded_run(copied)
    for agent, to in enumerate((1, 0)):
        shutil.copytree(folder, folder / f"agent-{agent}", ignore=shutil.ignore_patterns("agent-*"))
        change_metrics(folder / f"agent-{agent}", agent=agent, exchange="peers", links={to: {"sent": 5 + agent}})
    killed = folder / "agent-0"
    change_metrics(killed, status="partial")
    lines = [line.replace('"agents"', '"agent": 0, "exchange": "peers", "agents"') for line in event_lines(killed)[:3]]
    (killed / "events.jsonl").write_text("".join(lines))
    simulated, fleet = (run for run in gather([folder]).runs)
    assert simulated.folder == fleet.folder == folder
    assert (simulated.metrics.status, fleet.metrics.status) == ("complete", "partial")
    assert simulated.metrics == read_metrics(folder)
    assert len(fleet.of(EpochEnded)) == 4
    assert fleet.links == [(1, 0, 6)]
    assert fleet.metrics.recorded_agents == 2


def test_nothing_at_all_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"gone: no such folder$"):
        gather([tmp_path / "gone"])
    with pytest.raises(DataError, match=r"no runs in it .*; nor can 1 more be used$"):
        gather([tmp_path, tmp_path / "gone"])


def named(*paths):
    found = group(gather(paths).runs)
    return {one.name: [run.metrics.seed for run in one.runs] for one in found}


def test_seeds_belong_together(recorded):
    assert named(recorded) == {"codec · ring 4": [1, 2], "dpsgd · ring 4": [1, 2]}


def test_seeds_belong_together_though_an_older_version_called_the_folder_otherwise(copied):
    folder = recorded_run(copied)
    older = copied / "quickstart-codec-ring4-0ld3r" / "seed-1"
    older.parent.mkdir()
    folder.rename(older)
    config = yaml.safe_load((older / "config.yaml").read_text())
    del config["own"], config["checkpoint"]
    (older / "config.yaml").write_text(yaml.safe_dump(config))
    assert {name: sorted(seeds) for name, seeds in named(copied).items()} == {
        "codec · ring 4": [1, 2],
        "dpsgd · ring 4": [1, 2],
    }
    shutil.copytree(older, folder)
    assert sorted(map(sorted, named(copied).values())) == [[1], [1, 2], [1, 2]]


def test_how_runs_ended_is_said_and_never_mixed(copied):
    change_metrics(recorded_run(copied), status="degraded")
    assert named(copied) == {"codec · ring 4 (degraded)": [1], "codec · ring 4": [2], "dpsgd · ring 4": [1, 2]}
    for seed in (1, 2):
        (recorded_run(copied, seed=seed) / "metrics.json").unlink()
    assert list(named(copied)) == ["codec · ring 4 (partial)", "dpsgd · ring 4"]


def test_a_variant_is_said_where_others_have_it_otherwise(copied):
    """Of a method that is there once as well: a reader must not take it for one in the setting of the others."""
    record(copied, "codec", None, None, "1", "train.lr=0.05")
    record(copied, "d-ewc", None, None, "1", "data.partition=skew(1.0)")
    assert sorted(named(copied)) == [
        "codec · ring 4",
        "codec · ring 4, train.lr=0.05",
        "d-ewc · ring 4, data.partition=skew(1.0)",
        "dpsgd · ring 4",
    ]


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
    change_metrics(recorded_run(copied, "dpsgd", 1), benchmark="other")
    change_metrics(recorded_run(copied, "dpsgd", 2), benchmark="other")
    assert list(named(copied)) == ["other: dpsgd · ring 4", "quickstart: codec · ring 4"]


def test_a_point_is_the_mean_of_the_seeds_that_have_it():
    line = Series.over_seeds("a", [{0: 1.0, 1: 2.0, 3: None}, {1: 4.0, 2: 5.0}, {0: math.nan, 1: None}])
    assert (line.x, line.y) == ([0, 1, 2], [1.0, 3.0, 5.0])
    assert line.std == [None, pytest.approx(math.sqrt(2)), None]
    assert Series.over_seeds("a", [{0: 1.0}]).std is None
    assert Series.over_seeds("a", []).x == []


def test_tasks_have_names_of_their_own(copied):
    found = group(gather([copied]).runs)
    assert found[0].tasks == common_tasks(found) == ["1 digits", "2 clothes"]
    path = recorded_run(copied) / "events.jsonl"
    path.write_text(path.read_text().replace('"clothes"', '"digits"'))
    same = group(gather([path.parent]).runs)
    assert same[0].tasks == ["1 digits", "2 digits"]
    assert common_tasks([found[0], same[0]]) == ["task 1", "task 2"]
    path.unlink()
    unknown = group(gather([path.parent]).runs)
    assert unknown[0].tasks == ["task 1", "task 2"]
    assert common_tasks([found[0], unknown[0]]) == ["1 digits", "2 clothes"], "as far as they are known"
