"""Corrections in the loop: resumed, replayed, counted, refused."""

import pytest

from codecl import api
from codecl.errors import ConfigError
from codecl.plan import plan
from codecl.runs.grid import preset, resolve
from codecl.train.corrections import CORRECTIONS
from tests.problems import (
    build,
    check_codec_is_codec_full,
    check_goes_on,
    check_replays,
    config,
    convolutional,
    furthest,
    perceptron,
    tasks,
    trajectory,
)

AFTER = {"order": "adapt-then-combine", "epochs": 3, "batch_size": 4, "lr": 0.05}
KINDS = [name for name in CORRECTIONS if name != "none"]


def corrected(name, **more):
    train = {**AFTER, "correction": name, "momentum": 0.5 if name == "quasi-global" else 0.0}
    return config(topology="ring-undirected", train=train, **more)


@pytest.mark.parametrize("name", KINDS)
def test_codec_and_codec_full_follow_one_trajectory(name):
    check_codec_is_codec_full(lambda method: corrected(name, method=method), perceptron())


@pytest.mark.parametrize("name", KINDS)
def test_it_goes_on_as_if_it_had_not_stopped(name):
    check_goes_on(corrected(name), perceptron())


@pytest.mark.parametrize("name", KINDS)
def test_a_replayed_step_is_a_plain_one(name, monkeypatch):
    check_replays(corrected(name), convolutional(), monkeypatch)


def test_one_agent_alone_needs_no_correction():
    plain, module = config(agents=1, train=AFTER), perceptron()
    for name in ("exact-diffusion", "gradient-tracking"):
        alone = config(agents=1, train={**AFTER, "correction": name})
        runs = [list(trajectory(module, tasks(), settings)) for settings in (plain, alone)]
        for ours, theirs in zip(*runs, strict=True):
            assert furthest(ours, theirs) < 1e-9


@pytest.mark.parametrize("name", KINDS)
def test_what_it_sends_is_counted_and_planned(name, tmp_path):
    changes = {"topology": {"name": "torus"}, "agents": 8, "data": {"tasks": 2}, "train": {**AFTER, "epochs": 1}}
    changes["train"] |= {"correction": name, "batch_size": 10, "momentum": 0.5 if name == "quasi-global" else 0.0}
    settings = resolve(preset("quickstart"), changes)
    result = api.run(settings, out=tmp_path)
    plainly = resolve(preset("quickstart"), {**changes, "train": {**changes["train"], "correction": "none"}})
    other = api.run(plainly, out=tmp_path)
    ours, theirs = result.metrics["traffic"], other.metrics["traffic"]
    assert ours["full_bytes"] == theirs["full_bytes"]
    first = plan(settings).tasks[0]
    assert first.train_bytes == CORRECTIONS[name].sent * plan(plainly).tasks[0].train_bytes
    assert ours["train_bytes"] >= (CORRECTIONS[name].sent - 0.2) * theirs["train_bytes"]


def test_with_few_bits(tmp_path):
    changes = {"topology": {"name": "torus"}, "agents": 4, "data": {"tasks": 2, "partition": "skew(0.9)"}}
    train = {"order": "adapt-then-combine", "epochs": 2, "lr": 0.15, "correction": "exact-diffusion"}
    runs = [
        api.run(resolve(preset("quickstart"), {**changes, "train": train, "message": {"bits": bits}}), out=tmp_path)
        for bits in (32, 8)
    ]
    scores = [run.metrics["acc"] for run in runs]
    assert abs(scores[0] - scores[1]) < 5
    assert min(scores) > 50


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"train": {"correction": "exact-diffusion"}}, "exact-diffusion mixes after the step; set train.order=adapt"),
        ({"train": {**AFTER, "correction": "quasi-global"}}, "quasi-global is a momentum of sgd; set train.momentum"),
        (
            {"train": {**AFTER, "correction": "gradient-tracking"}, "message": {"bits": 8}, "topology": "torus"},
            "gradient-tracking sends two rows a step, and message.bits=8 remembers one",
        ),
        (
            {"train": {**AFTER, "correction": "gradient-tracking"}, "message": {"robust": "clip"}, "topology": "torus"},
            "gradient-tracking sends two rows a step, and message.robust=clip remembers one",
        ),
        (
            {"train": {**AFTER, "correction": "exact-diffusion"}, "topology": "ring"},
            r"exact-diffusion is unstable on ring of 8: each step multiplies disagreement by up to 1\.256",
        ),
        (
            {"train": {**AFTER, "correction": "quasi-global", "momentum": 0.9}, "topology": "ring"},
            r"quasi-global is unstable on ring of 8: each step multiplies disagreement by up to 1\.006",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_trains(fields, says):
    with pytest.raises(ConfigError, match=says):
        build(perceptron(), tasks(), config(agents=8, **fields))


def test_gradient_tracking_on_a_directed_ring_is_told_its_narrow_range():
    settings = resolve(
        preset("quickstart"), {"agents": 8, "train": {**AFTER, "batch_size": 10, "correction": "gradient-tracking"}}
    )
    found = plan(settings)
    assert found.graph.stable_below == pytest.approx(0.047, abs=0.005)
    assert found.graph.correction_modulus == pytest.approx(0.9239, abs=1e-3)
    assert any("gradient-tracking is stable only while lr × curvature is below 0.05" in line for line in found.warnings)
