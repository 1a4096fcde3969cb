"""Modules as people write them: each trains as it is, or is refused in one line that says what to do."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence

from codecl.data.task import Task
from codecl.errors import ConfigError
from tests.problems import build, config, furthest, tasks, trajectory

WORDS = 48


def sentences(count=2, length=6):
    """Texts of token ids, padded with 0; each task has words of its own, and some of the other's."""
    out = []
    for number in range(count):
        generator = torch.Generator().manual_seed(number)
        labels = torch.arange(48) % 3
        first = 1 + 10 * number + 6 * labels[:, None]
        words = first + torch.randint(8, (48, length), generator=generator)
        words[::4, -2:] = 0
        out.append(Task((words, labels), (words, labels), 3, f"t{number}"))
    return out


class Vit(nn.Module):
    """A class token, positions and a stack of encoder layers."""

    def __init__(self, norm_first=True) -> None:
        super().__init__()
        self.patch = nn.Conv2d(2, 8, 2, stride=2)
        self.cls = nn.Parameter(torch.zeros(1, 1, 8))
        self.pos = nn.Parameter(0.1 * torch.randn(1, 10, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        return self.head(self.encoder(x)[:, 0])


class LayerScale(nn.Module):
    """Attention written by hand, from one product for all three, with scales of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.qkv, self.out = nn.Linear(6, 8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.gamma, self.norm, self.head = nn.Parameter(torch.full((8,), 0.1)), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.enter(x.flatten(1, 2))
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        found = ((q @ k.mT) / 2).softmax(-1) @ v
        x = x + self.gamma * self.out(found.transpose(1, 2).flatten(2))
        return self.head(x.mean(1))


class Conv1D(nn.Module):
    """As HuggingFace has it: a Linear whose weight is [inputs, outputs]."""

    def __init__(self, outputs, inputs) -> None:
        super().__init__()
        self.nf = outputs
        self.weight = nn.Parameter(0.2 * torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], self.nf)


class Gpt(nn.Module):
    """Words, positions, causal attention; `tied`: what comes out is compared with the table of words."""

    def __init__(self, tied=False) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, 8), nn.Embedding(6, 8)
        self.ln, self.attn, self.proj = nn.LayerNorm(8), Conv1D(24, 8), Conv1D(8, 8)
        self.mlp = nn.Sequential(nn.LayerNorm(8), Conv1D(16, 8), nn.GELU(), Conv1D(8, 16))
        self.head = nn.Linear(8, WORDS if tied else 3, bias=False)
        if tied:
            self.head.weight = self.wte.weight

    def forward(self, x):
        h = self.wte(x) + self.wpe(torch.arange(x.shape[1], device=x.device))
        q, k, v = self.attn(self.ln(h)).chunk(3, -1)
        scores = (q @ k.mT).masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), float("-inf"))
        h = h + self.proj(scores.softmax(-1) @ v)
        return self.head((h + self.mlp(h))[:, -1])


class Lstm(nn.Module):
    """Packed sequences of words, in both directions."""

    def __init__(self, packed=True) -> None:
        super().__init__()
        self.packed = packed
        self.words = nn.Embedding(WORDS, 6, padding_idx=0)
        self.lstm = nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(10, 3)

    def forward(self, x):
        h = self.words(x)
        if self.packed:
            h = pack_padded_sequence(h, (x > 0).sum(1), batch_first=True, enforce_sorted=False)
        return self.head(self.lstm(h)[1][0][-2:].transpose(0, 1).flatten(1))


class Pooled(nn.Module):
    """A GRU whose steps are weighed by a learned vector."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.gru = nn.Embedding(WORDS, 6), nn.GRU(6, 7, batch_first=True)
        self.query, self.head = nn.Parameter(torch.randn(7)), nn.Linear(7, 3)

    def forward(self, x):
        h = self.gru(self.words(x))[0]
        return self.head((h * (h @ self.query).softmax(1)[..., None]).sum(1))


class Bags(nn.Module):
    """Bags of words of different lengths in one row."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(WORDS, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.bag(x.flatten(), torch.arange(0, x.numel(), x.shape[1], device=x.device)))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 8, 2, stride=2)
        self.up, self.join = nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Conv2d(8, 3, 1)
        self.head = nn.Linear(3, 3)

    def forward(self, x):
        skip = self.down(x).relu()
        x = self.up(self.deep(skip).relu())
        return self.head(self.join(torch.cat([skip, x], 1)).mean((2, 3)))


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 8, 3), nn.GroupNorm(2, 8)
        self.fc1, self.fc2, self.head = nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1), nn.Linear(8, 3)

    def forward(self, x):
        x = self.norm(self.conv(x)).relu()
        scale = self.fc2(self.fc1(functional.adaptive_avg_pool2d(x, 1)).relu()).sigmoid()
        return self.head((x * scale).mean((2, 3)))


class Experts(nn.Module):
    """Every expert at once, by einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.gate = nn.Linear(72, 8), nn.Linear(8, 3)
        self.w1, self.w2 = nn.Parameter(0.3 * torch.randn(3, 8, 6)), nn.Parameter(0.3 * torch.randn(3, 6, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.enter(x.flatten(1)).tanh()
        h = torch.einsum("bd,edh->beh", x, self.w1).tanh()
        y = torch.einsum("beh,ehd->bed", h, self.w2)
        return self.head((y * self.gate(x).softmax(-1)[..., None]).sum(1))


class Cells(nn.Module):
    """A GRUCell that is called row by row of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(12, 6), nn.Linear(6, 3)

    def forward(self, x):
        state = x.new_zeros(len(x), 6)
        for row in x.flatten(1, 2).unflatten(1, (6, 2)).flatten(2).unbind(1):
            state = self.cell(row, state)
        return self.head(state)


class Perceiver(nn.Module):
    """Learned queries that look at an image; keys and values have another width."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(2, 8))
        self.attn = nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        x = x.flatten(1, 2)
        return self.head(self.attn(self.queries.expand(len(x), -1, -1), x, x)[0].flatten(1))


class Video(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv3d(1, 4, (2, 3, 3), padding=(0, 1, 1)), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.conv(x.unsqueeze(1)).tanh().mean((2, 3, 4)))


class Seq2Seq(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = {"dim_feedforward": 8, "dropout": 0.0, "batch_first": True, "norm_first": False}
        self.enter, self.model = nn.Linear(6, 8), nn.Transformer(8, 2, 1, 1, **sizes)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.enter(x.flatten(1, 2))
        mask = nn.Transformer.generate_square_subsequent_mask(3, dtype=x.dtype)
        return self.head(self.model(x, x[:, :3], tgt_mask=mask, tgt_is_causal=True).mean(1))


class LowRank(nn.Module):
    """A pretrained weight that stays, and two small ones beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(72, 8).requires_grad_(False)
        self.a, self.b = nn.Parameter(0.1 * torch.randn(4, 72)), nn.Parameter(torch.zeros(8, 4))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = x.flatten(1)
        return self.head((self.base(x) + x @ self.a.T @ self.b.T).tanh())


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.tokens, self.channels = nn.Linear(6, 8), nn.Linear(12, 12), nn.Linear(8, 8)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.enter(x.flatten(1, 2))
        x = x + self.tokens(self.norm(x).mT).mT
        return self.head((x + self.channels(x)).mean(1))


class Standardised(nn.Conv2d):
    def forward(self, x):
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return functional.conv2d(x, weight / weight.std((1, 2, 3), keepdim=True), self.bias)


class Paired(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.join = nn.Linear(72, 5), nn.Linear(72, 5), nn.Bilinear(5, 5, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = x.flatten(1)
        return self.head(self.join(self.one(x).tanh(), self.two(x).tanh()))


class Scaled(nn.Module):
    """A weight and a bias of its own, a scale, and a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(0.1 * torch.randn(72, 8)), nn.Parameter(torch.zeros(8))
        self.scale, self.head = nn.Parameter(torch.tensor(1.0)), nn.Linear(8, 3)

    def forward(self, x):
        return self.scale * self.head((x.flatten(1) @ self.w + self.b).tanh())


def convolutional(conv, *more):
    return nn.Sequential(conv, *more, nn.Flatten(), nn.LazyLinear(3))


def depthwise():
    return convolutional(nn.Conv2d(2, 4, 3, groups=2), nn.BatchNorm2d(4), nn.Hardswish(), nn.Conv2d(4, 6, 1))


def frames():
    return [
        task._replace(train=(task.train[0][:, 0], task.train[1]), test=(task.test[0][:, 0], task.test[1]))
        for task in tasks(2, shape=(1, 3, 6, 6))
    ]


WORKS = {  # a module, its tasks, how many layers carry coordinates, and the parameters that multiply no inputs
    "vision transformer": (Vit, tasks, 9, ["cls", "pos"]),
    "vision transformer, norms last": (lambda: Vit(norm_first=False), tasks, 9, ["cls", "pos"]),
    "attention by hand with layer scale": (LayerScale, tasks, 3, ["gamma"]),
    "gpt with conv1d": (Gpt, sentences, 6, []),
    "lstm of packed words": (Lstm, sentences, 9, []),
    "lstm of padded words": (lambda: Lstm(packed=False), sentences, 9, []),
    "gru with a pooling vector": (Pooled, sentences, 4, []),
    "bags of words": (Bags, sentences, 1, []),
    "u-net": (UNet, tasks, 4, ["up.bias"]),
    "squeeze and excite": (SqueezeExcite, tasks, 3, []),
    "experts by einsum": (Experts, tasks, 4, []),
    "gru cell": (Cells, tasks, 2, []),
    "perceiver": (Perceiver, tasks, 4, ["queries", "attn.in_proj_bias"]),
    "video": (Video, frames, 1, []),
    "transformer": (Seq2Seq, tasks, 11, []),
    "low rank beside a pretrained weight": (LowRank, tasks, 2, []),
    "mixer": (Mixer, tasks, 3, []),
    "weight standardisation": (
        lambda: convolutional(Standardised(2, 4, 3), nn.ReLU()),
        tasks,
        0,
        ["0.weight", "0.bias"],
    ),
    "bilinear": (Paired, tasks, 2, ["join.weight", "join.bias"]),
    "a weight, a bias and a scale": (Scaled, tasks, 1, ["b", "scale"]),
    "prelu": (lambda: convolutional(nn.Conv2d(2, 4, 3), nn.PReLU(4)), tasks, 1, ["1.weight"]),
    "depthwise": (depthwise, tasks, 2, []),
    "weight norm": (lambda: convolutional(parametrizations.weight_norm(nn.Conv2d(2, 4, 3)), nn.ReLU()), tasks, 1, []),
    "data parallel": (lambda: nn.DataParallel(convolutional(nn.Conv2d(2, 4, 3), nn.ReLU())), tasks, 1, []),
    "compressed bottleneck of 1-d convolutions": (
        lambda: nn.Sequential(nn.Flatten(2), nn.Conv1d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.LazyLinear(3)),
        tasks,
        1,
        [],
    ),
}


def made(make, stream):
    torch.manual_seed(0)
    module = make()
    inputs = stream[0].train[0][:2]
    with torch.no_grad():  # lazy layers get their weights
        module.eval()(inputs.float() if inputs.is_floating_point() else inputs)
    return module


@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:agents run one after another")
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True", "ignore:Lazy modules are a new feature")
@pytest.mark.parametrize("name", WORKS)
def test_modules_that_train_as_they_are(name):
    make, stream, count, small = WORKS[name]
    stream = stream(2) if stream is not frames else frames()
    module, fields = made(make, stream), {"train": {"epochs": 1}}
    setup, _ = build(module, stream, config(**fields))
    assert (len(setup.roles.layers), sorted(setup.roles.small)) == (count, sorted(small))
    runs = [trajectory(module, stream, config(method=method, **fields)) for method in ("codec", "codec-full")]
    assert max(furthest(a, b) for a, b in zip(*runs, strict=True)) < 1e-9


class Transposed(nn.Module):
    """An autoencoder whose way back is its way in."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.head = nn.Parameter(0.1 * torch.randn(8, 72)), nn.Linear(72, 3)

    def forward(self, x):
        return self.head(functional.linear(x.flatten(1), self.w).tanh() @ self.w)


class Mapped(nn.Module):
    """Maps over the images of a batch by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.scale, self.head = nn.Linear(72, 6), nn.Parameter(torch.ones(6)), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.vmap(lambda image: torch.mul(self.scale, self.body(image)))(x.flatten(1)))


def table(**options):
    return nn.Sequential(nn.Embedding(WORDS, 4, **options), nn.Flatten(), nn.Linear(24, 3))


def spectral():
    return convolutional(parametrizations.spectral_norm(nn.Conv2d(2, 4, 3)), nn.ReLU())


def orthogonal():
    return nn.Sequential(nn.Flatten(), parametrizations.orthogonal(nn.Linear(72, 8)), nn.Linear(8, 3))


REFUSED = {  # what is said, and what then works
    "words tied to the head": (lambda: Gpt(tied=True), sentences, {}, "head: 'head' shares its weight", None),
    "words tied, one head": (
        lambda: Gpt(tied=True),
        sentences,
        {"head": None},
        "'wte.weight' is used in two forms",
        {"dense": ["wte.weight"]},
    ),
    "tied and transposed": (Transposed, tasks, {}, "'w' is used in two forms", {"frozen": ["w"]}),
    "vmap": (Mapped, tasks, {}, "'body.weight' is used inside torch.vmap", {"frozen": ["body.*"]}),
    "max_norm": (lambda: table(max_norm=1.0), sentences, {}, "'0.weight' is a table with max_norm", None),
    "scaled by frequency": (
        lambda: table(scale_grad_by_freq=True),
        sentences,
        {},
        "'0.weight' is a table with scale_grad_by_freq",
        {"frozen": ["0.*"]},
    ),
    "spectral norm": (spectral, tasks, {}, "'0.parametrizations.weight.original' is also used by", None),
    "orthogonal": (
        orthogonal,
        tasks,
        {},
        "'1.parametrizations.weight.original' makes a weight by a parametrization",
        {"frozen": ["1.*"]},
    ),
}


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature", "ignore:There is a performance drop")
@pytest.mark.parametrize("name", REFUSED)
def test_modules_that_are_refused_in_one_line(name):
    make, stream, fields, says, remedy = REFUSED[name]
    stream = stream(2)
    module = made(make, stream)
    with pytest.raises(ConfigError) as caught:
        build(module, stream, config(**fields))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    if remedy:
        assert "dense=" in str(caught.value)
        assert "frozen=" in str(caught.value)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "agents run one after another")
            assert list(trajectory(module, stream, config(**fields, **remedy, train={"epochs": 1})))
