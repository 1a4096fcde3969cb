"""A rate that falls when the loss on held-out images stops falling, and a task that ends with its best weights."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codecl.errors import ConfigError
from codecl.runs.grid import preset, resolve
from codecl.train import plateau
from codecl.train.loop import train
from codecl.train.plateau import PlateauConfig, Watched
from codecl.train.state import TaskPosition
from tests.problems import build, config, normed, tasks

SMALL = {"epochs": 30, "schedule": "plateau", "plateau": {"patience": 1, "min_lr": 0.2}, "lr": 0.8}


@given(st.lists(st.sampled_from([0.1, 0.2, 0.3, math.inf, math.nan]), max_size=30), st.integers(1, 4))
def test_it_is_the_rule_of_gpm(losses, patience):
    """Against the rule as it is written down: best loss, patience, rate."""
    settings = PlateauConfig(patience=patience, factor=0.5)
    watched = plateau.start(settings, 0.08, torch.zeros(1, 2, dtype=torch.float64))
    lr, best, least, left = 0.08, 0, math.inf, patience
    for epoch, loss in enumerate(losses, 1):
        if loss < least:
            least, best, left = loss, epoch, patience
        else:
            left -= 1
            if left <= 0:
                lr, left = lr / 2, patience
        watched = watched.after(settings, torch.full((1, 2), float(epoch), dtype=torch.float64), loss)
        watched = Watched.split(watched.joined())
        assert float(watched.lr_A1) == pytest.approx(lr)
        assert watched.best_AD.tolist() == [[best, best]]


def alone():
    """One agent, and labels that say nothing: the loss on held-out images soon rises."""
    order = torch.randperm(48, generator=torch.Generator().manual_seed(0))
    stream = [task._replace(train=(task.train[0], task.train[1][order])) for task in tasks(2)]
    return build(normed(), stream, config(agents=1, data={"held_out": 0.2}, train=SMALL))


def test_a_task_ends_when_the_rate_is_small_and_with_the_best_weights():
    setup, state = alone()
    events = list(train(setup, state))
    for task in (0, 1):
        epochs = [event for event in events if event.kind == "epoch" and event.task == task]
        rates = [event.lr for event in epochs]
        assert rates[0] == 0.8
        assert rates == sorted(rates, reverse=True)
        last = Watched.split(epochs[-1].live.carry.watched_AW)
        assert len(epochs) == 30 or float(last.lr_A1) < 0.2
        flood = next(event for event in events if event.kind == "flood" and event.task == task)
        opened = next(event for event in events if event.kind == "task" and event.task == task)
        best = opened.agents.layout.parameters(last.best_AD[0])
        for name, value in flood.state.parameters.items():
            torch.testing.assert_close(value, best[name], rtol=0, atol=1e-12)
    assert len([event for event in events if event.kind == "epoch"]) < 60, "the rate ended one"


def test_held_out_images_are_never_trained_on():
    setup, _ = alone()
    data = setup.tasks[0]
    held = {image.sum().item() for image in next(data.held_out(0, 8, 0))[0]}
    assert len(held) == 10  # a fifth of 48
    for epoch in range(5):
        for batch in data.epoch(epoch, [0], 4):
            assert not held & {image.sum().item() for image in batch.images_AB[0]}


def test_held_out_images_come_in_another_order_after_each_epoch():
    setup, _ = alone()
    (first,), (again,), (other,) = (
        [images for images, _ in setup.tasks[0].held_out(0, 8, epoch)] for epoch in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(first.sum((1, 2, 3)).sort().values, other.sum((1, 2, 3)).sort().values)


def test_it_goes_on_as_if_it_had_not_stopped():
    setup, state = alone()
    whole = list(train(setup, state))
    digests = [event.digest for event in whole if event.kind == "flood"]
    for stopped in [event for event in whole if event.kind == "epoch" and event.task == 1]:
        position = TaskPosition(stopped.epoch + 1, stopped.live.carry.joined())
        again, _ = alone()
        rest = list(train(again, stopped.live.state, position))
        assert [event.digest for event in rest if event.kind == "flood"] == digests[1:]


def test_what_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match=r"train.schedule: plateau is for one agent, and there are 4"):
        config(train=SMALL, data={"held_out": 0.1})
    with pytest.raises(ConfigError, match=r"data.held_out: 0 does not fit train.schedule=plateau; .* for example 0.05"):
        config(agents=1, train=SMALL)
    with pytest.raises(ConfigError, match=r"data.held_out: 0.1 does not fit train.schedule=steps"):
        config(agents=1, data={"held_out": 0.1})


def test_the_preset_of_gpm_is_its_published_setting():
    settings = resolve(preset("split-cifar100-gpm"), {})
    assert (settings.agents, settings.train.batch_size, settings.train.epochs, settings.train.lr) == (1, 64, 200, 0.01)
    assert settings.train.plateau == PlateauConfig(factor=0.5, patience=6, min_lr=1e-5)
    assert (settings.growth.threshold, settings.growth.increment) == (0.97, 0.003)
