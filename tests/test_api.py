"""The library: fit your own module on your own tasks, load what was learned."""

import networkx as nx
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import codecl
from codecl.errors import ConfigError, DataError
from tests.problems import Tied, config, convolutional, perceptron, tasks

SMALL = {
    "train": {"epochs": 3, "batch_size": 4, "lr": 0.1},
    "growth": {"threshold": 0.9, "images": 12},
    "dtype": "float64",
}


def right(module, task):
    images, labels = task.test
    with torch.no_grad():
        return 100 * float((module(images).argmax(1) == labels).double().mean())


@pytest.mark.parametrize("method", codecl.METHODS)
def test_fit_returns_model_metrics_and_folder(tmp_path, method):
    module, stream = perceptron(), tasks()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    result = codecl.fit(module, stream, agents=4, topology="ring", method=method, out=tmp_path, **SMALL)
    last = result.metrics["accuracy_matrix"][-1]
    for number, task in enumerate(stream):  # what is handed back is what was measured
        assert right(result.model(number), task) == pytest.approx(last[number])
    assert result.metrics["status"] == "complete"
    assert result.folder.parent.parent == tmp_path
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert (result.metrics["bwt"] is None) == (method == "stl")


def test_the_run_folder_holds_what_the_contract_says(tmp_path):
    result = codecl.fit(perceptron(), tasks(), out=tmp_path, **SMALL)
    names = {path.name for path in result.folder.iterdir()}
    assert names == {"config.yaml", "environment.json", "events.jsonl", "metrics.json", "model", "checkpoint"}
    models = {path.name for path in (result.folder / "model").iterdir()}
    assert models == {
        "tasks.json",
        "body.safetensors",
        "task-1.safetensors",
        "task-2.safetensors",
        "task-3.safetensors",
    }
    kinds = [__import__("json").loads(line) for line in (result.folder / "events.jsonl").read_text().splitlines()]
    task = ["task", "epoch", "epoch", "epoch", "agree", "grow", "flood", "eval"]
    assert [fact["kind"] for fact in kinds] == ["run", *task, *task, *task, "end"]
    assert all({"kind", "time", "task", "epoch", "step"} <= set(fact) for fact in kinds)


def test_the_same_call_is_answered_from_the_folder_and_another_is_not(tmp_path):
    module, stream = perceptron(), tasks()
    first = codecl.fit(module, stream, out=tmp_path, **SMALL)
    again = codecl.fit(module, stream, out=tmp_path, **SMALL)
    assert (first.trained, again.trained) == (True, False)
    assert again.metrics == first.metrics
    assert right(again.model(0), stream[0]) == pytest.approx(first.metrics["accuracy_matrix"][-1][0])
    changed = [stream[0]._replace(train=(stream[0].train[0] + 1, stream[0].train[1])), *stream[1:]]
    for module_, stream_, more in ((perceptron(), stream, {}), (module, changed, {}), (module, stream, {"head": "5"})):
        other = codecl.fit(module_, stream_, out=tmp_path, **SMALL, **more)
        assert other.trained
        assert other.folder != first.folder
    assert codecl.fit(module, stream, out=tmp_path, again=True, **SMALL).trained


def test_equal_calls_give_equal_numbers(tmp_path):
    module = convolutional()
    runs = [codecl.fit(module, tasks(), out=tmp_path / str(i), **SMALL).metrics for i in range(2)]
    for run in runs:
        del run["timing"]
    assert runs[0] == runs[1]


def test_dropout_comes_from_the_seed_and_the_callers_generator_is_left_alone(tmp_path):
    module = nn.Sequential(nn.Flatten(), nn.Linear(72, 9), nn.Dropout(0.5), nn.Linear(9, 3))
    runs = []
    for start in (1, 2):
        torch.manual_seed(start)
        expected = torch.rand(3, generator=torch.Generator().manual_seed(start))
        runs.append(codecl.fit(module, tasks(2), out=tmp_path / str(start), **SMALL).metrics)
        assert torch.equal(torch.rand(3), expected)
        del runs[-1]["timing"]
    assert runs[0] == runs[1]


def test_data_sets_of_torch_are_taken(tmp_path):
    stream = tasks(2)
    as_sets = [t._replace(train=TensorDataset(*t.train), test=TensorDataset(*t.test)) for t in stream]
    module = perceptron()
    assert codecl.fit(module, stream, out=tmp_path, **SMALL).trained
    assert not codecl.fit(module, as_sets, out=tmp_path, **SMALL).trained  # the same data


def test_tasks_with_other_numbers_of_classes(tmp_path):
    stream = [*tasks(1, classes=3), *tasks(1, classes=5), *tasks(1, classes=2)]
    result = codecl.fit(perceptron(), stream, out=tmp_path, **SMALL)
    for number, (task, classes) in enumerate(zip(stream, (3, 5, 2), strict=True)):
        module = result.model(number)
        assert module(task.test[0]).shape[1] == classes
        assert module[5].out_features == classes
        assert right(module, task) == pytest.approx(result.metrics["accuracy_matrix"][-1][number])


