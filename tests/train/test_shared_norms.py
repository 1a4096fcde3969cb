"""Batch norms by statistics that agents gossip."""

import pytest
import torch
from torch import nn

from codecl import api
from codecl.plan import plan
from codecl.runs.grid import preset, resolve
from codecl.space import norms
from codecl.train import shared_norms
from codecl.train.loop import train
from tests.problems import (
    build,
    check_codec_is_codec_full,
    check_goes_on,
    check_replays,
    config,
    furthest,
    normed,
    tasks,
    trajectory,
)

GOSSIP = {"epochs": 3, "batch_size": 4, "lr": 0.05, "norm_statistics": "gossip"}


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d])
@pytest.mark.parametrize("affine", [True, False])
def test_a_norm_gives_what_it_gives_with_its_statistics_and_the_gradient_of_one_by_its_batch(kind, affine):
    torch.manual_seed(0)
    shape = (6, 3) if kind is nn.BatchNorm1d else (6, 3, 4, 4)
    images = torch.randn(shape, dtype=torch.float64) + 0.5
    mean, variance = torch.tensor([0.3, 0.6, 0.4]).double(), torch.tensor([0.8, 1.2, 1.1]).double()
    plain, ours = (kind(3, affine=affine, track_running_stats=False).double() for _ in range(2))
    for norm in (plain, ours) if affine else ():
        nn.init.constant_(norm.weight, 1.3)
        nn.init.constant_(norm.bias, 0.2)
    notes = []
    shared_norms.follow(ours, notes.append)
    with torch.no_grad():
        ours.codecl_moments = nn.Parameter(torch.stack([mean, variance + mean.square()]))
    dims = [0, 2, 3][: len(shape) - 1] if len(shape) == 4 else [0]
    given = ours(images)
    expected = nn.functional.batch_norm(images, mean, variance, plain.weight, plain.bias, eps=plain.eps)
    torch.testing.assert_close(given, expected)
    batch = torch.stack([images.mean(dims), images.square().mean(dims)])
    (drawn,) = torch.autograd.grad(notes[0], ours.codecl_moments)
    torch.testing.assert_close(drawn, ours.codecl_moments.detach() - batch)
    # where shared statistics are the batch's own, the gradient by its inputs is batch norm's
    with torch.no_grad():
        ours.codecl_moments.copy_(batch)
    upstream = torch.randn(shape, dtype=torch.float64)
    grads = []
    for norm in (plain, ours):
        leaf = images.clone().requires_grad_()
        (grad,) = torch.autograd.grad((norm(leaf) * upstream).sum(), leaf)
        grads.append(grad)
    torch.testing.assert_close(*grads)


def test_statistics_and_moments_are_one_thing():
    module = normed()
    like = torch.zeros((), dtype=torch.float64)
    statistics = {
        name: torch.rand(value.shape[1:], dtype=torch.float64) + 0.1
        for name, value in norms.moments_of(module, {}, like).items()
    }
    known = {}
    for name, value in statistics.items():
        owner = name.rpartition(".")[0]
        known |= {f"{owner}.{norms.MEAN}": value, f"{owner}.{norms.VARIANCE}": value + 1}
    rest, found = norms.without_moments({"a": like, **norms.moments_of(module, known, like)})
    assert rest == {"a": like}
    assert found.keys() == known.keys()
    for name, value in known.items():
        torch.testing.assert_close(found[name], value)


def test_without_mixing_in_between_they_come_to_those_of_all_images():
    """A learning rate near 0: statistics alone move. Every agent has other classes, and each ends with those of all."""
    module = normed()
    train_settings = {**GOSSIP, "lr": 1e-9, "epochs": 400, "milestones": ()}
    settings = config(agents=4, topology="complete", train=train_settings, data={"partition": "skew(1)"})
    setup, state = build(module, tasks(1), settings)
    kept = [event.state for event in train(setup, state) if event.kind == "flood"][-1].kept[0]
    images, _ = tasks(1)[0].train
    parameters = {**state.parameters, **setup.heads[0]}
    measured = norms.statistics_of(norms.measure(setup.module, parameters, [images.double()], {}), torch.float64)
    first = next(iter(norms.batch_norms(setup.module)))
    for what in (norms.MEAN, norms.VARIANCE):
        torch.testing.assert_close(kept.statistics[f"{first}.{what}"], measured[f"{first}.{what}"], rtol=0.1, atol=0.05)


