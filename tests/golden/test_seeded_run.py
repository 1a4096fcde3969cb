"""A small seeded run with committed numbers, changed only with a reason:  python -m tests.golden.test_seeded_run

The quickstart in float64, one epoch a task. Losses to 1e-8, accuracy to one image, bytes exactly: CPUs differ in the
last bits.
"""

import json
from pathlib import Path

import pytest

from codecl import api
from codecl.runs.grid import preset, resolve

FILE = Path(__file__).with_name("quickstart.json")
METHODS = {
    "codec": {"method": {"name": "codec"}},
    "codec from all": {"method": {"name": "codec"}, "growth": {"subspace_from": "all"}},
    "codec-full": {"method": {"name": "codec-full"}},
    "dpsgd on a torus, adapt-then-combine": {
        "method": {"name": "dpsgd"},
        "topology": {"name": "torus"},
        "agents": 6,
        "train": {"order": "adapt-then-combine"},
    },
    "d-ewc": {"method": {"name": "d-ewc", "penalty_step": "implicit"}},
}
ONE_IMAGE = 100 / 500


def numbers(name, out):
    """Losses of each epoch and agent, the accuracy matrix, free dimensions and bytes."""
    fields = {**METHODS[name], "dtype": "float64"}
    fields["train"] = {**fields.get("train", {}), "epochs": 1, "batch_size": 20}
    events = []
    result = api.run(resolve(preset("quickstart"), fields), out=out, device="cpu", on_event=events.append)
    found = result.metrics
    return {
        "losses": [event.loss for event in events if event.kind == "epoch"],
        "accuracy_matrix": found["accuracy_matrix"],
        "free_by_task": found["free_by_task"],
        "bytes": {key: found["traffic"][key] for key in ("train_bytes", "boundary_bytes", "full_bytes")},
    }


@pytest.mark.parametrize("name", METHODS)
def test_the_numbers_are_those_that_were_committed(name, tmp_path):
    expected, found = json.loads(FILE.read_text())[name], numbers(name, tmp_path)
    assert found["bytes"] == expected["bytes"]
    assert found["free_by_task"] == expected["free_by_task"]
    for ours, theirs in zip(found["losses"], expected["losses"], strict=True):
        assert ours == pytest.approx(theirs, rel=0, abs=1e-8)
    for ours, theirs in zip(found["accuracy_matrix"], expected["accuracy_matrix"], strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert (a is None and b is None) or abs(a - b) <= ONE_IMAGE + 1e-9


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        FILE.write_text(json.dumps({name: numbers(name, Path(folder)) for name in METHODS}, indent=1) + "\n")
