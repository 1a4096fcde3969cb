"""What goes wrong is noticed, named, and loses nothing."""

import pytest
import torch
from torch import nn

import codecl
from codecl.errors import ConfigError, RunFailed
from codecl.exchange import Simulated, digest
from codecl.runs.reader import read_events, read_metrics
from codecl.space import growth
from codecl.train.loop import train
from tests.problems import build, config, perceptron, tasks

SMALL = {"train": {"epochs": 2, "batch_size": 4, "lr": 0.1}, "dtype": "float64"}


class Damaging(Simulated):
    """Flips one bit of what is flooded, on the way."""

    def flood(self, root, payload, check=None):
        flood = super().flood(root, payload, check)
        name = sorted(flood.tensors)[0]
        flood.tensors[name] = flood.tensors[name].clone()
        flood.tensors[name].view(torch.uint8).view(-1)[3] ^= 1
        return flood


def test_a_damaged_flood_is_an_error_never_a_silent_decode():
    setup, state = build(perceptron(), tasks(), config())
    damaged = setup._replace(exchange=Damaging(setup.topology, torch.float64, torch.device("cpu")))
    with pytest.raises(RunFailed, match=r"task 1: the flood of agent \d arrived damaged"):
        list(train(damaged, state))


def test_digests_tell_tensors_apart():
    a = {"x": torch.zeros(2, 3), "y": torch.ones(2)}
    assert digest(a) == digest({"y": torch.ones(2), "x": torch.zeros(2, 3)})
    others = [{**a, "x": x} for x in (torch.zeros(3, 2), torch.zeros(2, 3).double(), -torch.zeros(2, 3))]
    for other in (*others, {"x": a["x"], "z": a["y"]}, {"x": a["x"]}):
        assert digest(other) != digest(a)
    assert digest({"x": torch.zeros(0)}) != digest({})


def test_a_loss_that_is_not_finite_names_task_step_and_agent_and_keeps_the_record(tmp_path):
    unbounded = nn.Sequential(nn.Flatten(), nn.Linear(72, 10), nn.ReLU(), nn.Linear(10, 3))
    stream = tasks()
    images, labels = stream[1].train
    huge = [stream[0], stream[1]._replace(train=(images * 1e200, labels)), stream[2]]
    with pytest.raises(RunFailed, match=r"task 2 \(t1\), step \d+, agent \d: the loss is (nan|inf); lower train.lr"):
        codecl.fit(unbounded, huge, out=tmp_path, method="dpsgd", **SMALL)
    (folder,) = (path.parent for path in tmp_path.rglob("metrics.json"))
    metrics = read_metrics(folder)
    assert metrics.status == "partial"
    assert len(metrics.accuracy_matrix) == 1
    assert (folder / "model" / "task-1.safetensors").is_file()
    assert [event.kind for event in read_events(folder)][-2:] == ["task", "end"]


class Greedy(nn.Flatten):
    """Needs more memory than there is, in the second task."""

    def forward(self, x):
        if Greedy.full:
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a lot. Process 1 ..."
            )
        return super().forward(x)


def test_a_device_without_memory_is_said_in_one_line_and_the_record_is_kept(tmp_path, monkeypatch):
    def opened(event):
        Greedy.full = (event.kind == "task" and event.task == 1) or Greedy.full

    monkeypatch.setattr(Greedy, "full", False, raising=False)
    with pytest.raises(RunFailed) as found:
        codecl.fit(nn.Sequential(Greedy(), nn.Linear(72, 3)), tasks(), out=tmp_path, on_event=opened, **SMALL)
    assert "cpu: out of memory (CUDA out of memory. Tried to allocate 20.00 MiB); use fewer" in str(found.value)
    (folder,) = (path.parent for path in tmp_path.rglob("metrics.json"))
    assert len(read_metrics(folder).accuracy_matrix) == 1


def test_the_step_that_is_named_is_the_first_bad_one():
    setup, state = build(perceptron(), tasks(1), config())
    bad = 0

    class Poisoned(type(setup.tasks[0])):
        def batch(self, indices):
            nonlocal bad
            images, labels = super().batch(indices)
            bad += 1
            if bad == 5:
                images[2] = torch.nan
            return images, labels

    setup.tasks[0].__class__ = Poisoned
    with pytest.raises(RunFailed, match=r"task 1 \(t0\), step 5, agent 2: the loss is nan"):
        list(train(setup, state))


def test_growth_on_inputs_that_are_not_finite_is_refused():
    free = {"fc": [torch.eye(3, dtype=torch.float64)]}
    bad = {"fc/0": (torch.full((3, 3), torch.nan, dtype=torch.float64), torch.tensor(1.0).double())}
    with pytest.raises(RunFailed, match="inputs of layer 'fc' are not finite"):
        growth.grow(free, bad, 0.9, torch.float64)


def test_a_folder_with_something_else_in_it_is_refused(tmp_path):
    module = perceptron()
    again = codecl.fit(module, tasks(2), out=tmp_path, **SMALL)
    path = again.folder / "config.yaml"
    path.write_text(path.read_text().replace("batch_size: 4", "batch_size: 5"))
    with pytest.raises(ConfigError, match=r"holds a run with another config \(train.batch_size: 5, 4\)"):
        codecl.fit(module, tasks(2), out=tmp_path, **SMALL)
    path.unlink()
    with pytest.raises(ConfigError, match="is not a run folder"):
        codecl.fit(module, tasks(2), out=tmp_path, **SMALL)
    assert (again.folder / "metrics.json").is_file()
