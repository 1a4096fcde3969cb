"""Compression loses nothing: `codec` and `codec-full` follow one trajectory."""

import pytest

from tests.problems import Tied, config, convolutional, furthest, normed, perceptron, tasks, trajectory


@pytest.mark.parametrize("model", [perceptron, convolutional, Tied])
@pytest.mark.parametrize("order", ["paper", "adapt-then-combine"])
@pytest.mark.parametrize("subspace_from", ["one", "all"])
def test_codec_and_codec_full_follow_one_trajectory(model, order, subspace_from):
    module, common = model(), {"train": {"order": order}, "growth": {"subspace_from": subspace_from}}
    runs = [trajectory(module, tasks(), config(method=m, **common)) for m in ("codec", "codec-full")]
    apart = [furthest(a, b) for a, b in zip(*runs, strict=True)]
    assert len(apart) == 18
    assert max(apart) < 1e-9


def test_the_orders_of_mixing_differ():
    module = perceptron()
    runs = [trajectory(module, tasks(), config(train={"order": o})) for o in ("paper", "adapt-then-combine")]
    assert max(furthest(a, b) for a, b in zip(*runs, strict=True)) > 1e-6


@pytest.mark.parametrize("order", ["paper", "adapt-then-combine"])
def test_momentum_in_coordinates_is_momentum_on_projected_gradients(order):
    module, common = convolutional(), {"train": {"order": order, "momentum": 0.9, "lr": 0.01}}
    runs = [list(trajectory(module, tasks(), config(method=m, **common))) for m in ("codec", "codec-full")]
    assert max(furthest(a, b) for a, b in zip(*runs, strict=True)) < 1e-9
    plain = trajectory(module, tasks(), config(train={"order": order, "lr": 0.01}))
    assert max(furthest(a, b) for a, b in zip(plain, runs[0], strict=True)) > 1e-6


@pytest.mark.parametrize("model", [perceptron, convolutional, normed, Tied])
@pytest.mark.parametrize(
    "fields",
    [
        {"own": {"directions": 2}, "norms": "own"},
        {"own": {"share": 0.2}, "growth": {"subspace_from": "all"}},
        {
            "own": {"directions": 2},
            "free": {"directions": 3, "first_task": True},
            "train": {"momentum": 0.9, "lr": 0.01},
        },
    ],
    ids=["own", "a share, from all", "own and free, with momentum"],
)
def test_nothing_is_lost_in_chosen_directions_either(model, fields):
    module = model()
    runs = [list(trajectory(module, tasks(), config(method=m, **fields))) for m in ("codec", "codec-full")]
    assert max(furthest(a, b) for a, b in zip(*runs, strict=True)) < 1e-9
    plain = trajectory(module, tasks(), config(train=fields.get("train", {}), growth=fields.get("growth", {})))
    assert max(furthest(a, b) for a, b in zip(plain, runs[0], strict=True)) > 1e-6
