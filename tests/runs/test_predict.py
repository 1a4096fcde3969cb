"""Images classified from a run folder, each by itself."""

import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

import codecl
from codecl.api import run
from codecl.data import store
from codecl.data.streams import FIVE, STREAMS, embedded
from codecl.data.task import TaskData, TaskOptions
from codecl.errors import ConfigError, DataError
from codecl.runs.grid import preset, resolve
from codecl.runs.predict import _read, predict
from codecl.runs.reader import read_layers, read_tasks
from tests.cli.test_cli import failed
from tests.data.canonical import arrays
from tests.space.test_norms import normed


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A short quickstart of two tasks, and test images of each as files."""
    place = tmp_path_factory.mktemp("predict")
    changes = {"data": {"tasks": 2}, "train": {"epochs": 8, "batch_size": 10}}
    result = run(resolve(preset("quickstart"), changes), out=place)
    files = {}
    for name in ("digits", "clothes"):
        images, labels = embedded(name).test
        files[name] = []
        for number in range(0, 500, 7):
            path = place / f"{name}-{int(labels[number])}-{number}.png"
            Image.fromarray(images[number, 0].numpy()).save(path)
            files[name].append(path)
    return result, files


def coloured(path, size=(6, 6)):
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)).save(path)
    return path


def test_predictions_are_those_of_the_loaded_model(trained):
    result, files = trained
    for number, (name, clothes) in enumerate((("digits", None), ("clothes", "ankle-boot"))):
        found = predict(result.folder, name, files[name], top=10)
        model = result.model(number)
        images, _ = embedded(name).test
        with torch.no_grad():
            odds = model(images[::7].float() / 255).softmax(1)
        assert len(found) == len(odds)
        for one, row in zip(found, odds, strict=True):
            assert sum(value for _, value in one.classes) == pytest.approx(1, abs=1e-5)
            assert one.classes[0][1] == pytest.approx(row.max().item(), abs=1e-5)
        assert clothes is None or any(one.classes[0][0] == clothes for one in found)


def test_they_are_right_as_often_as_was_measured(trained):
    result, files = trained
    found = predict(result.folder.parent, "1", files["digits"])  # the only run in there
    right = [one.classes[0][0] == one.image.rpartition("digits-")[2][0] for one in found]
    expected = result.metrics["accuracy_matrix"][-1][0] / 100
    assert expected > 0.5
    assert abs(sum(right) / len(right) - expected) < 0.15


def test_a_model_with_norms_needs_statistics_of_the_task(tmp_path):
    pixels = torch.randint(256, (40, 2, 6, 6), dtype=torch.uint8)
    task = codecl.Task((pixels, torch.arange(40) % 3), (pixels, torch.arange(40) % 3), 3)
    results = {
        kind: codecl.fit(normed(), [task], out=tmp_path, train={"epochs": 1, "batch_size": 4, "norm_statistics": kind})
        for kind in ("batch", "task")
    }
    for result in results.values():  # the model is the caller's own
        with pytest.raises(ConfigError, match="was made with a model of your own"):
            predict(result.folder, "1", [tmp_path / "x.png"])


def test_by_the_batch_no_single_image_is_classified(tmp_path, monkeypatch):
    monkeypatch.setenv("CODECL_DATA", str(tmp_path))
    store.write("cifar100", arrays("cifar100", 400, 200))
    small = {"agents": 2, "data": {"tasks": 1}, "growth": {"images": 4}}

    def trained(kind):
        train = {"epochs": 1, "batch_size": 10, "norm_statistics": kind}
        return run(resolve(preset("split-cifar100"), {**small, "train": train}), out=tmp_path).folder

    image = coloured(tmp_path / "a.png", (32, 32))
    with pytest.raises(ConfigError, match=r"one image alone cannot be classified; train it with --set train\.norm"):
        predict(trained("batch"), "1", [image])
    folder = trained("task")
    store.path_of("cifar100").unlink()  # the run folder is enough
    (alone,) = predict(folder, "classes 0-9", [image])
    both = predict(folder, "1", [coloured(tmp_path / "b.png", (32, 32)), image])
    assert both[1] == alone
    ten = "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle"
    assert alone.classes[0][0] in ten.split()


@pytest.mark.parametrize("method", ["codec", "codec-full"])
def test_a_task_with_directions_and_norms_of_its_own_is_loaded_as_it_was_scored(method, tmp_path):
    changes = {
        "method": {"name": method},
        "model": {"name": "tests.problems:pooled"},
        "data": {"tasks": 3},
        "own": {"directions": 2},
        "norms": "own",
        "train": {"epochs": 1, "batch_size": 20, "norm_statistics": "task"},
    }
    states = []
    result = run(
        resolve(preset("quickstart"), changes),
        out=tmp_path,
        on_event=lambda event: states.append(event.state) if event.kind == "eval" else None,
    )
    layers = [layer.name for layer in read_layers(result.folder, states[-1].parameters)]
    assert layers == ["2"]
    for number, task in enumerate(STREAMS["quickstart"]()[:3]):
        images, labels = task.test
        model = codecl.load(result.folder, number, allow_code=True)
        with torch.no_grad():
            logits = model(images.float() / 255)
        score = 100 * (logits.argmax(1) == labels).double().mean().item()
        assert score == pytest.approx(result.metrics["accuracy_matrix"][-1][number])
        kept, loaded = states[-1].kept[number], dict(model.named_parameters())
        expected = kept.model(read_layers(result.folder, states[-1].parameters), states[-1].parameters)
        assert all(torch.equal(loaded[name], value) for name, value in expected.items())
        assert bool(kept.directions) == (number > 0)
        Image.fromarray(images[7, 0].numpy()).save(tmp_path / "7.png")
        (alone,) = predict(result.folder, str(number + 1), [tmp_path / "7.png"], top=10, allow_code=True)
        assert alone.classes[0][1] == pytest.approx(logits[7].softmax(0).max().item(), abs=1e-5)


def test_images_of_the_original_size_are_padded_as_in_training(tmp_path, monkeypatch):
    monkeypatch.setenv("CODECL_DATA", str(tmp_path))
    for name in FIVE:
        store.write(name, arrays(name, 20, 10))
    task = STREAMS["five-datasets"]()[1]
    about = TaskData(1, task, TaskOptions(2)).describe()
    grey = store.read("mnist").train_images[3, 0]
    Image.fromarray(grey).save(tmp_path / "seven.png")
    assert torch.equal(_read(tmp_path / "seven.png", about, False)[0], task.train[0][3])


def test_what_cannot_be_predicted_is_said_in_one_line(trained, tmp_path):
    result, files = trained
    with pytest.raises(ConfigError, match=r"--task: 'digit' is not a task .*, did you mean 'digits'\?; there are 1 \("):
        predict(result.folder, "digit", files["digits"])
    with pytest.raises(ConfigError, match=r"is 6×6, task 'digits' takes 28×28; --resize scales"):
        predict(result.folder, "1", [coloured(tmp_path / "small.png")])
    assert len(predict(result.folder, "1", [coloured(tmp_path / "small.png")], resize=True)) == 1
    (tmp_path / "no.png").write_text("no image")
    with pytest.raises(DataError, match=r"no.png: is not an image that can be read"):
        predict(result.folder, "1", [tmp_path / "no.png"])
    with pytest.raises(DataError, match=r"gone.png: cannot be read \(No such file"):
        predict(result.folder, "1", [tmp_path / "gone.png"])


def test_without_a_task_the_largest_output_of_all_heads_says_it(trained):
    result, files = trained
    both = result.model(None)
    for number, name in enumerate(files):
        images, labels = embedded(name).test
        seen = images.float() / 255
        with torch.no_grad():
            outputs = both(seen)
            assert torch.equal(outputs, torch.cat([result.model(task)(seen) for task in (0, 1)], 1))
        task, label = both.task_of(outputs)
        assert torch.equal(10 * task + label, outputs.argmax(1))
        found = [one.classes[0][0] for one in predict(result.folder, None, files[name][:20])]
        expected = [f"{('digits', 'clothes')[task[i]]}" for i in range(0, 140, 7)]
        assert [one.split(":")[0] for one in found] == expected
        right = ((task == number) & (label == labels)).double().mean().item()
        assert 0.3 < right <= 1
    scores = [
        100
        * (both(embedded(name).test[0].float() / 255).argmax(1) == 10 * number + embedded(name).test[1])
        .double()
        .mean()
        .item()
        for number, name in enumerate(files)
    ]
    assert result.metrics["acc_without_identity"] == pytest.approx(sum(scores) / 2)


def change_tasks(monkeypatch, folder, **changes):
    tasks = [task.model_copy(update=changes) for task in read_tasks(folder)]
    monkeypatch.setattr("codecl.runs.predict.read_tasks", lambda folder: tasks)


def test_a_name_that_two_tasks_have_needs_the_number(trained, monkeypatch):
    result, files = trained
    change_tasks(monkeypatch, result.folder, name="same")
    with pytest.raises(ConfigError, match=r"'same' is the name of tasks 1 and 2 of .*; give the number"):
        predict(result.folder, "same", files["digits"][:1])
    assert predict(result.folder, "1", files["digits"][:1])
    with pytest.raises(ConfigError, match=r"there are 1 \(same\), 2 \(same\)"):
        predict(result.folder, "other", files["digits"][:1])


def test_floating_data_is_no_pictures(trained, monkeypatch):
    result, files = trained
    change_tasks(monkeypatch, result.folder, stored="float32")
    with pytest.raises(ConfigError, match=r"'digits' was not trained on pictures; use codecl.load"):
        predict(result.folder, "1", files["digits"][:1])


def test_the_command(trained, cli, tmp_path):
    result, files = trained
    some = [str(path) for path in files["digits"][:3]]
    done = cli("predict", str(result.folder), "--task", "digits", *some, "--top", "2", cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == some
    assert all(line.count("%") == 2 for line in lines)
    held = json.loads(cli("predict", str(result.folder), "--task", "1", *some, "--json", cwd=tmp_path).stdout)
    assert [one["image"] for one in held] == some
    untold = cli("predict", str(result.folder), *some, cwd=tmp_path).stdout.splitlines()
    assert all(re.search(r"(digits|clothes): \S+ \d+\.\d %$", line) for line in untold)
    assert "no finished runs" in failed(cli("predict", str(tmp_path), "--task", "1", *some, cwd=tmp_path), 3)
