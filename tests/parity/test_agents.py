"""Stacked agents equal a plain loop over agents; the factored form equals building the weight."""

import pytest
import torch
from torch import nn

from codecl.data.task import Task
from codecl.space import chart as charts
from codecl.train import kernels
from codecl.train import weights as module_under_test
from codecl.train.constraint import weight_gradients, with_mu
from codecl.train.loop import open_task, train
from tests.problems import Tied, build, config, convolutional, furthest, perceptron, tasks, trajectory


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 6),
        nn.LayerNorm(6),
        nn.Linear(6, 3),
    )


@pytest.mark.parametrize("model", [perceptron, convolutional, normed, Tied])
@pytest.mark.parametrize("method", ["codec", "codec-full", "dpsgd", "d-ewc"])
def test_stacked_agents_equal_a_loop(model, method):
    module = model()
    runs = [
        trajectory(module, tasks(2), config(method=method, train={"execution": execution}))
        for execution in ("stacked", "loop")
    ]
    assert max(furthest(a, b) for a, b in zip(*runs, strict=True)) < 1e-11


def test_stacked_agents_equal_separate_autograd():
    """Each row is what plain PyTorch gives for that agent alone, parameter by parameter."""
    module = convolutional()
    setup, state = build(module, tasks(1), config())
    event = next(iter(train(setup, state)))
    group, rows = event.agents, torch.randn(4, event.agents.layout.size, dtype=torch.float64) * 0.3
    batch = next(iter(setup.tasks[0].epoch(0, range(4), 4)))
    loss_A, grad_AD = group.gradient(rows, *batch)
    for row, images, labels, loss, grad in zip(rows, *batch, loss_A, grad_AD, strict=True):
        alone = convolutional().double()
        with torch.no_grad():
            for name, value in group.layout.parameters(row).items():
                alone.get_parameter(name).copy_(value)
        expected = nn.functional.cross_entropy(alone(images), labels)
        expected.backward()
        torch.testing.assert_close(loss, expected.detach())
        for name, value in group.layout.parameters(grad).items():
            torch.testing.assert_close(value, alone.get_parameter(name).grad, rtol=0, atol=1e-12)


def test_factored_layers_follow_the_same_trajectory(monkeypatch):
    """The choice by counting changes the cost, not the numbers."""
    module = perceptron()
    chosen = []
    original = module_under_test.charts.factored_pays

    def by_counting(*sizes):
        chosen.append(original(*sizes))
        return chosen[-1]

    monkeypatch.setattr(module_under_test.charts, "factored_pays", by_counting)
    ours = list(trajectory(module, tasks(), config()))
    assert True in chosen
    monkeypatch.setattr(module_under_test.charts, "factored_pays", lambda *sizes: False)
    built = list(trajectory(module, tasks(), config()))
    assert max(furthest(a, b) for a, b in zip(ours, built, strict=True)) < 1e-11


class Branching(nn.Module):
    """Looks at its values, which stacked agents cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(72, 5), nn.Linear(5, 3)

    def forward(self, x):
        x = self.body(x.flatten(1))
        return self.head(x if x.sum() > 0 else -x)


def test_what_cannot_be_stacked_runs_in_a_loop_with_one_warning():
    module = Branching()
    with pytest.warns(UserWarning, match="one after another") as caught:
        ours = list(trajectory(module, tasks(2), config()))
    assert len(caught) == 1
    loop = list(trajectory(module, tasks(2), config(train={"execution": "loop"})))
    assert max(furthest(a, b) for a, b in zip(ours, loop, strict=True)) == 0


def test_batch_norm_keeps_no_running_statistics_and_the_users_module_is_untouched():
    module = normed()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    list(trajectory(module, tasks(2), config()))
    after = module.state_dict()
    assert set(before) == set(after)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_dropout_differs_between_agents():
    module = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(72, 3))
    setup, state = build(module, tasks(1), config())
    group = next(iter(train(setup, state))).agents
    images, labels = torch.ones(4, 8, 2, 6, 6).double(), torch.zeros(4, 8).long()
    rows = group.layout.start().repeat(4, 1)
    assert len(set(group.gradient(rows, images, labels)[0].tolist())) == 4


def test_bf16_takes_tokens_too():
    """What is cast is decided by the weights, not by what goes in."""
    module = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 3))
    tokens, labels = torch.randint(9, (32, 3)), torch.arange(32) % 3
    stream = [Task((tokens, labels), (tokens, labels), 3)]
    grads = []
    for precision in ("highest", "bf16"):
        settings = config(dtype="float32", dense=["0.weight"], train={"precision": precision})
        setup, state = build(module, stream, settings)
        agents = open_task(setup, state, setup.tasks[0])
        batch = next(iter(setup.tasks[0].epoch(0, range(4), 4)))
        grads.append(agents.gradient(agents.layout.start().repeat(4, 1), *batch)[1])
    assert grads[1].dtype == torch.float32
    assert 1e-6 < float((grads[0] - grads[1]).norm() / grads[0].norm()) < 0.05


def test_a_kernel_that_fails_gives_way(monkeypatch):
    """Whatever a kernel raises, on a GPU too small for it say, the agents go on stacked, with PyTorch's layers."""

    def fail(images):
        raise LookupError("out of shared memory")

    def broken(module, precision):
        parts = [part for part in module.modules() if isinstance(part, nn.Conv2d)]
        for part in parts:
            part.forward = fail
        return parts

    module, settings = convolutional(), config()
    expected = list(trajectory(module, tasks(2), settings))
    monkeypatch.setattr(kernels, "available", lambda *_: True)
    monkeypatch.setattr(kernels, "install", broken)
    ours = list(trajectory(module, tasks(2), settings))
    assert max(furthest(a, b) for a, b in zip(ours, expected, strict=True)) < 1e-11


