"""Training with messages in few bits."""

import math

import pytest
import torch

from codecl.errors import ConfigError
from codecl.exchange.messages import FewBits, MessageConfig, message_bytes
from codecl.exchange.quantised import Memory
from codecl.runs.metrics import traffic
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
        packed = math.ceil(size * bits / 8) + 6 * math.ceil(size / 1024)
        assert message_bytes(MessageConfig(bits=bits), size, 8) == packed
        assert event.bytes == event.messages * packed


def test_what_leaves_in_parts_is_as_long_as_it_says():
    """A round sends a whole number of chunks; agreement has as many more rounds as there are parts."""
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(72, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
    whole, halves = (told(config(message={"bits": 4, "keep": keep}), module) for keep in (1, 0.5))
    opened = of(halves, "task")
    assert opened[0].coordinates > 4096, "five chunks: three and two"
    for event in [*of(halves, "epoch"), *of(halves, "agree")]:
        chunks = math.ceil(math.ceil(opened[event.task].coordinates / 1024) / 2)
        assert event.bytes == event.messages * chunks * (512 + 6)
        assert message_bytes(MessageConfig(bits=4, keep=0.5), opened[event.task].coordinates, 8) == chunks * 518
    rounds = [[event.rounds for event in of(events, "agree")] for events in (whole, halves)]
    assert rounds[1] == [2 * count for count in rounds[0]]
    assert [event.messages for event in of(halves, "epoch")] == [event.messages for event in of(whole, "epoch")]
    full = [traffic(events).full_bytes for events in (whole, halves)]
    assert full[0] == full[1], "cc is against the same full communication"


def test_bfloat16_takes_two_bytes_a_number_and_follows_the_exact_run():
    module = perceptron()
    events = told(config(message={"bits": "bfloat16"}), module)
    for event in of(events, "epoch"):
        assert event.bytes == 2 * event.messages * of(events, "task")[event.task].coordinates
    settings = [config(train={"lr": 0.02}, message={"bits": bits}) for bits in (32, "bfloat16")]
    runs = [list(trajectory(module, tasks(2), each)) for each in settings]
    assert 0 < max(furthest(a, b) for a, b in zip(*runs, strict=True)) < 0.1


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"bits": 5}, "bits"),
        ({"bits": 4, "keep": 0.3}, "one part of a whole number"),
        ({"bits": 32, "keep": 0.5}, "message.bits is 32; parts of a row need"),
        ({"bits": 4, "keep": 0}, "keep"),
    ],
)
def test_messages_that_cannot_be_are_refused(message, says):
    with pytest.raises(ConfigError, match=says):
        config(message=message)


def test_what_nobody_can_read_ends_the_run_with_one_line():
    sending = FewBits(4, seed=1, diameter=7)
    rows = torch.zeros(2, 3000)
    memory = Memory.split(Memory.new(rows, 900).joined())
    assert sending.unread(memory.joined()) is None
    memory.unread_AC[1, 2] = 159
    assert sending.unread(memory.joined()) is None
    memory.unread_AC[1, 2] = 160
    line = sending.unread(memory.joined())
    assert "numbers 2048 to 3071 of neighbours' messages could not be read for 160 rounds" in line
    assert "raise message.bits (it is 4) or lower train.lr" in line


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
    message = {"bits": 4, "keep": 0.5} if momentum else {"bits": 4}
    settings = config(message=message, train={"order": order, "momentum": momentum, "lr": 0.01, "epochs": 3})
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
