"""Tasks that have directions and norms of their own: what they keep, what all share, and what is recorded of it."""

import json
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file
from torch.func import functional_call

import codecl
from codecl.errors import ConfigError
from codecl.seeding import choose
from codecl.train.loop import train
from tests.problems import build, config, convolutional, furthest, normed, perceptron, tasks, trajectory

OWN = {"own": {"directions": 2}}
LOOK = {"threshold": 0.9, "increment": 0.01, "images": 8}


def events(module, settings, kind, stream=None):
    setup, start = build(module, stream or tasks(), settings)
    return setup, [event for event in train(setup, start) if event.kind == kind]


def states(module, settings):
    """The setup, and the state after each task."""
    setup, floods = events(module, settings, "flood")
    return setup, [event.state for event in floods]


def outputs(setup, kept, body, images):
    return functional_call(setup.module.eval(), kept.model(setup.roles.layers, body), (images,))


def same(ours, theirs):
    """Whether two mappings hold the same tensors, bit for bit."""
    return ours.keys() == theirs.keys() and all(torch.equal(value, theirs[name]) for name, value in ours.items())


# what later tasks do to older ones


@pytest.mark.parametrize("fields", [OWN, {"own": {"share": 0.3}, "free": {"directions": 4}}], ids=["r", "share and f"])
@pytest.mark.parametrize("method", ["codec", "codec-full"])
@pytest.mark.parametrize("model", [perceptron, convolutional, normed])
def test_what_a_task_keeps_stays_and_the_body_changes_outside_of_it(model, method, fields):
    setup, after = states(model(), config(method=method, norms="own", **fields))
    assert all(kept.directions for kept in after[-1].kept[1:])
    assert not after[-1].kept[0].directions  # the first task had all of the space
    images = setup.tasks[0].prepare(setup.tasks[0].test[0])
    for number, state in enumerate(after):
        for task, kept in enumerate(state.kept):
            then = after[task]  # the state when it had just ended
            assert all(map(same, kept, then.kept[task]))
            before = outputs(setup, then.kept[task], then.parameters, images)
            assert torch.equal(outputs(setup, kept, then.parameters, images), before)
            models = kept.model(setup.roles.layers, state.parameters), kept.model(setup.roles.layers, then.parameters)
            for layer in setup.roles.layers:
                of_body = layer.join(state.parameters) - layer.join(then.parameters)
                of_model = layer.join(models[0]) - layer.join(models[1])
                torch.testing.assert_close(of_model, of_body, rtol=0, atol=1e-12)
                assert number == task or of_body.abs().max() > 1e-6
                for group in range(layer.groups):
                    own = kept.directions.get(f"{layer.name}/{group}", torch.zeros(layer.inputs, 0).double())
                    free = state.memory[f"{layer.name}/{group}"]
                    assert (free.mT @ own).norm() < 1e-10
                    assert (of_body[group] @ own).norm() < 1e-10


def test_old_outputs_do_not_move_at_all_when_the_threshold_is_one():
    """Own directions lie in the core, where nobody else learns, and what is learned in them stays out of the body."""
    settings = config(growth={"threshold": 1.0, "images": 6}, train={"lr": 0.2}, **OWN)
    setup, after = states(perceptron(), settings)
    for task in (0, 1):
        images = setup.tasks[task].sample(choose(settings.seed, task, 4), 6)
        kept = after[-1].kept[task]
        then, now = (outputs(setup, kept, state.parameters, images) for state in (after[task], after[-1]))
        torch.testing.assert_close(now, then, rtol=0, atol=1e-10)
    assert all(u.abs().max() > 1e-3 for u in after[-1].kept[1].coordinates.values())
    whole = kept.model(setup.roles.layers, after[-1].parameters)
    without = functional_call(setup.module, {**whole, **after[-1].parameters}, (images,))
    assert (without - now).abs().max() > 1e-3  # what it keeps for itself matters


