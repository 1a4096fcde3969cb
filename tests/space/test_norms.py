"""Statistics of batch norms, measured on a task's training images."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

import codecl
from codecl.errors import ConfigWarning
from codecl.exchange import Simulated
from codecl.exchange.topology import TopologyConfig
from codecl.exchange.topology import build as graph
from codecl.space import norms
from codecl.train.task_end import agreed_statistics
from tests.problems import CPU, build, config, furthest, tasks, trajectory


def normed() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten()),
        *(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)),
    )


@pytest.fixture
def first_task():
    """The setup, its first task, the parameters, an exchange on a ring of 4."""
    setup, state = build(normed(), tasks(), config(train={"norm_statistics": "task"}))
    exchange = Simulated(graph(TopologyConfig(name="ring"), 4, 0), torch.float64, CPU)
    return setup, setup.tasks[0], {**state.parameters, **setup.heads[0]}, exchange


def test_sums_over_agents_are_the_statistics_of_all_images(first_task):
    setup, data, parameters, exchange = first_task
    ours = agreed_statistics(setup.module, [parameters] * 4, data, exchange, 2, batch=5)
    images = data.prepare(data.train[0])
    with torch.no_grad():
        first = functional_call(setup.module[0], {k[2:]: v for k, v in parameters.items() if k[0] == "0"}, (images,))
    torch.testing.assert_close(ours["1.running_mean"], first.mean((0, 2, 3)))
    torch.testing.assert_close(ours["1.running_var"], first.var((0, 2, 3), correction=0))
    assert set(ours) == {"1.running_mean", "1.running_var", "6.running_mean", "6.running_var"}
    sent = [exchange.traffic.take(kind)["bytes"] for kind in ("reduce", "flood")]
    assert sent == [3 * norms.PASSES * rows * (4 + 8) * 8 for rows in (3, 2)]  # three sends, so many rows a norm
    assert setup.module[1].running_mean is None  # nothing stays behind


def test_the_second_pass_is_normalised_by_the_first(first_task):
    """The statistics of a later norm are those that it meets when the earlier one uses its own."""
    setup, data, parameters, exchange = first_task
    ours = agreed_statistics(setup.module, [parameters] * 4, data, exchange, 0, batch=7)
    seen = norms.measure(setup.module, parameters, [data.prepare(data.train[0])], ours)
    met = norms.statistics_of(seen, torch.float64)
    torch.testing.assert_close(met["6.running_mean"], ours["6.running_mean"], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", ["codec", "dpsgd", "d-ewc"])
def test_a_prediction_does_not_depend_on_its_batch(tmp_path, method):
    stream, settings = tasks(), {"growth": {"threshold": 0.9, "images": 8}}
    common = {"epochs": 3, "batch_size": 4, "lr": 0.05}  # statistics of the task are what `fit` keeps
    result = codecl.fit(normed(), stream, method=method, out=tmp_path, train=common, dtype="float64", **settings)
    for number, task in enumerate(stream):
        model = result.model(number)
        images, labels = task.test
        with torch.no_grad():
            together, alone = model(images), torch.cat([model(image[None]) for image in images])
        torch.testing.assert_close(together, alone)
        score = 100 * (alone.argmax(1) == labels).double().mean().item()
        assert score == pytest.approx(result.metrics["accuracy_matrix"][-1][number])


def test_by_the_batch_a_prediction_does_depend_on_it_and_the_model_says_so(tmp_path):
    stream, by_batch = tasks(), {"epochs": 1, "batch_size": 4, "norm_statistics": "batch"}
    result = codecl.fit(normed(), stream, out=tmp_path, train=by_batch, dtype="float64")
    with pytest.warns(ConfigWarning, match="a prediction depends on the other images there; train with train.norm"):
        model = result.model(0)
    with torch.no_grad():
        many, few = model(stream[0].test[0]), model(stream[0].test[0][:4])
    assert (many[:4] - few).abs().max() > 1e-3


def test_growth_looks_at_inputs_as_old_tasks_are_evaluated():
    module = normed()
    runs = []
    for kind in ("task", "batch"):
        torch.manual_seed(0)  # dropout
        runs.append(list(trajectory(module, tasks(), config(train={"norm_statistics": kind, "epochs": 1}))))
    same = [furthest(a, b) == 0 for a, b in zip(*runs, strict=True)]
    first = len(same) // 3
    assert all(same[:first])  # training is the same until the first growth
    assert not all(same)


def test_a_model_without_batch_norms_has_none(tmp_path):
    module = nn.Sequential(nn.Flatten(), nn.Linear(72, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))
    runs = [
        codecl.fit(module, tasks(), out=tmp_path, train={"norm_statistics": kind, "epochs": 1, "batch_size": 4}).metrics
        for kind in ("task", "batch")
    ]
    assert runs[0]["accuracy_matrix"] == runs[1]["accuracy_matrix"]
    assert runs[0]["traffic"] == runs[1]["traffic"]
