"""A fleet goes on, ends, and tells the truth, whatever happens to one of its agents or links."""

from functools import cache

import pytest
from safetensors.torch import load_file

from codecl import api, exchange
from tests.faults.peers import EPOCHS, FAULTS, VICTIM, config, outcome, row
from tests.fleets import LocalFleet

pytest.importorskip("grpc")

TOLD = {  # what the record has to say
    "killed": {"lost", "dead", "linked"},
    "restarted": {"lost", "dead", "alive", "joined"},
    "stopped": {"lost", "dead", "alive", "joined"},
    "cut": {"lost", "back"},
    "delayed": {"lost", "back"},
    "chosen": {"dead", "gone"},
    "split": {"lost", "dead", "alive", "discarded", "joined"},
}
IN_SHORT = [("killed", "ring")]  # the others take minutes: `make long`
EVERY = [(name, topology) for name in TOLD for topology in ("ring", "torus") if (name, topology) not in IN_SHORT]


@cache
def undisturbed(topology: str, tasks: int, epochs: int, folder) -> float:
    """Of a simulated run: a fleet that misses nobody follows it."""
    return api.run(config(topology, tasks, epochs), out=folder, device="cpu").metrics["acc"]


def check(name: str, topology: str, tasks: int, tmp_path, tmp_path_factory) -> None:
    found = outcome(name, topology, tmp_path, tasks=tasks)
    print(row(name, topology, found))
    said = found.logs
    assert set(found.codes.values()) <= {0, 4}, said
    assert {one["status"] for one in found.metrics.values()} == {"degraded"}
    assert len(found.codes) == (7 if name in ("killed", "chosen") else 8)
    states = {note["state"] for notes in found.states.values() for note in notes}
    assert states >= TOLD[name], states
    expected = undisturbed(topology, tasks, FAULTS[name].epochs, tmp_path_factory.getbasetemp() / "undisturbed")
    for one in found.metrics.values():
        assert one["acc"] > expected - (10 if name == "split" else 3), (expected, one["acc"])
    models = {exchange.digest(load_file(folder / "model" / "body.safetensors")) for folder in found.folders.values()}
    assert len(models) == 1  # all hold the same model
    assert not any("Traceback" in log for log in said.values()), said


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize(("name", "topology"), IN_SHORT)
def test_a_fleet_survives(name, topology, tmp_path, tmp_path_factory):
    check(name, topology, 2, tmp_path, tmp_path_factory)


@pytest.mark.long
@pytest.mark.parametrize(("name", "topology"), [*EVERY, *IN_SHORT])
def test_a_fleet_survives_at_length(name, topology, tmp_path, tmp_path_factory):
    check(name, topology, 3, tmp_path, tmp_path_factory)


@pytest.mark.long
@pytest.mark.parametrize("topology", ["ring", "torus"])
def test_what_is_not_disturbed_is_complete(topology, tmp_path, tmp_path_factory):
    found = outcome("none", topology, tmp_path)
    assert set(found.codes.values()) == {0}
    assert [one["missed"] for one in found.metrics.values()] == [0] * 8
    expected = undisturbed(topology, 3, EPOCHS, tmp_path_factory.getbasetemp() / "undisturbed")
    assert [one["acc"] for one in found.metrics.values()] == [pytest.approx(expected, abs=1)] * 8


def test_every_fault_is_expected_somewhere():
    assert {*TOLD, "none"} == set(FAULTS)
    assert 0 <= VICTIM < 8
    assert LocalFleet.command[-1] == "agent"