def test_with_more_directions_of_its_own_a_task_fits_better():
    """It is what they are for: the loss that a task ends with, when the core is nearly everything."""
    module, ends = perceptron(), []
    for count in (0, 4, 16):
        common = {"growth": {"threshold": 0.999, "images": 12}, "free": {"directions": 0}, "train": {"lr": 0.2}}
        _, epochs = events(module, config(own={"directions": count}, **common), "epoch")
        ends.append(sum(epochs[-1].loss))
    assert ends[0] > ends[1] > ends[2]


# off is off


@pytest.mark.parametrize("method", ["codec", "codec-full", "dpsgd", "d-ewc", "stl"])
def test_the_defaults_choose_nothing_and_send_nothing_for_it(method):
    module = convolutional()
    setup, start = build(module, tasks(), config(method=method))
    seen = list(train(setup, start))
    assert {event.kind for event in seen} == {"task", "step", "epoch", "agree", "grow", "flood", "eval"}
    for event in seen:
        if event.kind == "flood":
            assert event.state.directions == {}
            assert all(kept.directions == kept.coordinates == {} for kept in event.state.kept)
            carried = {**event.state.parameters, **event.state.kept[-1].parameters}
            numbers = sum(value.numel() for value in (*carried.values(), *event.state.memory.values()))
            assert event.bytes == 3 * 8 * numbers  # weights, head and memory along three edges, and nothing else
        if event.kind == "task":
            assert event.own is event.trained is None
    zero = trajectory(module, tasks(), config(method=method, own={"directions": 0, "share": None}, norms="first"))
    plain = trajectory(module, tasks(), config(method=method))
    assert all(furthest(ours, theirs) == 0 for ours, theirs in zip(zero, plain, strict=True))


def test_all_of_the_free_directions_are_the_run_that_chooses_none():
    """A chosen basis of the same space is another basis of the same space."""
    module = convolutional()
    runs = [trajectory(module, tasks(), config(free={"directions": f})) for f in (None, 100)]
    assert max(furthest(ours, theirs) for ours, theirs in zip(*runs, strict=True)) < 1e-10


def test_what_is_free_and_what_is_trained_are_told_apart():
    fields = {"free": {"directions": 3, "first_task": True}, **OWN}
    for method in ("codec", "codec-full"):
        setup, opened = events(perceptron(), config(method=method, **fields), "task")
        inputs = {layer.name: layer.inputs for layer in setup.roles.layers}
        assert opened[0].free == inputs
        for task in opened:
            assert task.trained == dict.fromkeys(inputs, 3)


