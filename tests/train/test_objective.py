"""Losses and scores: by name, of a user's own, and what is said where they do not fit."""

import importlib
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

import codecl
from codecl import Method, Task, api
from codecl.errors import ConfigError, DataError, RunFailed
from codecl.runs.predict import predict
from codecl.train.objective import f1, label_accuracy, negative_mse, r2
from tests.conftest import ROOT
from tests.problems import config, perceptron, tasks

TRAIN = {"batch_size": 8, "epochs": 20, "lr": 0.1, "milestones": ()}


def body(outputs):
    return nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, outputs))


def regression(number, outputs=1, flat=False):
    """Targets that a small net can learn."""
    generator = torch.Generator().manual_seed(number)
    inputs = torch.randn(160, 6, generator=generator)
    values = torch.tanh(inputs @ torch.randn(6, outputs, generator=generator)) + 3
    values = values[:, 0] if flat else values
    return Task((inputs[:120], values[:120]), (inputs[120:], values[120:]), outputs, f"curve {number}")


def multi_label(number, kind=torch.float32):
    generator = torch.Generator().manual_seed(number)
    inputs = torch.randn(160, 6, generator=generator)
    there = (inputs @ torch.randn(6, 4, generator=generator) > 0.3).to(kind)
    return Task((inputs[:120], there[:120]), (inputs[120:], there[120:]), 4, f"labels {number}")


def fit(out, stream, outputs=1, **settings):
    torch.manual_seed(0)
    settings["train"] = TRAIN | settings.get("train", {})
    common = {"agents": 3, "topology": "complete", "growth": {"threshold": 0.8}, "out": out}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return codecl.fit(body(outputs), stream, **common | settings)


def gaussian(outputs, targets):
    """Two outputs, mean and log variance, for one number."""
    mean, log = outputs.unbind(-1)
    return ((mean - targets).square() / log.exp() + log).mean() / 2


def closeness(outputs, targets):
    return -(outputs[:, 0] - targets).abs().mean().item()


def not_stacked(outputs, targets):
    return functional.mse_loss(outputs[:, 0], targets) * (2.0 if outputs.sum().item() > 1e9 else 1.0)


def by_image(outputs, targets):
    return (outputs[:, 0] - targets).square()


def raising(outputs, targets):
    raise ValueError("no such thing")


def raising_later(outputs, targets):
    if float(outputs.detach().mean()) > 1:
        raise ValueError("too large")
    return functional.mse_loss(outputs[:, 0], targets)


def not_a_number(outputs, targets):
    return outputs.sum() * float("nan")


def nan_later(outputs, targets):
    return torch.where(outputs.mean() > 1, torch.nan, functional.mse_loss(outputs[:, 0], targets))


def detached(outputs, targets):
    return functional.mse_loss(outputs[:, 0], targets).detach()


def as_float(outputs, targets):
    return 1.0


class Flat(Method):
    """Gives one row for all agents."""

    def free(self, memory, layers):
        return {}

    def prepare(self, memory, layout):
        return None

    def step(self, task, base_AD, coords_AD, grad_AD, lr):
        return base_AD[0]

    def remember(self, end):
        return {}


@pytest.mark.parametrize(("flat", "outputs"), [(True, 1), (False, 1), (False, 2)])
def test_numbers_are_learned(tmp_path, flat, outputs):
    stream = [regression(number, outputs, flat) for number in (1, 2)]
    result = fit(tmp_path, stream, outputs, loss="mse")
    assert result.metrics["score"] == "r2"
    matrix = result.metrics["accuracy_matrix"]
    assert matrix[0][0] > 0.5
    assert matrix[1][1] > 0.5
    inputs, values = stream[1].test
    with torch.no_grad():
        given = result.model(1)(inputs)
    assert r2(given, values) == pytest.approx(matrix[1][1], abs=1e-4)


@pytest.mark.parametrize(("kind", "score"), [(torch.float32, None), (torch.int64, "f1"), (torch.bool, None)])
def test_several_labels_are_learned(tmp_path, kind, score):
    result = fit(tmp_path, [multi_label(number, kind) for number in (1, 2)], 4, loss="bce", score=score)
    assert result.metrics["score"] == (score or "label-accuracy")
    last = result.metrics["accuracy_matrix"][1][1]
    assert last > (0.7 if score else 80)


