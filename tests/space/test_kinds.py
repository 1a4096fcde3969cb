"""Every kind of layer that multiplies by a weight: what codec trains is what codec-full trains, what was seen is not
forgotten, and stacked agents are agents one after another."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

from codecl.data.task import Task
from codecl.space.calling import call
from codecl.train.loop import train
from tests.problems import build, config, furthest

EVERYTHING = {"threshold": 1.0, "increment": 0.0, "images": 24, "subspace_from": "all"}
CLOSE = 1e-9


def stream(make, count=3, images=24):
    """Tasks of two classes with one input each: few directions are seen, many stay free."""
    out = []
    for number in range(count):
        generator = torch.Generator().manual_seed(number)
        labels = torch.arange(images) % 2
        inputs = torch.stack([make(generator, number), make(generator, number)])[labels]
        out.append(Task((inputs, labels), (inputs, labels), 2, f"t{number}"))
    return out


def even(*shape):
    """Images that have one colour: a convolution sees one patch everywhere."""

    def make(generator, _):
        colour = torch.randn(shape[0], generator=generator, dtype=torch.float64)
        return colour.view(-1, *[1] * (len(shape) - 1)).expand(shape).clone()

    return make


def normal(*shape):
    return lambda generator, _: torch.randn(shape, generator=generator, dtype=torch.float64)


def run(module, tasks, **fields):
    """(parameters of all agents after each step, states after each task, the setup, how agents shared the device)."""
    setup, state = build(module, tasks, config(growth=EVERYTHING, **fields))
    layout, steps, states, execution = None, [], [], ""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "agents run one after another")
        for event in train(setup, state):
            if event.kind == "task":
                layout, agents = event.agents.layout, event.agents
            if event.kind == "step":
                steps.append([layout.parameters(row) for row in event.coords_AD.clone()])
                execution = agents.execution
            if event.kind == "flood":
                states.append(event.state)
    return steps, states, setup, execution


def apart(one, other):
    return max(furthest(a, b) for a, b in zip(one, other, strict=True))


def check(module, make, layers, stacked=True):
    """The laws of this file, for a module whose layers have these names."""
    tasks = stream(make)
    steps, states, setup, execution = run(module, tasks)
    assert [layer.name for layer in setup.roles.layers] == layers
    assert execution == ("stacked" if stacked else "loop")
    assert apart(steps, run(module, tasks, method="codec-full")[0]) < CLOSE
    assert apart(steps, run(module, tasks, train={"execution": "loop"})[0]) < CLOSE
    for layer in setup.roles.layers:  # each has learned something in every task
        before, after = states[0].parameters[layer.weight], states[-1].parameters[layer.weight]
        assert float((before - after).abs().max()) > 1e-6, layer.name
    last = states[-1]
    module = setup.module.eval()
    for number, (state, task) in enumerate(zip(states, setup.tasks, strict=True)):
        images = task.prepare(task.train[0])
        then, now = (
            call(module, state.kept[number].model(setup.roles.layers, state.parameters), images)
            for state in (state, last)
        )
        torch.testing.assert_close(now, then, rtol=0, atol=CLOSE)


def sequential(*parts):
    torch.manual_seed(0)
    return nn.Sequential(*parts)


CONVOLUTIONS = {
    "conv3d": (
        lambda: nn.Conv3d(8, 6, 2, stride=(1, 2, 1), dilation=(1, 1, 2), groups=2),
        (8, 3, 4, 5),
        6 * 2 * 2 * 3,
    ),
    "transposed 1d": (lambda: nn.ConvTranspose1d(8, 6, 3, stride=2, padding=1, output_padding=1), (8, 3), 6 * 6),
    "transposed 2d": (
        lambda: nn.ConvTranspose2d(8, 6, (2, 3), stride=2, groups=2, dilation=(1, 2), bias=False),
        (8, 2, 2),
        6 * 4 * 7,
    ),
    "transposed 2d of size 1": (lambda: nn.ConvTranspose2d(8, 6, 1), (8, 2, 2), 24),
    "transposed 3d": (lambda: nn.ConvTranspose3d(8, 4, 2), (8, 2, 2, 2), 4 * 27),
}


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_convolutions(kind):
    make, shape, width = CONVOLUTIONS[kind]
    check(sequential(make(), nn.Tanh(), nn.Flatten(), nn.Linear(width, 2)), even(*shape), ["0"])


class Multiplying(nn.Module):
    """A weight of one's own, in any way that PyTorch multiplies by it."""

    def __init__(self, shape, how, width=5, bias=0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w, self.how = nn.Parameter(0.3 * torch.randn(shape)), how
        self.b = nn.Parameter(torch.zeros(bias)) if bias else None
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.how(x, self.w) if self.b is None else self.how(x, self.w, self.b)).flatten(1))


PRODUCTS = {  # by the shape of the weight, of an input and what comes out
    "x @ w": ((9, 5), (9,), 5, lambda x, w: x @ w),
    "x @ w.t()": ((5, 9), (9,), 5, lambda x, w: x @ w.t()),
    "x @ w.T": ((5, 9), (9,), 5, lambda x, w: x @ w.T),
    "w @ x": ((5, 9), (9, 2), 10, lambda x, w: w @ x),
    "w.mT @ x": ((9, 5), (9, 2), 10, lambda x, w: torch.matmul(w.mT, x)),
    "linear of a transposed view": ((9, 5), (9,), 5, lambda x, w: functional.linear(x, w.transpose(0, 1))),
    "mm": ((9, 5), (9,), 5, lambda x, w: torch.mm(x, w)),
    "a vector": ((9,), (4, 9), 4, lambda x, w: x @ w),
    "bmm": ((2, 9, 5), (2, 9), 10, lambda x, w: torch.bmm(x.transpose(0, 1), w).transpose(0, 1)),
    "bmm of a weight repeated": ((9, 5), (2, 9), 10, lambda x, w: torch.bmm(x, w.expand(len(x), 9, 5))),
    "baddbmm": (
        (2, 9, 5),
        (2, 9),
        10,
        lambda x, w: torch.baddbmm(x.new_zeros(1), x.transpose(0, 1), w).transpose(0, 1),
    ),
    "batched matmul": ((2, 5, 9), (2, 1, 9), 10, lambda x, w: x @ w.mT),
    "einsum of heads": ((9, 2, 5), (3, 9), 30, lambda x, w: torch.einsum("btd,dhk->bthk", x, w)),
    "einsum by groups": ((2, 9, 5), (2, 9), 10, lambda x, w: torch.einsum("bgi,gio->bgo", x, w)),
    "einsum that joins": ((5, 3, 9), (3, 9), 5, lambda x, w: torch.einsum("o h d, ...hd -> ...o", w, x)),
    "einsum without an arrow": ((9, 5), (9,), 5, lambda x, w: torch.einsum("bd,do", [x, w])),
}


@pytest.mark.parametrize("kind", PRODUCTS)
def test_products(kind):
    shape, inputs, width, how = PRODUCTS[kind]
    check(Multiplying(shape, how, width), normal(*inputs), ["w"])


def test_addmm_with_a_bias():
    module = Multiplying((9, 5), lambda x, w, b: torch.addmm(b, x, w), bias=5)
    check(module, normal(9), ["w"])
    (layer,) = build(module, stream(normal(9)), config())[0].roles.layers
    assert (layer.bias, layer.inputs, layer.outputs) == ("b", 10, 5)
