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

MOST = {"threshold": 0.97, "increment": 0.0, "images": 24, "subspace_from": "all"}
EVERYTHING = {**MOST, "threshold": 1.0}
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


def run(module, tasks, growth=MOST, **fields):
    """(parameters of all agents after each step, states after each task, the setup, how agents shared the device)."""
    setup, state = build(module, tasks, config(growth=growth, **fields))
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
    steps, _, setup, execution = run(module, tasks)
    assert [layer.name for layer in setup.roles.layers] == layers
    assert execution == ("stacked" if stacked else "loop")
    assert apart(steps, run(module, tasks, method="codec-full")[0]) < CLOSE
    assert apart(steps, run(module, tasks, train={"execution": "loop"})[0]) < CLOSE
    _, states, setup, _ = run(module, tasks, EVERYTHING, agents=1)  # no rest of disagreement
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


class Attending(nn.Module):
    """A sequence that looks at itself, or at another one."""

    def __init__(self, attention, other=None) -> None:
        super().__init__()
        self.attention, self.other = attention, other
        self.head = nn.Linear(attention.embed_dim, 2)

    def forward(self, x):
        keys = x if self.other is None else x[:, 1:] @ self.other
        return self.head(torch.tanh(self.attention(x, keys, keys, need_weights=False)[0]).mean(1))


def attention(**options):
    torch.manual_seed(0)
    return nn.MultiheadAttention(16, 2, batch_first=True, **options)


ATTENTION = {
    "itself": (attention, None, ["attention.in_proj_weight", "attention.out_proj"]),
    "another": (attention, 16, ["other", "attention.in_proj_weight", "attention.out_proj"]),
    "of another width": (
        lambda: attention(kdim=12, vdim=12),
        12,
        [
            "other",
            *(f"attention.{name}_proj_weight" for name in "qkv"),
            "attention.out_proj",
        ],
    ),
}


@pytest.mark.parametrize("kind", ATTENTION)
def test_attention(kind):
    make, width, layers = ATTENTION[kind]
    other = nn.Parameter(torch.randn(16, width)) if width else None
    check(Attending(make(), other), normal(3, 16), layers)


class Encoding(nn.Module):
    def __init__(self, encoder) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(24, 2)

    def forward(self, x):
        return self.head(self.encoder(x, x[:, :1]) if isinstance(self.encoder, nn.Transformer) else self.encoder(x))[
            :, 0
        ]


def test_transformers():
    torch.manual_seed(0)
    sizes = {"dim_feedforward": 24, "dropout": 0.0, "batch_first": True}
    stack = nn.TransformerEncoder(nn.TransformerEncoderLayer(24, 2, **sizes), 2)
    parts = ("self_attn.in_proj_weight", "self_attn.out_proj", "linear1", "linear2")
    check(Encoding(stack), normal(2, 24), [f"encoder.layers.{n}.{part}" for n in range(2) for part in parts])
    whole = Encoding(nn.Transformer(24, 2, 1, 1, **sizes))
    layers = [f"encoder.encoder.layers.0.{part}" for part in parts]
    cross = ("multihead_attn.in_proj_weight", "multihead_attn.out_proj")
    layers += [f"encoder.decoder.layers.0.{part}" for part in (*parts[:2], *cross, *parts[2:])]
    check(whole, normal(2, 24), layers)


class Remembering(nn.Module):
    """The mean output of a recurrent net, or the last of a cell that is called step by step."""

    def __init__(self, net, width) -> None:
        super().__init__()
        self.net, self.head = net, nn.Linear(width, 2)

    def forward(self, x):
        if isinstance(self.net, nn.RNNBase):
            return self.head(self.net(x)[0].mean(1))
        state = None
        for step in x.unbind(1):
            state = self.net(step, state)
        return self.head(state[0] if isinstance(state, tuple) else state)


def names(*layers):
    return [f"net.weight_{part}_{layer}" for layer in layers for part in ("ih", "hh")]


