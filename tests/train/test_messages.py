"""Training with messages in few bits."""

import math

import pytest
import torch

from codecl.exchange.messages import MessageConfig, message_bytes
from codecl.train import loop as module_under_test
from codecl.train.cuda_graph import Replay
from codecl.train.loop import train
from codecl.train.state import TaskPosition
from tests.problems import build, config, convolutional, furthest, perceptron, tasks, trajectory


@pytest.fixture(autouse=True)
def _the_same_weights():
    torch.manual_seed(0)


def told(settings, module=None, stream=None):
    setup, state = build(module or perceptron(), stream or tasks(), settings)
    return list(train(setup, state))


def of(events, kind):
    return [event for event in events if event.kind == kind]


@pytest.mark.parametrize("bits", [16, 8, 4, 3, 2])
@pytest.mark.parametrize("method", ["codec", "codec-full", "dpsgd", "d-ewc"])
def test_what_leaves_is_as_long_as_it_says(method, bits):
    events = told(config(method=method, message={"bits": bits}))
    opened = of(events, "task")
    for event in [*of(events, "epoch"), *of(events, "agree")]:
        size = opened[event.task].coordinates
        packed = math.ceil(size * bits / 8) + 5 * math.ceil(size / 1024)
        assert message_bytes(MessageConfig(bits=bits), size, 8) == packed
        assert event.bytes == event.messages * packed


def test_thirty_two_bits_are_the_rows_as_they_are():
    module = convolutional()
    runs = [list(trajectory(module, tasks(2), config(**more))) for more in ({}, {"message": {"bits": 32}})]
    assert max(furthest(a, b) for a, b in zip(*runs, strict=True)) == 0


def test_sixteen_bits_follow_the_exact_run():
    module = perceptron()
    runs = [
        list(trajectory(module, tasks(2), config(train={"lr": 0.02}, message={"bits": bits}))) for bits in (32, 16, 4)
    ]
    far = [max(furthest(a, b) for a, b in zip(runs[0], other, strict=True)) for other in runs[1:]]
    assert 0 < far[0] < 1e-4, "a difference of rounding"
    assert far[0] < far[1] < 0.2


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("order", ["paper", "adapt-then-combine"])
def test_a_run_in_few_bits_goes_on_as_if_it_had_not_stopped(order, momentum):
    settings = config(message={"bits": 4}, train={"order": order, "momentum": momentum, "lr": 0.01, "epochs": 3})
    module = perceptron()
    whole = told(settings, module)
    stopped = [event.live for event in of(whole, "epoch")][4]  # in the second task, after its second epoch
    setup, _ = build(module, tasks(), settings)
    rest = list(train(setup, stopped.state, TaskPosition(stopped.epoch + 1, stopped.carry.joined())))
    assert [event.digest for event in of(rest, "flood")] == [event.digest for event in of(whole, "flood")][1:]


def test_a_replayed_step_in_few_bits_is_a_plain_one(monkeypatch):
    settings = config(message={"bits": 4}, train={"momentum": 0.5})
    module = convolutional()
    plain = [event.digest for event in of(told(settings, module), "flood")]
    monkeypatch.setattr(
        module_under_test, "epochs", lambda step, carry, indices, traffic, graph: Replay(step, carry, indices, traffic)
    )
    assert [event.digest for event in of(told(settings, module), "flood")] == plain


@pytest.mark.parametrize("bits", [4, 2])
def test_agents_learn_as_well_in_few_bits(bits):
    stream = tasks(2, images=96)
    scores, module = [], perceptron()
    for wanted in (32, bits):
        events = told(config(message={"bits": wanted}, train={"epochs": 8}), module, stream)
        scores.append(sum(of(events, "eval")[-1].accuracy) / 2)
    assert scores[0] > 60
    assert scores[1] > scores[0] - 5


def test_agents_that_draw_other_numbers_would_be_other_runs():
    module = perceptron()
    floods = [of(told(config(seed=seed, message={"bits": 4}), module), "flood") for seed in (1, 1, 2)]
    runs = [[event.digest for event in flooded] for flooded in floods]
    assert runs[0] == runs[1] != runs[2]