def test_functions_of_ones_own(tmp_path):
    stream = [regression(number, flat=True)._replace(classes=2) for number in (1, 2)]
    result = fit(tmp_path, stream, 2, loss=gaussian, score=closeness)
    assert result.metrics["score"] == f"{__name__}:closeness"
    matrix = result.metrics["accuracy_matrix"]
    assert -0.6 < matrix[1][1] < 0
    inputs, values = stream[1].test
    assert closeness(result.model(1)(inputs), values) == pytest.approx(matrix[1][1], abs=1e-4)
    assert not fit(tmp_path, stream, 2, loss=gaussian, score=closeness).trained, "it is recorded"
    other = fit(tmp_path, stream, 2, loss=gaussian, score=f"{__name__}:by_mean")
    assert other.trained, "another function is another run"
    assert other.folder != result.folder


def by_mean(outputs, targets):
    return -(outputs[:, 0] - targets).mean().abs()


def test_a_function_is_known_by_its_code(tmp_path):
    text = "def loss(outputs, targets):\n    return {}(outputs[:, 0] - targets).abs().mean()\n"
    digests = []
    for number, factor in enumerate(("", "2 * ")):
        file = tmp_path / f"mine{number}.py"
        file.write_text(text.format(factor))
        digests.append(config(train={"loss": f"{file}:loss"}).sources["loss"])
    assert digests[0] != digests[1]


def test_a_loss_that_cannot_be_stacked_runs_agent_by_agent(tmp_path):
    stream = [regression(1, flat=True)]
    settings = {"train": TRAIN | {"execution": "stacked"}, "agents": 3, "score": "r2", "out": tmp_path}
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match=f"this model with {__name__}:not_stacked cannot be stacked"):
        result = codecl.fit(body(1), stream, loss=not_stacked, **settings)
    assert result.metrics["acc"] > 0.5


