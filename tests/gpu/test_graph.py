"""On a GPU: a captured step equals the plain one, nothing in an epoch waits for the device, and a run resumes."""

import warnings

import pytest
import torch
from torch import nn

from codecl.data.task import Task
from codecl.models import alexnet, resnet18
from codecl.runs.build import build_setup, task_data
from codecl.train import loop as module_under_test
from codecl.train.cuda_graph import Plain
from codecl.train.loop import open_task, train
from tests.faults.test_resume import numbers, stopped_at
from tests.faults.victim import run as fit
from tests.problems import config, convolutional, perceptron, tasks

if not torch.cuda.is_available():
    pytest.skip("these tests need a GPU", allow_module_level=True)
GPU, CPU = torch.device("cuda"), torch.device("cpu")


def images(count=2, shape=(3, 32, 32)):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(160) % 4
    pixels = torch.randint(256, (count, 160, *shape), generator=generator, dtype=torch.uint8)
    return [Task((some, labels), (some[:40], labels[:40]), 4, mean=(0.5,), std=(0.25,)) for some in pixels]


def run(module, stream, settings, device=GPU, execution="stacked"):
    """(all parameters of all agents after each epoch, losses, bytes), with the dropout of one seed."""
    setup, state = build_setup(settings, task_data(settings, stream, device), device, module)
    torch.manual_seed(5)
    found, losses, sent = [], [], []
    for event in train(setup._replace(execution=execution), state):
        if event.kind == "task":
            layout = event.agents.layout
        elif event.kind == "step":
            last = event.coords_AD
        elif event.kind == "epoch":  # coordinates depend on the basis, which is known up to turns
            found.append([layout.parameters(row) for row in last.clone()])
            losses.append(event.loss)
            sent.append((event.bytes, event.messages))
    return found, losses, sent


def furthest(ours, theirs):
    pairs = [(a, b) for one, other in zip(ours[0], theirs[0], strict=True) for a, b in zip(one, other, strict=True)]
    return max(float((a[name].cpu() - b[name].cpu()).abs().max()) for a, b in pairs for name in a)


def plainly(monkeypatch):
    monkeypatch.setattr(module_under_test, "epochs", lambda step, *_: Plain(step))


@pytest.mark.parametrize("execution", ["stacked", "streams"])
@pytest.mark.parametrize("method", ["codec", "codec-full", "dpsgd", "d-ewc"])
def test_a_captured_step_equals_the_plain_one(method, execution, monkeypatch):
    """Dropout, augmentation, traffic and all."""
    module = alexnet((3, 32, 32), 4)
    settings = config(
        method=method,
        dtype="float64",
        train={"batch_size": 8, "epochs": 2},
        data={"stream": "own", "augment": "crop-flip"},
    )
    ours = run(module, images(), settings, execution=execution)
    plainly(monkeypatch)
    plain = run(module, images(), settings, execution=execution)
    assert furthest(ours, plain) < 1e-9
    assert ours[2] == plain[2]


OWN = {"own": {"directions": 3}, "free": {"directions": 5}, "norms": "own"}


def test_a_captured_step_in_own_directions_equals_the_plain_one(monkeypatch):
    module = alexnet((3, 32, 32), 4)
    settings = config(dtype="float64", train={"batch_size": 8, "epochs": 2, "momentum": 0.9, "lr": 0.01}, **OWN)
    ours = run(module, images(3), settings)
    plainly(monkeypatch)
    assert furthest(ours, run(module, images(3), settings)) < 1e-9


@pytest.mark.parametrize("dtype", ["float32", "float64"])  # with kernels, and without
@pytest.mark.parametrize("message", [{"bits": 8}, {"bits": 3}, {"bits": 4, "keep": 0.5}, {"bits": "bfloat16"}])
def test_a_captured_step_in_few_bits_equals_the_plain_one(message, dtype, monkeypatch, recwarn):
    """A small net: where a large one differs in the last digit, a number is rounded the other way."""
    settings = config(dtype=dtype, train={"momentum": 0.5, "precision": "highest"}, message=message)
    module = perceptron()
    ours = run(module, tasks(), settings)
    assert not [warning for warning in recwarn if "captured" in str(warning.message)]
    plainly(monkeypatch)
    assert furthest(ours, run(module, tasks(), settings)) < 1e-9


@pytest.mark.parametrize("lie", ["noise", "sign-flip", "echo", "nan"])
@pytest.mark.parametrize("robust", ["none", "clip"])
def test_a_captured_step_with_a_liar_equals_the_plain_one(robust, lie, monkeypatch, recwarn):
    more = {"topology": {"name": "complete"}, "faults": {"liar": 1, "lie": lie}}
    settings, module = config(message={"robust": robust}, **more), perceptron()
    ours = run(module, tasks(), settings)
    assert not [warning for warning in recwarn if "captured" in str(warning.message)]
    plainly(monkeypatch)
    assert furthest(ours, run(module, tasks(), settings)) < 1e-9


def test_own_directions_of_a_gpu_are_those_of_a_cpu():
    module = convolutional()
    ours, theirs = (run(module, tasks(), config(**OWN | {"norms": "first"}), device) for device in (GPU, CPU))
    assert furthest(ours, theirs) < 1e-9


def test_a_captured_step_with_kernels_equals_the_plain_one(monkeypatch):
    """The way that a user gets: float32, kernels, weights built beside, dropout."""
    module = alexnet((3, 32, 32), 4)
    settings = config(dtype="float32", train={"batch_size": 8, "epochs": 1, "precision": "highest", "lr": 0.01})
    ours = run(module, images(), settings)
    plainly(monkeypatch)
    assert furthest(ours, run(module, images(), settings)) < 1e-4