def test_codec_and_codec_full_follow_one_trajectory():
    check_codec_is_codec_full(lambda method: config(agents=4, topology="ring", train=GOSSIP, method=method), normed())


def test_stacked_agents_equal_a_loop():
    module = normed()
    runs = [
        trajectory(module, tasks(), config(agents=4, topology="ring", train={**GOSSIP, "execution": how}))
        for how in ("stacked", "loop")
    ]
    for ours, theirs in zip(*runs, strict=True):
        assert furthest(ours, theirs) < 1e-9


@pytest.mark.parametrize(
    "more", [{}, {"momentum": 0.9, "clip_norm": 1.0, "weight_decay": 0.01}, {"optimizer": "adamw"}]
)
def test_it_goes_on_as_if_it_had_not_stopped_and_is_replayed(more, monkeypatch):
    module, settings = normed(), config(agents=4, topology="ring", train={**GOSSIP, **more}, own={"directions": 2})
    check_goes_on(settings, module)
    check_replays(settings, module, monkeypatch)


def test_predictions_are_an_images_own_and_bytes_are_as_planned(tmp_path):
    changes = {"agents": 4, "data": {"tasks": 2}, "model": {"name": "tests.problems:pooled"}}
    changes |= {"train": {"epochs": 1, "norm_statistics": "gossip"}, "method": {"name": "dpsgd"}}
    settings = resolve(preset("quickstart"), changes)
    result = api.run(settings, out=tmp_path)
    planned, sent = plan(settings), result.metrics["traffic"]
    assert (planned.train_bytes, planned.boundary_bytes) == (sent["train_bytes"], sent["boundary_bytes"])
    assert max(result.metrics["kept_by_task"]) == planned.tasks[1].kept
    model = result.model(0).eval()
    images = torch.rand(5, 1, 28, 28)
    torch.testing.assert_close(model(images)[:1], model(images[:1]))


def test_group_norms_may_take_the_place_of_batch_norms(tmp_path):
    """Of a module as it is: trained, saved, loaded, and an image's prediction is its own."""
    torch.manual_seed(0)
    inner = nn.Linear(49, 16), nn.BatchNorm1d(16), nn.Tanh()
    module = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), *inner, nn.Linear(16, 10))
    images, labels = torch.rand(64, 1, 28, 28), torch.randint(10, (64,))
    about = {"epochs": 2, "norm_statistics": "group"}
    result = api.fit(module, [((images, labels), (images, labels), 10)], agents=2, train=about, out=tmp_path)
    found = result.model(0)
    assert isinstance(found[3], nn.GroupNorm)
    torch.testing.assert_close(found(images)[:1], found(images[:1]))
    again = api.load(result.folder, 0, module)
    torch.testing.assert_close(again(images), found(images))
    assert isinstance(module[3], nn.BatchNorm1d)  # the user's stays as it is


@pytest.mark.parametrize("affine", [True, False])
def test_a_group_norm_has_the_parameters_of_the_batch_norm(affine):
    module = nn.Sequential(nn.Conv2d(2, 12, 3), nn.BatchNorm2d(12, eps=1e-3, affine=affine))
    kept = module[1].weight
    group = norms.with_group_norms(module)[1]
    assert (group.num_groups, group.num_channels, group.eps, group.affine) == (4, 12, 1e-3, affine)
    assert group.weight is kept
    expected = nn.functional.group_norm(torch.ones(2, 12, 3, 3), 4, group.weight, group.bias, 1e-3)
    torch.testing.assert_close(group(torch.ones(2, 12, 3, 3)), expected)
    assert isinstance(norms.with_group_norms(nn.BatchNorm1d(5)), nn.GroupNorm)
