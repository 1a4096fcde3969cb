"""Metrics from events, by hand."""

import pytest
from torch import nn

from codecl.exchange import topology
from codecl.runs.metrics import acc, bwt, metrics
from codecl.runs.schema import Labels
from codecl.train.events import Flooded, Grown, Recorded, TaskOpened, of_type
from codecl.train.loop import train
from tests.problems import build, config, convolutional, perceptron, tasks

LABELS = Labels(benchmark="b", method="m", agents=2, topology="ring", seed=0, tasks=3)


def test_acc_and_bwt_as_the_paper_defines_them():
    rows = [[90.0], [80.0, 70.0], [85.0, 60.0, 50.0]]
    assert acc(rows) == pytest.approx((85 + 60 + 50) / 3)
    assert bwt(rows) == pytest.approx(((85 - 90) + (60 - 70)) / 2)
    assert acc(rows, each_task_alone=True) == pytest.approx((90 + 70 + 50) / 3)
    assert (acc([]), bwt(rows[:1])) == (None, None)


def events_of(module, stream, settings):
    events = train(*build(module, stream, settings))
    return [event.stamped() for event in events if isinstance(event, Recorded)]


@pytest.mark.parametrize(("graph", "agents", "edges"), [("ring", 4, 4), ("torus", 6, 18), ("complete", 3, 6)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bytes_by_hand(graph, agents, edges, dtype):
    """Every directed edge once a round, from the size of what leaves; the flood N - 1 times along the tree."""
    settings = config(agents=agents, topology=graph, dtype=dtype)
    events = events_of(perceptron(), tasks(), settings)
    rounds = topology.build(settings.topology, agents, settings.seed).agree_rounds
    out = metrics(events, LABELS, "complete", 1.0)
    item = {"float32": 4, "float64": 8}[dtype]
    whole = 10 * 73 + 8 * 11 + 3 * 9  # two layers and the live head, biases included
    steps = 2 * (48 // agents // 4)
    sent = full = boundary = 0
    frees = [*out.free_by_task, None]
    assert frees[0] == {"1": 73, "3": 11}
    grown = of_type(events, Flooded)
    for task, free in enumerate(frees[:3]):
        coords = 10 * free["1"] + 8 * free["3"] + 27
        sent += steps * edges * coords * item
        full += (steps + rounds) * edges * whole * item
        boundary += rounds * edges * coords * item
        after = frees[task + 1]
        if after:
            basis = 73 * after["1"] + 11 * after["3"]
            assert grown[task].bytes == (agents - 1) * (whole + basis) * item
        boundary += grown[task].bytes
    traffic = out.traffic
    assert (traffic.train_bytes, traffic.boundary_bytes, traffic.full_bytes) == (sent, boundary, full)
    assert traffic.cc == pytest.approx(full / (sent + boundary))
    heads = 3 * 27  # the authors count every head in every message
    body = [10 * free["1"] + 8 * free["3"] for free in frees[:3]]
    assert traffic.cc_reference == pytest.approx(3 * (whole - 27 + heads) / sum(b + heads for b in body))
    assert traffic.cc_reference_by_task == pytest.approx([(whole - 27 + heads) / (b + heads) for b in body])
    assert traffic.cc_by_task == pytest.approx([whole / (b + 27) for b in body])
    assert frees[2]["1"] < frees[1]["1"] < 73


def test_what_is_pooled_is_counted():
    """`all`: each agent but the chosen one sends one packed triangle and one energy a layer and group, in float64."""
    grow = of_type(events_of(convolutional(), tasks(2), config(growth={"subspace_from": "all"})), Grown)
    sides = [19, 19, 19, 55]  # 2·9+1; two groups of 2·9+1; 54+1
    assert grow[0].bytes == 3 * 8 * sum(n * (n + 1) // 2 + 1 for n in sides)
    assert 0 < grow[1].bytes < grow[0].bytes


def test_norms_and_all_heads_are_in_the_reference_accounting():
    module = nn.Sequential(nn.Flatten(), nn.Linear(72, 5, bias=False), nn.BatchNorm1d(5), nn.Linear(5, 3))
    opened = of_type(events_of(module, tasks(2), config()), TaskOpened)
    body, head, norm = 360, 18, 10
    assert [event.full for event in opened] == [body + head + norm, body + head]  # norms train in the first task
    assert [event.full + event.reference_extra for event in opened] == [body + 2 * head + norm] * 2


def test_one_agent_alone_sends_nothing():
    events = events_of(perceptron(), tasks(2), config(agents=1))
    out = metrics(events, LABELS.model_copy(update={"tasks": 2}), "complete", 1.0)
    assert out.traffic.cc is None
    assert out.traffic.train_bytes == out.traffic.boundary_bytes == 0
    assert out.consensus_error_by_task == [0, 0]
    assert out.acc > 50


def test_the_shape_of_metrics():
    events = events_of(perceptron(), tasks(), config())
    out = metrics(events, LABELS, "complete", 2.0)
    assert out.dump()["schema"] == 2
    assert [row.count(None) for row in out.accuracy_matrix] == [2, 1, 0]
    assert out.timing.iterations == 18
    assert len(out.consensus_error_by_task) == len(out.free_by_task) == 3
    assert all(error > 0 for error in out.consensus_error_by_task)
    partial = metrics(events[:5], LABELS, "partial", 2.0)
    assert partial.status == "partial"
    assert partial.accuracy_matrix == []
    assert partial.acc is None
