"""A task that arrives later: the run ends as if it had been there from the start."""

import json

import pytest
from torch import nn

import codecl
from codecl.data import store
from codecl.errors import ConfigError, DataError
from codecl.runs.grid import preset, resolve
from codecl.runs.next_task import extended
from codecl.runs.reader import read_config
from tests.cli.test_cli import TINY, failed
from tests.data.canonical import arrays
from tests.faults.test_resume import numbers, same
from tests.faults.victim import SETTINGS, TRAIN, module
from tests.problems import tasks

MORE = {**SETTINGS, "train": {"epochs": 3, **TRAIN}}


OWN = {"own": {"directions": 2}, "norms": "own"}
SHARE = {"own": {"share": 0.3}, "free": {"directions": 5, "first_task": True}}


@pytest.mark.parametrize(
    ("method", "more"),
    [("codec", {}), ("codec-full", {}), ("d-ewc", {}), ("stl", {}), ("codec", OWN), ("codec-full", SHARE)],
    ids=["codec", "codec-full", "d-ewc", "stl", "own directions", "a share of the body"],
)
def test_tasks_added_one_by_one_end_as_tasks_from_the_start(method, more, tmp_path):
    stream, settings = tasks(3), {"method": method, **MORE, **more}
    whole = codecl.fit(module(), stream, out=tmp_path / "whole", **settings)
    first = codecl.fit(module(), stream[:1], out=tmp_path / "parts", **settings)
    two = codecl.fit(module(), stream[:2], out=tmp_path / "parts", after=first, **settings)
    three = codecl.fit(module(), stream, out=tmp_path / "parts", after=two.folder, **settings)
    same(numbers(three.folder), numbers(whole.folder))
    assert three.folder.relative_to(tmp_path / "parts") == whole.folder.relative_to(tmp_path / "whole")
    assert len(first.metrics["accuracy_matrix"]) == 1  # and the runs before are as they were
    trained = [json.loads(line)["kind"] for line in (three.folder / "events.jsonl").read_text().splitlines()]
    assert trained.count("run") == 1
    again = codecl.fit(module(), stream, out=tmp_path / "parts", after=two, **settings)
    assert not again.trained


def test_a_task_with_more_classes_and_an_interruption(tmp_path):
    stream = [*tasks(2), tasks(3, classes=5)[2]]
    whole = codecl.fit(module(), stream, out=tmp_path / "whole", **MORE)
    before = codecl.fit(module(), stream[:2], out=tmp_path / "parts", **MORE)

    def stop(event):
        if event.kind == "epoch" and event.task == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        codecl.fit(module(), stream, out=tmp_path / "parts", after=before, on_event=stop, **MORE)
    ours = codecl.fit(module(), stream, out=tmp_path / "parts", after=before, **MORE)
    same(numbers(ours.folder), numbers(whole.folder))


def test_what_cannot_be_extended_is_said(tmp_path):
    stream = tasks(3)
    done = codecl.fit(module(), stream[:2], out=tmp_path, **MORE)
    with pytest.raises(ConfigError, match=r"after: the tasks of .* are not the first of these tasks"):
        codecl.fit(module(), stream[1:], out=tmp_path, after=done, **MORE)
    with pytest.raises(ConfigError, match=r"has another config \(agents: 4, 3\)"):
        codecl.fit(module(), stream, agents=3, out=tmp_path, after=done, **MORE)
    wider = nn.Sequential(*module()[:-1], nn.Linear(8, 5))
    with pytest.raises(ConfigError, match=r"model: '7' is Linear\(.*out_features=5.*\), but Linear\(.*out_features=3"):
        codecl.fit(wider, stream, out=tmp_path, after=done, **MORE)
    with pytest.raises(ConfigError, match=r"its 2 tasks should come first, and at least one more after them"):
        codecl.fit(module(), stream[:2], out=tmp_path / "there", after=done, **MORE)
    with pytest.raises(
        ConfigError, match=r"was made with a model of your own; codecl.Learner.open\(RUN, model\).learn\(task\)"
    ):
        extended(read_config(done.folder), "mnist")
    named = [stream[0]._replace(name="another"), *stream[1:]]
    with pytest.raises(ConfigError, match=r"its task 1 is another \(name: t0, another\)"):
        codecl.fit(module(), named, out=tmp_path / "there", after=done, **MORE)
    path = done.folder / "metrics.json"
    path.write_text(path.read_text().replace('"complete"', '"partial"'))
    with pytest.raises(ConfigError, match="ended partial; only a complete run can be extended"):
        codecl.fit(module(), stream, out=tmp_path, after=done.folder, **MORE)


