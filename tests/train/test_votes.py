"""Agents that vote on what one of them grew: liars are refused, honest ones are not, and nothing changes where nobody
lies."""

import pytest
import torch

from codecl import api
from codecl.errors import ConfigError, RunFailed
from codecl.report.progress import line
from codecl.runs.grid import preset, resolve
from codecl.runs.metrics import progress
from codecl.runs.reader import read_events
from codecl.seeding import succession
from codecl.train import liars

LIES = ["random", "outside", "nothing", "everything", "weights", "nan"]
LIAR = succession(1, 1, 8)[0]  # it grows in the second task


def trained(folder, tasks=2, epochs=2, **more):
    changes = {"agents": 8, "seed": 1, "topology": {"name": "torus"}, "data": {"tasks": tasks}}
    return api.run(resolve(preset("quickstart"), {**changes, "train": {"epochs": epochs}, **more}), out=folder)


def votes(result):
    found = [event for event in read_events(result.folder) if event.kind == "vote"]
    return [(event.task, event.chosen, event.stands, len(event.objections)) for event in found]


def lying(flood):
    return {"liar": LIAR, "lie": None, "flood": flood}


@pytest.mark.slow
@pytest.mark.parametrize("subspace_from", ["one", "all"])
def test_nothing_changes_where_nobody_lies(subspace_from, tmp_path):
    believed = trained(tmp_path, growth={"subspace_from": subspace_from})
    voted = trained(tmp_path, growth={"subspace_from": subspace_from, "robust": "vote"})
    assert voted.metrics["accuracy_matrix"] == believed.metrics["accuracy_matrix"]
    assert voted.metrics["traffic"] == believed.metrics["traffic"]
    assert votes(voted) == [(task, succession(1, task, 8)[0], True, 0) for task in range(2)]
    assert votes(believed) == []


@pytest.mark.slow
@pytest.mark.parametrize("flood", LIES)
def test_what_a_liar_grew_is_refused_and_the_next_grows(flood, tmp_path):
    result = trained(tmp_path, growth={"robust": "vote"}, faults=lying(flood))
    first, second = (succession(1, task, 8) for task in range(2))
    assert votes(result) == [(0, first[0], True, 1), (1, LIAR, False, 7), (1, second[1], True, 1)]
    recorded = read_events(result.folder)
    assert f"refused: {LIAR}" in line(progress(recorded, 2), "")
    floods = [event for event in recorded if event.kind == "flood"]
    assert [event.chosen for event in floods] == [first[0], second[1]]
    assert floods[1].messages == 2 * floods[0].messages  # what was refused was sent, and is counted


@pytest.mark.slow
@pytest.mark.parametrize("flood", ["random", "everything"])
def test_directions_of_a_task_are_voted_on_too(flood, tmp_path):
    own = {"own": {"directions": 4}, "free": {"directions": 16}}
    result = trained(tmp_path, growth={"robust": "vote"}, faults=lying(flood), **own)
    opened = [vote for vote in votes(result) if vote[0] == 1]
    assert [stands for _, _, stands, _ in opened] == [False, True, False, True]
    honest = trained(tmp_path, growth={"robust": "vote"}, **own)
    assert [(stands, objections) for _, _, stands, objections in votes(honest)] == [(True, 0)] * 3


@pytest.mark.slow
def test_the_method_that_sends_all_votes_too(tmp_path):
    result = trained(tmp_path, growth={"robust": "vote"}, faults=lying("outside"), method={"name": "codec-full"})
    assert [stands for _, _, stands, _ in votes(result)] == [True, False, True]


MALFORMED = {
    "nothing": lambda payload: {},
    "a name too many": lambda payload: {**payload, "weights/x": torch.ones(1)},
    "a basis too many": lambda payload: {**payload, "memory/x/0": torch.ones(1, 1)},
    "numbers for tensors": lambda payload: {name: value.sum() for name, value in payload.items()},
    "numbers for bases": lambda payload: {
        name: value if name.startswith("weights/") else value.sum() for name, value in payload.items()
    },
    "whole numbers": lambda payload: {name: value.long() for name, value in payload.items()},
    "whole numbers for bases": lambda payload: {
        name: value if name.startswith("weights/") else value.long() for name, value in payload.items()
    },
    "rows for columns": lambda payload: {
        name: value.mT.contiguous() if value.ndim == 2 else value for name, value in payload.items()
    },
}


SHORT = ("numbers for tensors", "whole numbers for bases")
FORMS = [form if form in SHORT else pytest.param(form, marks=pytest.mark.long) for form in MALFORMED]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_what_has_not_the_form_of_a_growth_or_a_choice_is_refused(form, tmp_path, monkeypatch):
    """Nothing that a member sends ends another one's run."""
    monkeypatch.setattr(liars, "false_flood", lambda setup, state, payload: MALFORMED[form](payload))
    monkeypatch.setattr(liars, "false_directions", lambda setup, payload: MALFORMED[form](payload))
    result = trained(tmp_path, epochs=1, growth={"robust": "vote"}, faults=lying("nan"), own={"directions": 2})
    assert [stands for task, _, stands, _ in votes(result) if task == 1] == [False, True, False, True]


def test_a_run_in_which_all_are_refused_ends_with_a_way_out(tmp_path):
    with pytest.raises(RunFailed, match=r"every agent that could grow is gone or was refused.*growth\.slack"):
        trained(tmp_path, 1, 1, growth={"robust": "vote"}, faults={**lying("nan"), "liar": (0, 1, 2, 3, 4)})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"agents": 2, "growth": {"robust": "vote"}}, "growth.robust: vote needs 3 agents or more, there are 2"),
        ({"method": {"name": "dpsgd"}, "growth": {"robust": "vote"}}, "growth.robust: dpsgd grows nothing"),
        ({"growth": {"slack": 1.0}}, "growth.slack"),
    ],
)
def test_what_cannot_be_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words.replace(".", r"\.")):
        resolve(preset("quickstart"), changes)


@pytest.mark.long
@pytest.mark.parametrize("flood", LIES)
def test_with_votes_a_liar_that_grows_costs_little(flood, tmp_path):
    honest = trained(tmp_path, 5, 15).metrics["acc"]
    voted = trained(tmp_path, 5, 15, growth={"robust": "vote"}, faults=lying(flood)).metrics["acc"]
    assert voted > honest - 3
