"""Several rounds a step and graphs that change, in the loop: resumed, replayed, counted."""

import pytest

from codecl import api
from codecl.plan import plan
from codecl.runs.grid import preset, resolve
from tests.problems import (
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

AFTER = {"order": "adapt-then-combine"}
KINDS = {
    "rounds": {"topology": "ring-undirected", "train": {"gossip_rounds": 3}},
    "one peer": {"topology": "one-peer-exponential"},
    "few bits": {"topology": "one-peer-exponential", "train": {"gossip_rounds": 2}, "message": {"bits": 4}},
    "bfloat16": {"topology": "one-peer-exponential", "message": {"bits": "bfloat16"}},
    "chebyshev in eight": {"topology": "ring-undirected", "train": {"gossip_rounds": 3}, "message": {"bits": 8}},
    "tracking": {"topology": "one-peer-exponential", "train": {**AFTER, "correction": "gradient-tracking"}},
    "diffusion": {
        "topology": "ring-undirected",
        "train": {**AFTER, "correction": "exact-diffusion", "gossip_rounds": 2},
    },
}


def settings_of(name, **more):
    fields = {**KINDS[name], **more}
    train = {"epochs": 3, "batch_size": 4, "lr": 0.05, **fields.pop("train", {})}
    return config(agents=4, train=train, **fields)


@pytest.mark.parametrize("name", ["rounds", "one peer", "tracking", "diffusion"])
def test_codec_and_codec_full_follow_one_trajectory(name):
    check_codec_is_codec_full(lambda method: settings_of(name, method=method), perceptron())


@pytest.mark.parametrize("name", KINDS)
def test_it_goes_on_as_if_it_had_not_stopped(name):
    check_goes_on(settings_of(name), perceptron())


@pytest.mark.parametrize("name", KINDS)
def test_a_replayed_step_is_a_plain_one(name, monkeypatch):
    check_replays(settings_of(name), convolutional(), monkeypatch)


def test_agents_that_average_exactly_in_each_step_are_one_agent_with_their_images():
    """All turns of one peer after another in a step, against a complete graph."""
    module = perceptron()
    runs = [
        trajectory(module, tasks(), config(agents=8, topology=name, train={"gossip_rounds": rounds, "batch_size": 4}))
        for name, rounds in (("one-peer-exponential", 3), ("complete", 1))
    ]
    for ours, theirs in zip(*runs, strict=True):
        assert furthest(ours, theirs) < 1e-9


@pytest.mark.parametrize(
    ("topology", "rounds", "sent"), [("torus", 3, 9), ("one-peer-exponential", 1, 1), ("one-peer-exponential", 3, 3)]
)
def test_what_is_sent_is_counted_and_planned(topology, rounds, sent, tmp_path):
    changes = {"topology": {"name": topology}, "agents": 8, "data": {"tasks": 2}, "method": {"name": "dpsgd"}}
    settings = resolve(preset("quickstart"), {**changes, "train": {"epochs": 1, "gossip_rounds": rounds}})
    traffic, planned = api.run(settings, out=tmp_path).metrics["traffic"], plan(settings)
    assert traffic["train_bytes"] == planned.train_bytes
    assert traffic["boundary_bytes"] == planned.boundary_bytes
    assert traffic["full_bytes"] == planned.full_bytes
    task = planned.tasks[0]
    assert task.train_bytes == 8 * sent * task.steps * task.coordinates * 4
    assert planned.graph.step_rounds == rounds
