"""The package against the literal transcription of the paper's algorithms, step by step, over three tasks."""

import copy

import pytest

from codecl.train.loop import train
from tests.golden.transcription import algorithm_1, algorithm_2
from tests.problems import build, config, convolutional, furthest, perceptron, tasks

MODELS = {"mlp with bias": perceptron, "convolutions with padding, bias, groups": convolutional}
GRAPHS = {"ring": 4, "torus": 6}


def compare(setup, state, literal):
    """(largest difference of weights, of losses, number of steps)."""
    layout, weights, losses, steps = None, 0.0, 0.0, 0
    for event in train(setup, state):
        if event.kind == "task":
            layout = event.agents.layout
        if event.kind == "step":
            theirs, x = next(literal)
            weights = max(weights, furthest([layout.parameters(row) for row in event.coords_AD], x))
            losses = max(losses, *(abs(a - b) for a, b in zip(event.loss_A.tolist(), theirs, strict=True)))
            steps += 1
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


def test_the_comparison_can_fail():
    """A wrong threshold in one of the two shows."""
    module = perceptron()
    setup, state = build(module, tasks(), config())
    other, _ = build(module, tasks(), config(growth={"threshold": 0.6}))
    weights, _, _ = compare(setup, state, algorithm_1(other, copy.deepcopy(module)))
    assert weights > 1e-4
