"""Beyond the paper's plain steps: schedules, momentum, smoothing."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from codecl.errors import ConfigError
from codecl.train.config import TrainConfig
from codecl.train.loop import train
from tests.problems import build, config, perceptron, tasks


def test_the_papers_schedule_falls_twice_and_starts_again_with_each_task():
    lrs = [TrainConfig(epochs=8, lr=1.0).lr_at(epoch) for epoch in range(8)]
    assert lrs == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01])


@given(st.integers(2, 60), st.integers(0, 20))
def test_a_cosine_falls_and_a_warm_up_rises(epochs, warmup):
    settings = TrainConfig(epochs=epochs, lr=0.5, schedule="cosine", warmup_epochs=warmup)
    lrs = [settings.lr_at(epoch) for epoch in range(epochs)]
    assert all(0 < lr <= 0.5 for lr in lrs)
    assert lrs[0] == pytest.approx(0.5 / (warmup + 1))
    if warmup < epochs:
        assert lrs[warmup] == pytest.approx(0.25 * (1 + math.cos(math.pi * warmup / epochs)))
    falling = lrs[min(warmup, epochs - 1) :]
    assert falling == sorted(falling, reverse=True)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("order", ["paper", "adapt-then-combine"])
def test_one_agent_with_momentum_is_sgd_with_momentum(order, smoothing):
    """An agent alone has nobody to mix with: what is left is PyTorch's own optimiser."""
    module, stream = perceptron().double(), tasks(1)
    schedule = {"schedule": "cosine", "warmup_epochs": 1, "epochs": 3}
    more = {"order": order, "momentum": 0.9, "label_smoothing": smoothing, **schedule}
    settings = config(agents=1, method="dpsgd", topology="complete", train=more)
    setup, state = build(module, stream, settings)
    theirs = nn.Sequential(*module)
    optimiser = torch.optim.SGD(theirs.parameters(), lr=1.0, momentum=0.9)
    events, layout = train(setup, state), None
    batches = [(e, batch) for e in range(3) for batch in setup.tasks[0].epoch(e, [0], settings.train.batch_size)]
    steps = 0
    for event in events:
        layout = event.agents.layout if event.kind == "task" else layout
        if event.kind != "step":
            continue
        epoch, (images, labels) = batches[steps]
        optimiser.param_groups[0]["lr"] = settings.train.lr_at(epoch)
        optimiser.zero_grad()
        functional.cross_entropy(theirs(images[0]), labels[0], label_smoothing=smoothing).backward()
        optimiser.step()
        ours = layout.parameters(event.coords_AD[0])
        for name, value in theirs.named_parameters():
            torch.testing.assert_close(ours[name], value.detach(), rtol=1e-9, atol=1e-11)
        steps += 1
    assert steps == len(batches) > 10


@pytest.mark.parametrize(
    ("field", "value"), [("momentum", 1.0), ("label_smoothing", 1.0), ("warmup_epochs", -1), ("schedule", "x")]
)
def test_what_cannot_be_is_refused(field, value):
    with pytest.raises(ConfigError, match=f"train.{field}: .* is not allowed"):
        config(train={field: value})
