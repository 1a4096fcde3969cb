"""An agent's own data: read where it lies, never dealt, nothing measured on it that agents must have in common."""

import pytest
import torch

from codecl import api
from codecl.data import store
from codecl.data.store import ImageSet
from codecl.data.streams import FIVE
from codecl.errors import ConfigError, DataError
from codecl.runs.build import build_setup, check, load_tasks, task_data
from codecl.runs.config import validate
from codecl.runs.grid import preset as preset_of
from codecl.runs.grid import resolve
from codecl.train.loop import train
from tests.data.canonical import arrays
from tests.problems import CPU, build, config, perceptron, tasks

LOCAL = r"data\.local_path: "
STATED = {"mean": [0.5], "std": [0.25], "steps_per_epoch": 3}


@pytest.fixture(autouse=True)
def common(monkeypatch, tmp_path):
    """The data folder, which is not to be read."""
    monkeypatch.setenv("CODECL_DATA", str(tmp_path / "common"))


def write(folder, name, images, monkeypatch):
    with monkeypatch.context() as there:
        there.setenv("CODECL_DATA", str(folder))
        return store.write(name, images)


def scans(labels, channels=1, tested=(0, 1, 2, 3)):
    """Image i of this many labels is all i."""
    held, truth = torch.tensor(labels), torch.tensor(tested)
    pixels = torch.arange(len(held), dtype=torch.uint8)[:, None, None, None].expand(-1, channels, 4, 4)
    white = torch.full((len(truth), channels, 4, 4), 255, dtype=torch.uint8)
    return ImageSet(pixels.numpy(), held.numpy(), white.numpy(), truth.numpy())