def test_one_head_for_all_tasks_is_constrained_like_a_layer(tmp_path):
    result = codecl.fit(perceptron(), tasks(), out=tmp_path, head=None, **SMALL)
    assert set(result.metrics["free_by_task"][0]) == {"1", "3", "5"}
    assert result.metrics["free_by_task"][2]["5"] < 9
    with pytest.raises(ConfigError, match="the model gives 3 numbers, but task 't1' has 5 classes"):
        codecl.fit(perceptron(), tasks(2, classes=5), out=tmp_path, head=None, **SMALL)


def test_a_graph_of_ones_own(tmp_path):
    result = codecl.fit(perceptron(), tasks(2), agents=5, topology=nx.wheel_graph(5), out=tmp_path, **SMALL)
    assert result.metrics["topology"] == "graph"
    with pytest.raises(ConfigError, match="set agents to 5"):
        codecl.fit(perceptron(), tasks(2), agents=4, topology=nx.wheel_graph(5), out=tmp_path, **SMALL)


def test_load_gives_a_preset_run_back_without_the_users_module(tmp_path):
    from codecl import api
    from codecl.runs.build import load_tasks
    from codecl.runs.grid import preset, resolve

    settings = resolve(preset("quickstart"), {"train": {"epochs": 1, "batch_size": 50}, "agents": 2})
    result = api.run(settings, out=tmp_path)
    module = codecl.load(result.folder, 4)
    images, labels = load_tasks(settings)[4].test
    found = float((module(images.float() / 255).argmax(1) == labels).double().mean())
    assert 100 * found == pytest.approx(result.metrics["accuracy_matrix"][-1][4])


def test_layers_that_share_a_parameter_share_it_in_the_loaded_model_too(tmp_path):
    stream = tasks()
    result = codecl.fit(Tied(), stream, out=tmp_path, **SMALL)
    module = result.model(1)
    assert module.one.weight is module.two.weight
    assert right(module, stream[1]) == pytest.approx(result.metrics["accuracy_matrix"][-1][1])


def test_load_refuses_a_model_that_is_not_the_runs(tmp_path):
    result = codecl.fit(perceptron(), tasks(2), out=tmp_path, **SMALL)
    wider = nn.Sequential(nn.Flatten(), nn.Linear(72, 11), nn.Tanh(), nn.Linear(11, 8), nn.Tanh(), nn.Linear(8, 3))
    for module in (wider, nn.Linear(3, 3), convolutional()):
        with pytest.raises(ConfigError, match="does not fit this run at"):
            codecl.load(result.folder, 0, module)


def test_load_of_a_users_model_file_notices_other_code(tmp_path, monkeypatch):
    from codecl import api
    from codecl.registry import _module_of_file
    from codecl.runs.grid import preset, resolve

    monkeypatch.chdir(tmp_path)
    text = "from torch.nn import *\ndef net(shape, classes): return Sequential(Flatten(), Linear(784, classes))\n"
    (tmp_path / "net.py").write_text(text)
    fields = {"model": {"name": "net.py:net"}, "train": {"epochs": 1, "batch_size": 100}, "agents": 2}
    result = api.run(resolve(preset("quickstart"), fields), out=tmp_path / "runs")
    assert codecl.load(result.folder, 1, allow_code=True)[1].out_features == 10
    (tmp_path / "net.py").write_text(text + "# edited\n")
    _module_of_file.cache_clear()
    with pytest.raises(ConfigError, match=r"net.py:net has changed since; pass the model"):
        codecl.load(result.folder, 1, allow_code=True)
    monkeypatch.chdir(tmp_path.parent)
    with pytest.raises(ConfigError, match=r"no such file; or pass the model"):
        codecl.load(result.folder, 1, allow_code=True)