@pytest.mark.parametrize("execution", ["stacked", "streams", "loop"])
@pytest.mark.parametrize("model", [perceptron, convolutional])
@pytest.mark.parametrize("method", ["codec", "d-ewc"])
def test_a_gpu_equals_a_cpu(model, method, execution):
    module = model()
    here = run(module, tasks(), config(method=method), CPU, execution)
    there = run(module, tasks(), config(method=method), GPU, execution)
    assert furthest(here, there) < 1e-9


@pytest.mark.parametrize("precision", ["highest", "tf32", "bf16"])
@pytest.mark.parametrize("model", [alexnet, resnet18])
def test_kernels_are_as_exact_as_pytorchs_own_layers(model, precision):
    """Against a loop in float64: stacked agents, kernels included, are no further off than cuDNN at its rounding."""
    module = model((3, 32, 32), 4, **({"dropout": (0,) * 5} if model is alexnet else {}))
    found = {}
    for dtype, how, kind in (
        ("float64", "loop", "highest"),
        ("float32", "loop", precision),
        ("float32", "stacked", precision),
    ):
        settings = config(dtype=dtype, train={"batch_size": 16, "precision": kind})
        setup, state = build_setup(settings, task_data(settings, images(1), GPU), GPU, module)
        agents = open_task(setup._replace(execution=how), state, setup.tasks[0])
        batch = setup.tasks[0].batch(setup.tasks[0].indices(0, range(4), 16)[0][0].to(GPU))
        found[dtype, how] = agents.gradient(agents.layout.start().repeat(4, 1), *batch)[1]
    exact = found["float64", "loop"]
    own, ours = (  # the median agent: a ReLU at its kink may turn over in one of them
        float(((found["float32", how] - exact).norm(dim=1) / exact.norm(dim=1)).median()) for how in ("loop", "stacked")
    )
    least = {"highest": 1e-5, "tf32": 0.1, "bf16": 0.2}[precision]  # cuDNN need not round where it may
    assert ours < max(2 * own, least)


@pytest.mark.parametrize("execution", ["stacked", "streams"])
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_nothing_in_an_epoch_waits_for_the_device(execution):
    settings = config(
        dtype="float32", train={"batch_size": 8, "epochs": 3}, data={"stream": "own", "augment": "crop-flip"}
    )
    setup, state = build_setup(settings, task_data(settings, images(1), GPU), GPU, alexnet((3, 32, 32), 4))
    steps = 0
    try:
        for event in train(setup._replace(execution=execution), state):
            steps += event.kind == "step"
            torch.cuda.set_sync_debug_mode("error" if event.kind == "step" and steps % 5 else "default")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert steps == 15


class Branching(nn.Module):
    """Looks at its values: it can be neither stacked nor captured."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(72, 5), nn.Linear(5, 3)

    def forward(self, x):
        x = self.body(x.flatten(1))
        return self.head(x if x.sum() > 0 else -x)


def test_what_cannot_be_captured_runs_step_by_step():
    module = Branching()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = run(module, tasks(1), config())
    assert ["cannot be stacked" in str(caught[0].message), "cannot be captured" in str(caught[1].message)] == [
        True,
        True,
    ]
    assert len(caught) == 2
    assert furthest(ours, run(module, tasks(1), config(), CPU, "loop")) < 1e-9


def test_many_agents_share_streams():
    settings = config(agents=40, train={"batch_size": 4, "epochs": 1})
    module = convolutional()
    ours, loop = (run(module, tasks(1, images=160), settings, execution=how) for how in ("streams", "loop"))
    assert furthest(ours, loop) < 1e-9


def test_a_model_whose_norms_are_its_own_is_stacked_without_kernels():
    """Some of PyTorch's layers cannot take, under vmap, how the kernels lay out their maps."""
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False), nn.ReLU(), nn.Flatten(), nn.Linear(3600, 4)
    )
    settings = config(dtype="float32", train={"batch_size": 8, "epochs": 1, "precision": "highest", "lr": 0.01})
    ours, loop = (run(module, images(1), settings, execution=how) for how in ("stacked", "loop"))
    assert furthest(ours, loop) < 1e-4


@pytest.mark.parametrize("moment", [5, 17, 40])
def test_a_stopped_run_goes_on_with_its_generator(moment, tmp_path):
    """As close as two runs of a GPU are: sums may be taken in another order."""
    whole = numbers(fit(tmp_path / "whole").folder)
    stopped_at(moment, tmp_path / "parts")
    ours = numbers(fit(tmp_path / "parts").folder)
    assert [event["kind"] for event in ours[1]] == [event["kind"] for event in whole[1]]
    for file, tensors in ours[2].items():
        for name, value in tensors.items():
            torch.testing.assert_close(value, whole[2][file][name], rtol=1e-3, atol=1e-3)


def test_a_captured_step_of_adamw_equals_the_plain_one(monkeypatch, recwarn):
    """Its count of steps is a tensor too. In one task: the basis of the next is known up to turns, and Adam is not."""
    more = {"optimizer": "adamw", "lr": 0.001, "weight_decay": 0.1, "clip_norm": 1.0}
    settings = config(dtype="float64", train={"batch_size": 8, "epochs": 2, **more})
    module = alexnet((3, 32, 32), 4)
    ours = run(module, images(1), settings)
    assert not [warning for warning in recwarn if "captured" in str(warning.message)]
    plainly(monkeypatch)
    assert furthest(ours, run(module, images(1), settings)) < 1e-9