def settings(mine, stream="split(scans, 2, 4)", agents=4, **fields):
    data = {"stream": stream, "local_path": str(mine), **STATED, **fields}
    small = {"model": "mlp", "train": {"batch_size": 8, "epochs": 1}}
    return resolve(preset_of("quickstart"), {"agents": agents, "data": data, **small})


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Without class 3, and with 3 images of the second task."""
    return write(tmp_path / "ward", "scans", scans([0, 1, 0, 1, 2, 2, 2]), monkeypatch)


def test_all_images_are_the_agents_own_whichever_number_it_has(mine):
    for place in (mine, mine.parent):
        first, second = task_data(settings(place), None, CPU, alone=True)
        assert [data.classes for data in (first, second)] == [2, 2]
        for agent in range(4):
            assert sorted(first.partition[agent].tolist()) == [0, 1, 2, 3]
            seen = second.indices(0, [agent], 8)[0].flatten()
            assert torch.bincount(seen).tolist() == [8, 8, 8]
            assert second.sample(agent, 9).shape == (3, 1, 4, 4)
    assert second.train[0].flatten().unique().tolist() == [4, 5, 6]


def test_one_agent_with_its_own_data_trains(mine):
    """A batch larger than the shard, a class that it lacks: with one agent alone the simulated exchange will do."""
    own = settings(mine, agents=1)
    own = own.model_copy(update={"topology": own.topology.model_copy(update={"name": "complete"})})
    setup, state = build_setup(own, task_data(own, None, CPU, alone=True), CPU)
    events = list(train(setup, state))
    assert [event.steps for event in events if event.kind == "task"] == [3, 3]
    assert len([event for event in events if event.kind == "step"]) == 6


def test_agents_differ_in_mine_alone_and_belong_to_one_run(mine, tmp_path):
    one, other = settings(mine), settings(tmp_path / "elsewhere")
    assert one.decisive() == other.decisive()
    assert one.digest() == other.digest()
    assert "local_path" not in one.decisive()["data"]
    assert "data" not in one.sources
    assert str(mine) in one.dump()
    assert settings(mine, steps_per_epoch=4).digest() != one.digest()
    assert settings(mine, mean=[0.4]).digest() != one.digest()


def test_the_scale_is_the_stated_one_whatever_the_images(mine):
    data = task_data(settings(mine), None, CPU, alone=True)[0]
    white = torch.full((1, 1, 1, 1), 255, dtype=torch.uint8)
    assert data.prepare(white).item() == pytest.approx(2.0)
    assert data.describe().mean == (0.5,)


def test_streams_with_published_numbers_need_none_stated(tmp_path, monkeypatch):
    for name in FIVE:
        write(tmp_path / "ward", name, arrays(name, 40, 20), monkeypatch)
    own = resolve(
        preset_of("quickstart"),
        {"data": {"stream": "five-datasets", "local_path": str(tmp_path / "ward"), "steps_per_epoch": 2}},
    )
    assert [task.mean for task in load_tasks(own, alone=True)] == [scale.mean for scale in FIVE.values()]
    with pytest.raises(ConfigError, match=r"'one\.safetensors' is one file, but data\.stream needs cifar10, fashion-"):
        validate({"data": {"stream": "five-datasets", "local_path": "one.safetensors", "steps_per_epoch": 2}})


def test_tasks_are_those_of_the_catalogue_whatever_classes_the_agent_has(tmp_path, monkeypatch):
    images = arrays("mnist", 40, 20)
    few = ImageSet(images.train_images, images.train_labels % 3, images.test_images, images.test_labels)
    path = write(tmp_path / "ward", "mnist", few, monkeypatch)
    assert [task.classes for task in load_tasks(settings(path, "whole(mnist)"), alone=True)] == [10]
    assert len(load_tasks(settings(path, "split(mnist, 2)"), alone=True)) == 5
    with pytest.raises(DataError, match=r"task 'classes 4-5': 0 training images"):
        task_data(settings(path, "split(mnist, 2)"), None, CPU, alone=True)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"steps_per_epoch": None}, LOCAL + r"'.*' is not allowed: .*; say how many steps: data\.steps_per_epoch=50"),
        ({"stream": "quickstart"}, LOCAL + r"data\.stream 'quickstart' is not made of data set files; use split-"),
        ({"stream": "whole(mnist) + own.py:f"}, LOCAL + r"data\.stream 'own\.py:f' is not made of data set files"),
        ({"stream": "split(scans, 2)"}, r"leaves open how many classes there are; use split\(scans, 2, N\)"),
        ({"stream": "whole(scans)"}, r"leaves open how many classes there are; use whole\(scans, N\)"),
        ({"mean": (), "std": ()}, r"would be measured on this agent's images; state data\.mean and data\.std"),
        ({"std": ()}, r"data\.std: \(\) is not allowed: data\.mean and data\.std should have as many numbers"),
        ({"stream": "whole(a, 2) + whole(b, 2)"}, r"is one file, but data\.stream needs a, b; give a folder"),
    ],
)
def test_what_agents_could_not_have_in_common_is_refused(mine, changes, reason):
    with pytest.raises(ConfigError, match=reason):
        settings(mine, **changes)


def test_a_mean_without_a_std_is_refused_also_by_default():
    with pytest.raises(ConfigError, match=r"data\.std: .* as many numbers"):
        validate({"data": {"mean": [0.5]}})


def test_a_run_that_holds_several_agents_refuses_it(mine, tmp_path):
    reason = r"data\.local_path: '.*' is the data of one agent, but this run holds 4; leave it out, or .*`codecl agent`"
    for call in (
        lambda: api.run(settings(mine), out=tmp_path),
        lambda: check(settings(mine)),
        lambda: load_tasks(settings(tmp_path / "missing")),  # before any file is read
    ):
        with pytest.raises(ConfigError, match=reason):
            call()
    with pytest.raises(ConfigError, match=r"data\.local_path: data\.stream 'own' is not made of data set files"):
        api.fit(perceptron(), tasks(1), data={"local_path": str(mine), **STATED}, out=tmp_path)


def test_a_file_that_is_not_there_or_does_not_fit_is_named(tmp_path, monkeypatch):
    for place, path in ((tmp_path, tmp_path / "scans.safetensors"), (tmp_path / "a.safetensors",) * 2):
        with pytest.raises(
            DataError, match=f"data.local_path: there is no {path}, this agent's data set 'scans'"
        ) as caught:
            load_tasks(settings(place), alone=True)
        assert caught.value.exit_code == 3
    for odd in (scans([0, 1, 2, 4]), scans([0, 1, 2, 3], tested=[0, 4]), scans([0, -1, 4])):
        path = write(tmp_path, "scans", odd, monkeypatch)
        with pytest.raises(DataError, match=f"{path}: label (4|-1) is outside 0 to 3"):
            load_tasks(settings(path), alone=True)


def test_classes_that_are_stated_hold_for_common_data_too(tmp_path, monkeypatch):
    write(tmp_path / "common", "scans", scans([0, 1, 2, 3]), monkeypatch)
    shared = resolve(preset_of("quickstart"), {"data": {"stream": "split(scans, 2, 6)"}})
    assert len(load_tasks(shared)) == 3
    assert shared.sources["data"]
    with pytest.raises(DataError, match="label 3 is outside 0 to 2"):
        load_tasks(resolve(preset_of("quickstart"), {"data": {"stream": "whole(scans, 3)"}}))


@pytest.mark.parametrize(
    ("method", "grows"), [("codec", True), ("codec-full", True), ("dpsgd", False), ("d-ewc", False)]
)
def test_no_basis_is_grown_from_fewer_images_than_allowed(method, grows):
    """48 images of 4 agents: 12 each."""
    build(perceptron(), tasks(2), config(method=method, growth={"min_images": 12}))
    few = config(method=method, growth={"min_images": 13})
    if not grows:
        build(perceptron(), tasks(2), few)
        return
    with pytest.raises(ConfigError, match=r"growth\.min_images: an agent has 12 images of task 't0', fewer than 13"):
        build(perceptron(), tasks(2), few)


def test_the_own_images_must_be_enough_to_grow_from(mine):
    own = settings(mine)
    for least in (3, 4):
        limited = own.model_copy(update={"growth": own.growth.model_copy(update={"min_images": least})})
        data = task_data(limited, None, CPU, alone=True)
        if least == 3:
            build_setup(limited, data, CPU)
            continue
        with pytest.raises(ConfigError, match=r"an agent has 3 images of task 'classes 2-3', fewer than 4"):
            build_setup(limited, data, CPU)


def test_growth_itself_refuses_where_a_method_did_not_say_that_it_grows():
    setup, state = build(perceptron(), tasks(2), config())
    setup = setup._replace(growth=setup.growth.model_copy(update={"min_images": 13}))
    with pytest.raises(ConfigError, match=r"growth\.min_images"):
        list(train(setup, state))