def test_an_unknown_task_is_told_what_there_is(tmp_path, monkeypatch):
    monkeypatch.setenv("CODECL_DATA", str(tmp_path))
    store.write("birds", arrays("mnist", 60, 20))
    old = resolve(preset("quickstart"), {})
    with pytest.raises(
        ConfigError, match=r"--task: 'bird' is unknown, did you mean 'birds'\?; there are birds, .*quickstart"
    ):
        extended(old, "bird")
    assert extended(old, "birds").data.stream.endswith(" + whole(birds)")


def test_streams_come_one_after_another(tmp_path, monkeypatch):
    monkeypatch.setenv("CODECL_DATA", str(tmp_path))
    for name in ("mnist", "notmnist"):
        store.write(name, arrays(name, 60, 20))
    quick = resolve(preset("quickstart"), {})
    config = extended(quick, "mnist")
    assert config.data.stream == "quickstart + whole(mnist)"
    assert config.sources["data"]
    twice = extended(config, "split(notmnist, 5)")
    assert twice.data.stream == "quickstart + whole(mnist) + split(notmnist, 5)"
    assert twice.sources["data"] != config.sources["data"]
    with pytest.raises(ConfigError, match="--task next: the run has learned all 5 tasks of its stream quickstart"):
        extended(quick, "next")
    begun = resolve(preset("quickstart"), {"data": {"tasks": 2}})
    assert extended(begun, "next").data.tasks == 3
    with pytest.raises(ConfigError, match="the run stopped inside its stream quickstart; --task next goes on there"):
        extended(begun, "mnist")
    through = resolve(preset("quickstart"), {"data": {"tasks": 5}})  # it went to the end of its stream
    assert extended(through, "mnist") == config
    with pytest.raises(ConfigError, match="has learned all 5 tasks"):
        extended(through, "next")
    store.write("mnist", arrays("mnist", 60, 20, seed=1))
    with pytest.raises(DataError, match=r"files behind .* are missing, or not those of the run any more"):
        extended(config, "notmnist")


def test_the_command_needs_no_old_data(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("CODECL_DATA", str(tmp_path / "data"))
    for name in ("mnist", "notmnist"):
        store.write(name, arrays(name, 80, 20))
    small = ("--agents", "2", "--method", "codec", "--quiet", "--set", "train.epochs=1", "--set", "train.batch_size=10")
    small += ("--set", "train.execution=loop", "--set", "model.name=mlp", "--set")
    assert cli("run", "quickstart", *small, "data.stream=whole(mnist)", cwd=tmp_path).returncode == 0
    (first,) = (path.parent for path in tmp_path.rglob("metrics.json"))
    both = "data.stream=whole(mnist) + whole(notmnist)"
    assert cli("run", "quickstart", *small, both, "--out", "whole", cwd=tmp_path).returncode == 0
    (whole,) = (path.parent for path in (tmp_path / "whole").rglob("metrics.json"))
    store.path_of("mnist").unlink()
    done = cli("extend", str(first), "--task", "notmnist", "--json", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (ours,) = json.loads(done.stdout)
    folder = tmp_path / ours["folder"]
    assert (folder / "config.yaml").read_text() == (whole / "config.yaml").read_text()
    same((None, [], numbers(folder)[2]), (None, [], numbers(whole)[2]))
    assert (ours["accuracy_matrix"][1][0], ours["not_scored"]) == (None, [0])
    assert ours["data_sets"] == numbers(whole)[0]["data_sets"]
    again = cli("extend", str(first), "--task", "notmnist", "--json", "--quiet", cwd=tmp_path)
    assert json.loads(again.stdout) == [ours]


@pytest.mark.slow
def test_the_command(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("CODECL_DATA", str(tmp_path / "data"))
    store.write("notmnist", arrays("notmnist", 400, 100))
    tiny = (*TINY, "--method", "codec", "--quiet", "--set", "train.execution=loop")
    assert cli("run", *tiny, "--set", "data.tasks=1", cwd=tmp_path).returncode == 0
    (first,) = (path.parent for path in tmp_path.rglob("metrics.json"))
    done = cli("extend", str(first), "--task", "next", "--json", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (ours,) = json.loads(done.stdout)
    assert ours["tasks"] == 2
    assert cli("run", *tiny, "--set", "data.tasks=2", "--out", "whole", cwd=tmp_path).returncode == 0
    (whole,) = (path.parent for path in (tmp_path / "whole").rglob("metrics.json"))
    same(numbers(tmp_path / ours["folder"]), numbers(whole))
    assert "stopped inside" in failed(cli("extend", str(first), "--task", "notmnist", cwd=tmp_path), 2)
    done = cli("extend", str(first), "--task", "nowhere", cwd=tmp_path)
    assert done.returncode == 2
