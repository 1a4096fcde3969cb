"""A fleet with a liar, trained: clipped, it learns as well as without."""

import pytest

from codecl import api
from codecl.runs.grid import preset, resolve
from codecl.runs.reader import read_events

LIES = ["noise", "sign-flip", "huge", "constant", "echo", "nan"]


def trained(folder, tasks, epochs, **more):
    changes = {"agents": 8, "seed": 1, "topology": {"name": "torus"}, "data": {"tasks": tasks}}
    return api.run(resolve(preset("quickstart"), {**changes, "train": {"epochs": epochs}, **more}), out=folder)


@pytest.mark.slow
@pytest.mark.parametrize("lie", ["echo"])
def test_one_liar_of_eight_costs_little(lie, tmp_path):
    honest = trained(tmp_path, 2, 5)
    clipped = trained(tmp_path, 2, 5, faults={"liar": 2, "lie": lie}, message={"robust": "clip"})
    believed = trained(tmp_path, 2, 5, faults={"liar": 2, "lie": lie})
    scores = [result.metrics["acc"] for result in (honest, clipped, believed)]
    assert scores[1] > scores[0] - 5 > scores[2] + 10, scores
    epochs = [event for event in read_events(clipped.folder) if event.kind == "epoch"]
    assert epochs[-1].clipped > 100
    assert epochs[-1].refused == 0


@pytest.mark.long
@pytest.mark.parametrize("lie", LIES)
def test_one_liar_of_each_kind(lie, tmp_path):
    honest = trained(tmp_path, 5, 15).metrics["acc"]
    clipped = trained(tmp_path, 5, 15, faults={"liar": 2, "lie": lie}, message={"robust": "clip"}).metrics["acc"]
    assert clipped > honest - 3
