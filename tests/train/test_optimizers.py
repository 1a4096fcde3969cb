"""Optimizers in coordinates: laws that each of them keeps."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from codecl import api
from codecl.errors import ConfigError
from codecl.plan.hazards import hazards
from codecl.runs.reader import read_events
from codecl.space import chart as charts
from codecl.train import loop as module_under_test
from codecl.train.config import TrainConfig
from codecl.train.cuda_graph import Replay
from codecl.train.loop import at_rest, train
from codecl.train.optimizers import anchor_coordinates, clipped, make_descend, state_size
from codecl.train.state import Carry, TaskPosition
from tests.problems import Tied, build, config, convolutional, furthest, normed, perceptron, tasks, trajectory

ADAM = {"optimizer": "adamw", "lr": 0.003, "betas": (0.8, 0.99), "eps": 1e-6}


def told(settings, module):
    setup, state = build(module, tasks(), settings)
    return list(train(setup, state))


def of(events, kind):
    return [event for event in events if event.kind == kind]


@pytest.mark.parametrize("model", [perceptron, convolutional])
@pytest.mark.parametrize("order", ["paper", "adapt-then-combine"])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"momentum": 0.9, "weight_decay": 0.1}, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1)),
        ({"weight_decay": 0.1, "clip_norm": 0.3}, lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.1)),
        (ADAM, lambda p: torch.optim.AdamW(p, 0.003, (0.8, 0.99), 1e-6, weight_decay=0)),
        (
            ADAM | {"weight_decay": 0.2, "clip_norm": 0.5},
            lambda p: torch.optim.AdamW(p, 0.003, (0.8, 0.99), 1e-6, weight_decay=0.2),
        ),
    ],
    ids=["momentum and decay", "clipped", "adamw", "adamw with decay, clipped"],
)
def test_one_agent_in_the_first_task_moves_as_with_pytorch(model, order, ours, theirs):
    module = model().double()
    plain = {"epochs": 2, "lr": 0.1, "milestones": (), "order": order}
    settings = config(agents=1, topology="complete", train=plain | ours)
    setup, state = build(module, tasks(1), settings)
    torch_module = nn.Sequential(*module)
    optimizer, steps, layout = theirs(torch_module.parameters()), 0, None
    batches = [batch for e in range(2) for batch in setup.tasks[0].epoch(e, [0], settings.train.batch_size)]
    for event in train(setup, state):
        layout = event.agents.layout if event.kind == "task" else layout
        if event.kind != "step":
            continue
        images, labels = batches[steps]
        optimizer.zero_grad()
        functional.cross_entropy(torch_module(images[0]), labels[0]).backward()
        if settings.train.clip_norm:
            nn.utils.clip_grad_norm_(torch_module.parameters(), settings.train.clip_norm)
        optimizer.step()
        found = layout.parameters(event.coords_AD[0])
        for name, value in torch_module.named_parameters():
            torch.testing.assert_close(found[name], value.detach(), rtol=1e-9, atol=1e-9)
        steps += 1
    assert steps == len(batches) > 7


def moved(setup, state):
    """(layer, basis of the free space, change of its weight since the task began) of the second task's every step."""
    layout = None
    for event in train(setup, state):
        if event.kind == "task" and event.task == 1:
            layout = event.agents.layout
            bases = setup.method.within(state.memory, setup.roles.layers)
            start = layout.parameters(layout.start())
        if event.kind == "flood":
            state = event.state
        if event.kind == "step" and event.task == 1:
            for row in event.coords_AD:
                now = layout.parameters(row)
                for layer in setup.roles.layers:
                    yield layer.name, bases[layer.name], layer.join(now) - layer.join(start)