def test_load_says_what_is_missing(tmp_path):
    result = codecl.fit(perceptron(), tasks(2), out=tmp_path, **SMALL)
    with pytest.raises(ConfigError, match=r"pass it, codecl.load\(run, task, model\)"):
        codecl.load(result.folder, 0)
    with pytest.raises(DataError, match="no model of task 8 "):
        codecl.load(result.folder, 7, perceptron())
    with pytest.raises(DataError, match=r"config.yaml is broken"):
        codecl.load(tmp_path, 0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"agents": 0}, "agents: 0 is not allowed"),
        ({"growth": {"threshold": 1.5}}, r"growth.threshold: 1.5 is not allowed: it should be less than or equal to 1"),
        ({"growth": {"images": (1, 2, 3)}}, "growth.images: 3 numbers for 2 layers"),
        ({"train": {"lrr": 0.1}}, "train.lrr: there is no such field, did you mean 'lr'"),
        ({"method": "d-ewq"}, "method: 'd-ewq' is unknown, did you mean 'd-ewc'"),
        (
            {"method": "codec", "dtype": "float16"},
            "dtype: 'float16' is not allowed: it should be 'float32' or 'float64'",
        ),
        ({"topology": "ringg"}, "did you mean 'ring'"),
    ],
)
def test_settings_that_are_refused_name_field_value_and_what_is_allowed(tmp_path, change, reason):
    with pytest.raises(ConfigError, match=reason) as caught:
        codecl.fit(perceptron(), tasks(2), out=tmp_path, **{**SMALL, **change})
    assert "\n" not in str(caught.value)
    assert not any(tmp_path.iterdir())


def test_images_that_do_not_fit_the_model_are_refused_before_training(tmp_path):
    stream = [*tasks(1), *tasks(1, shape=(2, 5, 5))]
    with pytest.raises(ConfigError, match=r"training on 4 images of shape \[2, 5, 5\] fails"):
        codecl.fit(perceptron(), stream, out=tmp_path, **SMALL)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"mean": (0.5, 0.5, 0.5), "std": (1.0, 1.0, 1.0)}, "do not fit 2 channels"),
        ({"mean": (0.5,), "std": ()}, "do not fit 2 channels"),
        ({"mean": (0.5,), "std": (0.0,)}, "std above 0"),
        ({"mean": (0.5,), "std": (float("nan"),)}, "std above 0"),
        ({"classes": 3.0}, "classes is 3.0; it should be a whole number"),
        ({"train": TensorDataset(torch.zeros(5))}, "not \\(images, labels\\)"),
        ({"train": [(torch.zeros(2), 0.5), (torch.zeros(2), 1)]}, "training item 0: its label 0.5 is not a whole"),
        ({"train": [(torch.zeros(2), 0)], "classes": None}, "classes is None; it should be a whole number"),
    ],
)
def test_tasks_that_are_refused(tmp_path, change, reason):
    task = tasks(1)[0]._replace(**change)
    with pytest.raises(codecl.CodeclError, match=reason) as caught:
        codecl.fit(perceptron(), [task], out=tmp_path, **SMALL)
    assert "\n" not in str(caught.value)


def test_scales_fit_images_and_flat_features(tmp_path):
    task = tasks(1)[0]._replace(mean=torch.tensor([0.5, 0.1]), std=(2.0, 1.0))
    assert codecl.fit(perceptron(), [task], out=tmp_path, **SMALL).trained
    points = codecl.Task((torch.rand(20, 3), torch.arange(20) % 2), (torch.rand(20, 3), torch.arange(20) % 2), 2)
    scaled = points._replace(mean=(0.5, 0.5, 0.5), std=(0.3, 0.3, 0.3))
    assert codecl.fit(nn.Linear(3, 2), [scaled], out=tmp_path, **SMALL).trained


def test_a_method_class_is_not_a_method(tmp_path):
    with pytest.raises(ConfigError, match="is neither a name nor a Method with its options"):
        codecl.fit(perceptron(), tasks(1), out=tmp_path, method=codecl.METHODS["d-ewc"], **SMALL)


def test_no_tasks(tmp_path):
    with pytest.raises(ConfigError, match="there are none"):
        codecl.fit(perceptron(), [], out=tmp_path)


def test_config_digest_ignores_the_seed_alone():
    assert config(seed=1).digest() == config(seed=2).digest()
    assert config(agents=2).digest() != config(agents=4).digest()


def test_a_vision_model_with_everything(tmp_path):
    """Grouped and dilated convolutions, norms, dropout, residual sums, a layer used twice."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(2, 4, 3, padding=2, dilation=2, padding_mode="circular")
            self.depth = nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False)
            self.norm = nn.GroupNorm(2, 4)
            self.drop = nn.Dropout(0.2)
            self.mix = nn.Linear(4, 4)
            self.line = nn.Conv1d(4, 3, 2, stride=2)
            self.fc = nn.Linear(54, 3)

        def forward(self, x):
            x = torch.relu(self.stem(x))
            x = x + self.norm(self.depth(x))
            x = self.mix(torch.relu(self.mix(x.movedim(1, -1)))).movedim(-1, 1)
            return self.fc(self.drop(self.line(x.flatten(2)).flatten(1)))

    result = codecl.fit(Net(), tasks(), out=tmp_path, head="fc", **SMALL)
    assert set(result.metrics["free_by_task"][0]) == {"stem", "depth", "mix", "line"}
    first, last = result.metrics["free_by_task"][0], result.metrics["free_by_task"][-1]
    assert first["depth"] == 4 * 9
    assert last["depth"] < first["depth"]