def test_mse_is_what_a_function_of_ones_own_would_be(tmp_path):
    stream = [regression(1, flat=True)]
    ours = fit(tmp_path, stream, loss="mse", train={"execution": "loop"})
    theirs = fit(tmp_path, stream, loss=not_stacked, score="r2", train={"execution": "loop"})
    assert ours.metrics["acc"] == theirs.metrics["acc"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"loss": by_image},
            r"by_image gives a tensor of shape \[8\] for outputs \[8, 1\] and targets \[8\]; it should",
        ),
        ({"loss": raising}, r"raising fails on outputs \[8, 1\] .*ValueError: no such thing.* tensor of shape \[\]"),
        ({"loss": not_a_number}, "not_a_number gives nan for the first batch"),
        ({"loss": detached}, "detached gives a number that does not depend on the outputs"),
        ({"loss": as_float}, "as_float gives float for"),
        ({"loss": "mse", "score": raising}, r"train.score: .*raising fails on outputs \[40, 1\] and targets \[40\]"),
        ({"loss": "mse", "score": not_a_number}, "train.score: .*not_a_number gives nan"),
        ({"loss": "mse", "score": by_image}, "train.score: .*by_image fails .*it should give one number"),
        ({"loss": "mse", "score": "accuracy"}, "train.score: accuracy is of classes, and labels of task 'curve 1' are"),
        ({"loss": lambda a, b: a.sum()}, "loss: <lambda> cannot be found by a name; write it as a function at the top"),
        ({"loss": nn.MSELoss()}, "loss: MSELoss cannot be found by a name"),
        ({"loss": "mae"}, "train.loss: 'mae' is not allowed: there are cross-entropy, mse, bce, file.py:function, did"),
        ({"score": "auc"}, "train.score: 'auc' is not allowed: there are accuracy, r2"),
        ({"loss": "nowhere.py:loss"}, "train.loss: 'nowhere.py:loss': cannot import"),
        ({"loss": "mse", "train": {"label_smoothing": 0.1}}, "train.label_smoothing: 0.1 is not allowed: only cross"),
        ({"loss": "mse", "data": {"partition": "skew(0.5)"}}, "data.partition: .* labels of task 'curve 1' are no"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(tmp_path, settings, says):
    with pytest.raises(ConfigError, match=says) as caught:
        fit(tmp_path, [regression(1, flat=True)], **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("loss", "labels", "says"),
    [
        ("cross-entropy", torch.rand(120), "labels are not whole numbers; where they are not classes, say what is"),
        ("mse", torch.full((120,), torch.nan), "labels hold NaN or infinity"),
        ("mse", torch.rand(120, 3), r"labels have shape \[120, 3\], but the task has 1 outputs"),
        ("bce", 2 * torch.ones(120), "labels go from 2 to 2; bce takes 0 to 1"),
        ("mse", torch.rand(60), "120 training images but 60 labels"),
        ("mse", torch.tensor(1.0), "it should be one number an image"),
    ],
)
def test_labels_that_do_not_fit_the_loss_are_refused(tmp_path, loss, labels, says):
    task = regression(1, flat=True)
    with pytest.raises((DataError, ConfigError), match=says):
        fit(tmp_path, [task._replace(train=(task.train[0], labels))], loss=loss)


def test_a_loss_that_fails_while_it_trains_ends_the_run_with_one_line(tmp_path):
    with pytest.raises(RunFailed, match=r"train.loss: .*raising_later fails on outputs .*ValueError: too large"):
        fit(tmp_path, [regression(1, flat=True)], loss=raising_later, score="r2")


def test_a_loss_that_is_not_a_number_is_named(tmp_path):
    with pytest.raises(RunFailed, match=r"step \d+, agent \d: the loss \(.*:nan_later\) is nan"):
        fit(tmp_path, [regression(1, flat=True)], loss=nan_later, score="r2")


def test_numbers_are_not_classified(tmp_path):
    folder = fit(tmp_path, [regression(1)], loss="mse", train={"epochs": 1}).folder
    with pytest.raises(ConfigError, match=r"its images have no classes \(train.loss is mse\); use codecl.load"):
        predict(folder, "1", [])


def test_a_head_that_gives_too_much_is_refused_where_every_output_counts(tmp_path):
    with pytest.raises(ConfigError, match="the model gives 3 numbers, but task 'curve 1' has 1 classes"):
        fit(tmp_path, [regression(1)], 3, loss="mse", head=None)


@pytest.mark.parametrize("order", ["paper", "adapt-then-combine"])
def test_a_step_of_the_wrong_shape_is_named(tmp_path, order):
    with pytest.raises(ConfigError, match=r"method: step of Flat gives a tensor of shape \[\d+\]; .* shape \[3, \d+\]"):
        fit(tmp_path, [regression(1)], loss="mse", method=Flat(), train={"order": order})


def test_whole_numbers_with_a_loss_of_ones_own_may_be_dealt_by_class(tmp_path):
    settings = config(train={"loss": "torch.nn.functional:cross_entropy"}, data={"partition": "skew(1)"}, agents=2)
    module, plain = perceptron(), config(data={"partition": "skew(1)"}, agents=2)
    ours, theirs = (api.run(c, module=module, tasks=tasks(1), out=tmp_path, device="cpu") for c in (settings, plain))
    assert ours.metrics["score"] == "accuracy"
    assert ours.metrics["acc"] == theirs.metrics["acc"] > 0


def test_what_a_schedule_watches_is_the_loss(tmp_path):
    result = fit(
        tmp_path,
        [regression(1)],
        loss="mse",
        agents=1,
        train={"schedule": "plateau", "lr": 0.05},
        data={"held_out": 0.2, "validation": 0.2},
    )
    assert result.metrics["acc"] > 0.5


def test_scores_are_what_they_say():
    wanted, given = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([[0.0], [1.0], [4.0]])
    assert r2(given, wanted) == pytest.approx(-1)
    assert r2(wanted[:, None], wanted) == 1
    assert negative_mse(given, wanted) == pytest.approx(-4 / 3)
    logits, there = torch.tensor([[1.0, -1.0], [1.0, 1.0]]), torch.tensor([[1, 0], [0, 1]])
    assert label_accuracy(logits, there) == 75
    assert f1(logits, there) == pytest.approx(0.8)
    assert f1(-torch.ones(2, 2), torch.zeros(2, 2)) == 0


def test_the_example_of_the_page_runs(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "learning.md").read_text(encoding="utf-8")
    (tmp_path / "learning_example.py").write_text(text.split("```python\n")[1].split("```")[0])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = importlib.import_module("learning_example").result
    assert result.metrics["score"] == "learning_example:score"
    assert -0.5 < result.metrics["acc"] < 0