@pytest.mark.parametrize("method", ["codec", "codec-full"])
@pytest.mark.parametrize("more", [{}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "decay": "coordinates"}])
def test_adamw_stays_inside_the_free_space(method, more):
    setup, state = build(convolutional(), tasks(2), config(method=method, train=ADAM | more))
    changes = list(moved(setup, state))
    assert changes
    for _, bases, change_GON in changes:
        outside = change_GON - charts.project(change_GON, charts.chart(change_GON, bases))
        assert outside.abs().max() < 1e-12
    assert max(float(change.abs().max()) for *_, change in changes) > 1e-3


def test_adamw_turned_is_another_adamw():
    """Both stay inside the free space; how far each coordinate moves depends on the basis."""
    module = perceptron()
    runs = [list(trajectory(module, tasks(2), config(method=m, train=ADAM))) for m in ("codec", "codec-full")]
    first = len(runs[0]) // 2
    apart = [furthest(a, b) for a, b in zip(*runs, strict=True)]
    assert max(apart[:first]) < 1e-9, "in the first task coordinates are the weights"
    assert max(apart[first:]) > 1e-6


@pytest.mark.parametrize("model", [convolutional, Tied, normed])
@pytest.mark.parametrize("more", [{}, {"momentum": 0.9, "lr": 0.01}])
def test_weight_decay_with_sgd_loses_nothing(model, more):
    module, common = model(), {"train": {"weight_decay": 0.05, **more}}
    runs = [list(trajectory(module, tasks(), config(method=m, **common))) for m in ("codec", "codec-full")]
    assert max(furthest(a, b) for a, b in zip(*runs, strict=True)) < 1e-9
    plain = trajectory(module, tasks(), config(train=more))
    assert max(furthest(a, b) for a, b in zip(plain, runs[0], strict=True)) > 1e-4


def second_task(settings, module=None):
    """Of a run that is in its second task: the setup, and the task's agents."""
    setup, state = build(module or convolutional(), tasks(2), settings)
    opened = [event for event in train(setup, state) if event.kind == "task"]
    return setup, opened[1].agents


def test_decay_is_the_gradient_of_half_the_squared_norm_by_coordinates():
    _, agents = second_task(config())
    layout = agents.layout
    coords = torch.randn(layout.size, dtype=torch.float64, requires_grad=True)
    trained = {name for slot in layout.slots for name in ((slot.layer.weight, slot.layer.bias) if slot.layer else ())}
    trained |= {slot.name for slot in layout.slots if not slot.layer}
    weights = layout.parameters(coords)
    half = sum(weights[name].square().sum() for name in trained if name) / 2
    (expected,) = torch.autograd.grad(half, coords)
    torch.testing.assert_close(coords.detach() + anchor_coordinates(layout), expected, rtol=0, atol=1e-10)


def test_coordinates_decay_to_where_the_task_began():
    settings = {"weight_decay": 0.5}
    for what, pulled in (("weights", True), ("coordinates", False)):
        train_config = TrainConfig(**settings, decay=what)
        _, agents = second_task(config())
        start = agents.layout.start()[None]
        layers = sum(slot.size for slot in agents.layout.slots if slot.layer)
        direction, _ = make_descend(train_config, agents.layout)(start[:, :0], start, torch.zeros_like(start))
        assert bool(direction[:, :layers].abs().max() > 1e-6) == pulled
        torch.testing.assert_close(direction[:, layers:], 0.5 * start[:, layers:])  # heads are whole weights


def test_clipping_is_that_of_pytorch_for_each_agent():
    grad = torch.randn(3, 20, dtype=torch.float64) * torch.tensor([[0.01], [1.0], [100.0]])
    for row, ours in zip(grad, clipped(grad, 1.0), strict=True):
        parameter = nn.Parameter(torch.zeros(20, dtype=torch.float64))
        parameter.grad = row.clone()
        nn.utils.clip_grad_norm_([parameter], 1.0)
        torch.testing.assert_close(ours, parameter.grad, rtol=1e-12, atol=0)


