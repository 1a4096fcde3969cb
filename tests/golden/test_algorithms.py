"""The package against the literal transcription of the paper's algorithms, step by step, over three tasks."""

import copy

import pytest

from codecl.train.loop import train
from tests.golden.transcription import algorithm_1, algorithm_2
from tests.problems import build, config, convolutional, furthest, normed, perceptron, tasks

MODELS = {"mlp with bias": perceptron, "convolutions with padding, bias, groups": convolutional}
GRAPHS = {"ring": 4, "torus": 6}


def compare(setup, state, literal, after_task=lambda state: None):
    """(largest difference of weights, of losses, number of steps). `after_task` gets the package's states."""
    layout, weights, losses, steps = None, 0.0, 0.0, 0
    for event in train(setup, state):
        if event.kind == "task":
            layout = event.agents.layout
        if event.kind == "step":
            theirs, x = next(literal)
            weights = max(weights, furthest([layout.parameters(row) for row in event.coords_AD], x))
            losses = max(losses, *(abs(a - b) for a, b in zip(event.loss_A.tolist(), theirs, strict=True)))
            steps += 1
        if event.kind == "flood":
            after_task(event.state)
    assert next(literal, None) is None, "the transcription took more steps"
    return weights, losses, steps


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("execution", ["stacked", "loop"])
def test_codec_is_algorithm_1(model, graph, execution):
    settings = config(agents=GRAPHS[graph], topology=graph, train={"execution": execution})
    module = MODELS[model]()
    setup, state = build(module, tasks(), settings)
    weights, losses, steps = compare(setup, state, algorithm_1(setup, copy.deepcopy(module)))
    assert steps == 3 * 2 * (48 // GRAPHS[graph] // 4)
    assert weights < 1e-10
    assert losses < 1e-10


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("clip", [1e6, 0.5])
def test_d_ewc_is_algorithm_2(model, graph, clip):
    settings = config(agents=GRAPHS[graph], topology=graph, method={"name": "d-ewc", "penalty": 2.0, "clip": clip})
    module = MODELS[model]()
    setup, state = build(module, tasks(), settings)
    weights, losses, _ = compare(setup, state, algorithm_2(setup, copy.deepcopy(module)))
    assert weights < 1e-10
    assert losses < 1e-10


EXTENSIONS = {
    "own": {"own": {"directions": 2}},
    "more than the core has": {"own": {"directions": 6}},
    "the best free": {"free": {"directions": 4}},
    "from the first task": {"free": {"directions": 6, "first_task": True}},
    "own and the best free": {"own": {"directions": 3}, "free": {"directions": 3}},
    "own alone": {"own": {"directions": 2}, "free": {"directions": 0}},
}


def assert_follows(settings, module):
    """Step by step, and in the models of all tasks after each of them."""
    setup, state = build(module, tasks(), settings)
    states, models = [], []
    weights, losses, _ = compare(setup, state, algorithm_1(setup, copy.deepcopy(module), models), states.append)
    assert weights < 1e-10
    assert losses < 1e-10
    assert [len(each) for each in models] == [1, 2, 3]
    for after, theirs in zip(states, models, strict=True):
        ours = [kept.model(setup.roles.layers, after.parameters) for kept in after.kept]
        assert furthest(ours, theirs) < 1e-10


@pytest.mark.parametrize("model", [perceptron, convolutional])
@pytest.mark.parametrize("which", EXTENSIONS)
def test_own_and_free_directions_are_the_transcription(model, which):
    assert_follows(config(**EXTENSIONS[which]), model())


@pytest.mark.parametrize("norms", ["first", "own"])
@pytest.mark.parametrize("which", [{}, EXTENSIONS["own and the best free"]], ids=["the paper's", "with directions"])
def test_own_norms_are_the_transcription(which, norms):
    assert_follows(config(norms=norms, **which), normed())


def test_the_comparison_can_fail():
    """A wrong threshold in one of the two shows."""
    module = perceptron()
    setup, state = build(module, tasks(), config())
    other, _ = build(module, tasks(), config(growth={"threshold": 0.6}))
    weights, _, _ = compare(setup, state, algorithm_1(other, copy.deepcopy(module)))
    assert weights > 1e-4


@pytest.mark.parametrize(
    "wrong", [{"own": {"directions": 3}}, {"free": {"directions": 5}}, {"norms": "first"}, {"seed": 4}], ids=str
)
def test_a_direction_too_many_shows(wrong):
    module, right = normed(), {"own": {"directions": 2}, "free": {"directions": 4}, "norms": "own"}
    setup, state = build(module, tasks(2), config(**right))
    other, _ = build(module, tasks(2), config(**{**right, **wrong}))
    weights, _, _ = compare(setup, state, algorithm_1(other, copy.deepcopy(module)))
    assert weights > 1e-4