RECURRENT = {
    "lstm of two layers": (lambda: nn.LSTM(10, 24, 2, batch_first=True), 24, ["l0", "l1"]),
    "gru in both directions": (lambda: nn.GRU(10, 20, batch_first=True, bidirectional=True), 40, ["l0", "l0_reverse"]),
    "rnn": (lambda: nn.RNN(10, 20, batch_first=True, bias=False), 20, ["l0"]),
    "lstm cell": (lambda: nn.LSTMCell(10, 20), 20, None),
    "gru cell": (lambda: nn.GRUCell(10, 20), 20, None),
    "rnn cell": (lambda: nn.RNNCell(10, 20), 20, None),
}


@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent(kind):
    make, width, layers = RECURRENT[kind]
    torch.manual_seed(0)
    found = ["net.weight_ih", "net.weight_hh"] if layers is None else names(*layers)
    check(Remembering(make(), width), normal(3, 10), found)


class Reading(nn.Module):
    """Tokens, looked up in a table."""

    def __init__(self, table, body=None) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table, self.body, self.head = table, body, nn.Linear(6, 2)

    def forward(self, x):
        found = self.table(x) if isinstance(self.table, nn.EmbeddingBag) else self.table(x).mean(1)
        return self.head(torch.tanh(found if self.body is None else self.body(found)))


def words(generator, number):
    """Of each task some of its own, and some that it shares with the one before; 0 is padding."""
    return torch.cat([torch.zeros(1).long(), 1 + 6 * number + torch.randperm(12, generator=generator)[:6]])


class Weighing(nn.EmbeddingBag):
    def forward(self, x):
        starts = torch.arange(0, x.numel(), x.shape[1])
        return super().forward(x.flatten(), starts, torch.linspace(0.5, 1, x.numel(), dtype=self.weight.dtype))


TABLES = {
    "embedding": (lambda: nn.Embedding(30, 6), True),
    "embedding with padding": (lambda: nn.Embedding(30, 6, padding_idx=0), True),
    "bag of means": (lambda: nn.EmbeddingBag(30, 6), True),
    "bag of sums": (lambda: nn.EmbeddingBag(30, 6, mode="sum", padding_idx=0, sparse=True), True),
    "bag of largest": (lambda: nn.EmbeddingBag(30, 6, mode="max"), True),
    "bags in one row with weights": (lambda: Weighing(30, 6, mode="sum"), True),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("kind", TABLES)
def test_tables(kind):
    make, stacked = TABLES[kind]
    torch.manual_seed(0)
    check(Reading(make()), words, ["table"], stacked)


OWN = {
    "own": {"own": {"directions": 2}},
    "a share": {"own": {"share": 0.5}},
    "own and free": {"own": {"directions": 2}, "free": {"directions": 5, "first_task": True}},
}


@pytest.mark.parametrize("subspace_from", ["one", "all"])
@pytest.mark.parametrize("fields", OWN.values(), ids=OWN)
def test_directions_of_their_own_in_other_kinds_of_layers(fields, subspace_from):
    torch.manual_seed(0)
    module = Reading(nn.Embedding(30, 6, padding_idx=0))
    if fields == OWN["own"]:  # else directions without energy are chosen too, and any could be
        module.body = Multiplying((6, 6), lambda x, w: x @ w, 6)
        module.body.head = nn.Linear(6, 6)
    growth = {**MOST, "subspace_from": subspace_from}
    codec, whole = (run(module, stream(words), growth, method=method, **fields) for method in ("codec", "codec-full"))
    assert apart(codec[0], whole[0]) < CLOSE
    setup, last = codec[2], codec[1][-1]
    own = last.kept[-1].directions["table/0"]
    assert own.dtype == torch.int64
    assert 0 not in own  # padding never trains
    model = last.kept[-1].model(setup.roles.layers, last.parameters)
    others = torch.ones(30).bool()
    others[own] = False
    assert torch.equal(model["table.weight"][others], last.parameters["table.weight"][others])
    assert not torch.equal(model["table.weight"], last.parameters["table.weight"])


def test_padding_is_never_free_and_what_was_seen_is_not_either():
    module = Reading(nn.Embedding(30, 6, padding_idx=0))
    _, states, setup, _ = run(module, stream(words), EVERYTHING, agents=1)
    for number, state in enumerate(states):
        seen = {0, *torch.cat([earlier.train[0] for earlier in setup.tasks[: number + 1]]).unique().tolist()}
        assert state.memory["table/0"].tolist() == [token for token in range(30) if token not in seen]
        assert state.parameters["table.weight"][0].abs().max() == 0