@pytest.mark.parametrize("message", [{}, {"bits": 4, "keep": 0.5}])
def test_a_run_with_adamw_goes_on_as_if_it_had_not_stopped(message):
    settings = config(message=message, train=ADAM | {"epochs": 3, "weight_decay": 0.1})
    module = perceptron()
    whole = told(settings, module)
    stopped = [event.live for event in of(whole, "epoch")][4]  # in the second task, after its second epoch
    setup, _ = build(module, tasks(), settings)
    rest = list(train(setup, stopped.state, TaskPosition(stopped.epoch + 1, stopped.carry.joined())))
    assert [event.digest for event in of(rest, "flood")] == [event.digest for event in of(whole, "flood")][1:]


def test_what_is_carried_is_split_as_it_was_joined():
    setup, agents = second_task(config(train=ADAM))
    size = agents.layout.size
    carry = at_rest(setup, torch.randn(4, size, dtype=torch.float64))
    carry = carry._replace(velocity_AV=torch.randn(4, state_size(setup.train, size), dtype=torch.float64))
    assert carry.velocity_AV.shape == (4, 2 * size + 1)
    for ours, theirs in zip(Carry.split(carry.joined(), size, setup.train), carry, strict=True):
        assert torch.equal(ours, theirs)


def test_a_replayed_step_of_adamw_is_a_plain_one(monkeypatch):
    settings, module = config(train=ADAM | {"weight_decay": 0.1, "clip_norm": 1.0}), convolutional()
    plain = [event.digest for event in of(told(settings, module), "flood")]
    monkeypatch.setattr(
        module_under_test, "epochs", lambda step, carry, indices, traffic, graph: Replay(step, carry, indices, traffic)
    )
    assert [event.digest for event in of(told(settings, module), "flood")] == plain


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"method": "d-ewc", "train": {"optimizer": "adamw"}}, "train.optimizer: adamw does not fit method d-ewc"),
        ({"train": {"optimizer": "adamw", "momentum": 0.9}}, "train.momentum: 0.9 is not allowed: adamw has its own"),
        ({"train": {"optimizer": "adam"}}, "train.optimizer: 'adam' is not allowed"),
        ({"train": {"betas": (0.9, 1.0)}}, "train.betas"),
        ({"train": {"clip_norm": 0}}, "train.clip_norm: 0 is not allowed"),
        ({"train": {"weight_decay": -1}}, "train.weight_decay: -1 is not allowed"),
        ({"train": {"decay": 0.1}}, "train.decay is now train.gamma"),
        ({"train": {"decay": "weights", "lr": -1}}, "train.lr: -1 is not allowed"),
    ],
)
def test_what_does_not_fit_is_refused(fields, says):
    with pytest.raises(ConfigError, match=says):
        config(**fields)


def test_hazards_of_curvature_are_not_those_of_adamw():
    def lines(**fields):
        setup, _ = build(perceptron(), tasks(1, images=96), config(agents=16, topology="torus", **fields))
        return [line for line in hazards(setup) if line.startswith("lr:")]

    assert "curvature" in lines()[0]
    assert lines(train={"optimizer": "adamw", "lr": 0.001}) == []
    (line,) = lines(train={"optimizer": "adamw", "lr": 0.1})
    assert "1e-3 is usual" in line


class Stop(Exception):
    pass


def test_a_stopped_run_with_adamw_goes_on_from_its_checkpoint(tmp_path):
    settings = config(train=ADAM | {"epochs": 3, "weight_decay": 0.1}, checkpoint={"every": 1})
    module = perceptron()

    def stop(event):
        if event.kind == "epoch" and (event.task, event.epoch) == (1, 1):
            raise Stop

    common = {"module": module, "tasks": tasks(2), "device": "cpu"}
    whole = api.run(settings, out=tmp_path / "whole", **common)
    with pytest.raises(Stop):
        api.run(settings, out=tmp_path / "stopped", on_event=stop, **common)
    rest = api.run(settings, out=tmp_path / "stopped", **common)
    digests = [[event.digest for event in of(read_events(run.folder), "flood")] for run in (whole, rest)]
    assert digests[0] == digests[1]
    assert len(digests[0]) == 2