def test_an_error_after_a_step_that_worked_is_not_taken_for_a_model_that_cannot_be_stacked():
    """A capture that breaks, say: the way of execution stays, and the error shows."""
    setup, state = build(convolutional(), tasks(1), config())
    agents = open_task(setup, state, setup.tasks[0])
    batch, rows = next(iter(setup.tasks[0].epoch(0, range(4), 4))), agents.layout.start().repeat(4, 1)
    agents.gradient(rows, *batch)
    agents.loss.module.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("capture broke")))
    with pytest.raises(RuntimeError, match="capture broke"):
        agents.gradient(rows, *batch)
    assert agents.execution == "stacked"


@pytest.mark.parametrize("model", [perceptron, convolutional, normed, Tied])
@pytest.mark.parametrize("execution", ["stacked", "loop"])
def test_the_gradient_by_coordinates_is_the_gradient_by_weights_in_the_chart(model, execution):
    """At weights that are built whole: factored layers and layers without free directions too."""
    setup, state = _second_task(model(), execution)
    group, indices = open_task(setup, state, setup.tasks[1]), setup.tasks[1].indices(0, range(4), 4)[0]
    rows = torch.randn(4, group.layout.size, dtype=torch.float64) * 0.1
    batch = setup.tasks[1].batch(indices[0])
    _, grad_AD = group.gradient(rows, *batch)
    grads = weight_gradients(group, setup.module, rows, *batch)
    for slot, piece in group.layout.pieces(grad_AD):
        if slot.layer:
            for row, whole in zip(piece, grads[slot.name], strict=True):
                chart = slot.chart._replace(anchor_GON=torch.zeros_like(slot.chart.anchor_GON))
                torch.testing.assert_close(charts.encode(whole, chart), row, rtol=0, atol=1e-12)


def _second_task(module, execution):
    """As a run is when its second task opens; the first layer has nothing free."""
    setup, state = build(module, tasks(2), config(train={"execution": execution, "batch_size": 2}))
    for event in train(setup, state):
        if event.kind == "flood":
            break
    name = setup.roles.layers[0].name
    memory = {key: value[:, :0] if key.startswith(f"{name}/") else value for key, value in event.state.memory.items()}
    return setup, event.state._replace(memory=memory)


def test_codec_and_full_communication_are_constrained_alike():
    module, seen = convolutional(), {}
    for method in ("codec", "codec-full", "dpsgd"):
        setup, state = build(module, tasks(2), config(method=method))
        events = [event for event in with_mu(train(setup, state), setup) if event.kind == "epoch"]
        seen[method] = [(event.mu_mean, event.mu_max) for event in events]
    assert seen["dpsgd"] == [(1, 1)] * 4
    assert seen["codec"][:2] == [(1, 1)] * 2, "nothing is constrained in the first task"
    for ours, full in zip(seen["codec"], seen["codec-full"], strict=True):
        assert ours == pytest.approx(full, abs=1e-10)
    assert all(0 < mean <= most < 1 for mean, most in seen["codec"][2:])


def test_a_run_is_the_same_with_and_without_mu():
    """Dropout too: what is measured beside the loop draws nothing from it."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(72, 9), nn.Dropout(0.5), nn.ReLU(), nn.Linear(9, 3))
    lines = []
    for wrap in (lambda events, _: events, with_mu):
        torch.manual_seed(3)
        setup, state = build(module, tasks(2), config())
        events = [event for event in wrap(train(setup, state), setup) if event.kind in ("epoch", "flood")]
        lines.append([event.record() for event in events])
    for plain, measured in zip(*lines, strict=True):
        for key in ("mu_mean", "mu_max", "seconds"):
            plain.pop(key, None)
            measured.pop(key, None)
        assert plain == measured