@pytest.mark.parametrize("subspace_from", ["one", "all"])
def test_what_is_flooded_and_summed_for_directions_is_counted(subspace_from):
    settings = config(growth={"subspace_from": subspace_from}, free={"directions": 3}, **OWN)
    setup, chosen = events(convolutional(), settings, "directions")
    _, opened = events(convolutional(), settings, "task")
    assert [event.task for event in chosen] == [1, 2]
    assert opened[0].own is opened[0].trained is None
    assert all(event.chosen == choose(settings.seed, event.task, 4) for event in chosen)
    layers = {layer.name: layer for layer in setup.roles.layers}
    for event, task in zip(chosen, opened[1:], strict=True):
        assert task.own.keys() == task.trained.keys() == layers.keys()
        assert task.own == {name: 2 * layer.groups for name, layer in layers.items()}
        down = sum(layers[name].inputs * (task.own[name] + task.trained[name]) for name in layers)
        sides = [layer.inputs for layer in layers.values() for _ in range(layer.groups)]
        up = sum(side * (side + 1) // 2 + 1 for side in sides) if subspace_from == "all" else 0
        assert event.bytes == 3 * 8 * (down + up)
        assert task.coordinates == 24 + sum(layers[n].outputs * (task.own[n] + task.trained[n]) for n in layers)


# what is recorded is what lies in the files


def numbers(path):
    return sum(value.numel() for value in load_file(path).values())


@pytest.mark.parametrize("statistics", ["batch", "task"])
@pytest.mark.parametrize("norms", ["first", "own"])
def test_the_numbers_that_are_recorded_are_those_of_the_files(norms, statistics, tmp_path):
    module = normed()
    common = {"growth": LOOK, "norms": norms, "own": {"directions": 3}, "dtype": "float64"}
    result = codecl.fit(
        module, tasks(), out=tmp_path, train={"epochs": 1, "batch_size": 4, "norm_statistics": statistics}, **common
    )
    files, found = result.folder / "model", result.metrics
    assert found["kept_by_task"] == [numbers(files / f"task-{task}.safetensors") for task in (1, 2, 3)]
    body, last = load_file(files / "body.safetensors"), load_file(files / "task-3.safetensors")
    again = {name for name in body if name in last}  # where the next task's norms start, not what all share
    assert again == ({"1.weight", "1.bias", "5.weight", "5.bias"} if norms == "own" else set())
    assert all(torch.equal(body[name], last[name]) for name in again)
    assert found["body"] == sum(value.numel() for name, value in body.items() if name not in again)
    model = sum(value.numel() for value in module.parameters())
    head, own_norms = 27, 24 if norms == "own" else 0
    assert found["body"] == model - head - own_norms
    task_events = [json.loads(line) for line in (result.folder / "events.jsonl").read_text().splitlines()]
    assert [event["kept"] for event in task_events if event["kind"] == "task"] == found["kept_by_task"]


@pytest.mark.parametrize("share", [0.15, 0.3, 0.6])
@pytest.mark.parametrize("model", [perceptron, convolutional, normed])
def test_a_task_keeps_at_most_its_share_of_the_body(model, share):
    _, opened = events(model(), config(own={"share": share}, norms="own"), "task")
    for task in opened[1:]:
        assert task.own
        assert task.kept <= share * task.body
        assert task.kept > opened[0].kept, "the first has none of its own"


def test_a_share_without_room_for_a_direction_is_refused_and_says_which_has():
    with pytest.raises(ConfigError, match=r"leaves no room .* are 0.125 of the body"):
        build(normed(), tasks(), config(own={"share": 0.124}, norms="own"))
    _, opened = events(normed(), config(own={"share": 0.125}, norms="own"), "task")
    assert all(task.own for task in opened[1:])


# norms


NORMS = ("1.weight", "1.bias", "5.weight", "5.bias")


@pytest.mark.parametrize("method", ["codec", "codec-full", "dpsgd", "d-ewc", "stl"])
def test_each_tasks_own_norms_start_from_those_before_and_then_stay(method):
    module, settings = normed(), config(method=method, norms="own")
    _, after = states(module, settings)
    for task, state in enumerate(after):
        for name in NORMS:
            values = [kept.parameters[name] for kept in state.kept]
            assert torch.equal(state.parameters[name], values[-1])
            assert all(torch.equal(value, after[old].kept[old].parameters[name]) for old, value in enumerate(values))
            assert task == 0 or not torch.equal(values[-1], values[-2]), "it trained"
    _, opened = events(module, settings, "task")
    for event, before in zip(opened[1:], after, strict=False):
        starts = event.agents.layout.parameters(event.agents.layout.start())
        assert all(torch.equal(starts[name], before.kept[-1].parameters[name]) for name in NORMS)


@pytest.mark.parametrize("method", ["codec", "codec-full", "dpsgd", "d-ewc", "stl"])
def test_norms_of_the_first_task_stay_for_all(method):
    setup, after = states(normed(), config(method=method))
    for state in after:
        assert all(torch.equal(state.parameters[name], after[0].parameters[name]) for name in NORMS)
        assert all(kept.parameters.keys() == set(setup.roles.head) for kept in state.kept)


@pytest.mark.parametrize("method", ["codec", "codec-full", "dpsgd", "d-ewc", "stl"])
def test_shared_norms_train_in_every_task_and_no_task_keeps_its_own(method):
    setup, after = states(normed(), config(method=method, norms="shared"))
    assert set(NORMS) <= set(setup.roles.dense)
    for before, state in pairwise(after):
        assert all(not torch.equal(state.parameters[name], before.parameters[name]) for name in NORMS)
        assert all(kept.parameters.keys() == set(setup.roles.head) for kept in state.kept)


def test_d_ewc_holds_shared_norms_like_weights():
    _, after = states(normed(), config(method="d-ewc", norms="shared"))
    assert set(NORMS) <= set(after[-1].memory)
