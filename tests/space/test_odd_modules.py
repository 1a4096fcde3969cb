"""Modules that people really write: each trains as it would anywhere else, or is refused in one line."""

import json
import warnings
from types import MethodType

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import codecl
from codecl.errors import ConfigError
from codecl.methods import DEwc
from codecl.registry import code_digest
from codecl.train.loop import train
from tests.problems import build, config, furthest, tasks, trajectory

SMALL = {
    "train": {"epochs": 2, "batch_size": 4, "lr": 0.1},
    "growth": {"threshold": 0.9, "images": 12},
    "dtype": "float64",
}


def flat(stream, start):
    """Tasks whose images are flattened from this dimension on."""
    return [
        task._replace(
            train=(task.train[0].flatten(start), task.train[1]), test=(task.test[0].flatten(start), task.test[1])
        )
        for task in stream
    ]


def lossless(module, stream=None, **fields):
    """codec and codec-full follow one trajectory: what is trained is the module as written."""
    stream = stream or tasks()
    runs = [trajectory(module, stream, config(method=m, **fields)) for m in ("codec", "codec-full")]
    return max(furthest(a, b) for a, b in zip(*runs, strict=True)) < 1e-10


def factored(module):
    """The layers that are factored in the second task."""
    setup, state = build(module, tasks(2), config())
    return [event.factored for event in train(setup, state) if event.kind == "task"][1]


class Asking(nn.Module):
    """Looks at the types and attributes of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.ModuleList([nn.Linear(72, 40), nn.Linear(40, 40), nn.Linear(40, 3)])

    def forward(self, x):
        x = x.flatten(1).to(self.net[0].weight.dtype).type_as(self.net[1].weight)
        for number, part in enumerate(self.net):
            x = part(x[:, : part.in_features])
            if isinstance(part, nn.Linear) and number < 2:
                x = torch.sin(3 * x)
        return x


class Direct(nn.Module):
    """Uses a Linear's weight without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(72, 40), nn.Linear(40, 3)

    def forward(self, x):
        return self.head(torch.tanh(functional.linear(x.flatten(1), self.body.weight, self.body.bias)))


class LowRank(nn.Linear):
    """A Linear with more weights beside its own."""

    def __init__(self, inputs, outputs) -> None:
        super().__init__(inputs, outputs)
        self.down, self.up = nn.Parameter(torch.randn(4, inputs) * 0.1), nn.Parameter(torch.zeros(outputs, 4))

    def forward(self, x):
        return super().forward(x) + functional.linear(functional.linear(x, self.down), self.up)


def hooked():
    module = nn.Sequential(nn.Flatten(), nn.Linear(72, 40), nn.Linear(40, 3))
    module[1].register_forward_hook(lambda part, inputs, out: torch.tanh(out))
    return module


@pytest.mark.parametrize(
    "module",
    [
        Asking(),
        Direct(),
        hooked(),
        nn.Sequential(nn.Flatten(), LowRank(72, 30), nn.Tanh(), nn.Linear(30, 3)),
        nn.Sequential(nn.Conv1d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(136, 3)),
    ],
    ids=["asks for types", "uses a weight directly", "hooks", "more weights in a Linear", "conv1d"],
)
def test_modules_that_train_as_they_are_written(module):
    one_dimensional = isinstance(module, nn.Sequential) and isinstance(module[0], nn.Conv1d)
    stream = flat(tasks(), 2) if one_dimensional else tasks()
    assert lossless(module, stream)


class Patched(nn.Module):
    """A Linear that is called in a way of its own."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how, self.body, self.head = how, nn.Linear(72, 40), nn.Linear(40, 3)
        if how == "own forward":
            own = lambda part, x: torch.tanh(functional.linear(x, part.weight, part.bias))  # noqa: E731
            self.body.forward = MethodType(own, self.body)
        if how == "hook that uses the weight":
            self.body = nn.Linear(72, 72)
            self.body.register_forward_hook(lambda part, _, out: functional.linear(out, part.weight, part.bias))
            self.head = nn.Linear(72, 3)

    def forward(self, x):
        if self.how == "raises first":
            try:
                x = self.body(x)
            except RuntimeError:
                x = functional.linear(x.flatten(1), self.body.weight, self.body.bias)
        elif self.how == "other use in training" and self.training:
            x = functional.linear(x.flatten(1), self.body.weight * 0.9, self.body.bias)
        else:
            x = self.body(x.flatten(1))
        return self.head(torch.tanh(x))


def shared():
    module = nn.Sequential(nn.Flatten(), nn.Linear(72, 72), nn.Tanh(), nn.Linear(72, 72), nn.Tanh(), nn.Linear(72, 3))
    module[3].weight, module[3].bias = module[1].weight, module[1].bias
    return module


WAYS = ("own forward", "hook that uses the weight", "raises first", "other use in training")


@pytest.mark.parametrize("module", [*map(Patched, WAYS), shared()], ids=[*WAYS, "shared"])
def test_a_linear_that_is_not_plainly_called_or_is_shared_is_never_factored(module):
    assert factored(module) == []
    assert lossless(module)


def test_a_bare_linear_shared_by_all_tasks(tmp_path):
    result = codecl.fit(nn.Linear(72, 40), flat(tasks(), 1), out=tmp_path, head=None, **SMALL)
    assert [list(free) for free in result.metrics["free_by_task"]] == [["weight"]] * 3


def test_a_module_given_in_evaluation_mode_trains_with_dropout(tmp_path):
    module = nn.Sequential(nn.Flatten(), nn.Linear(72, 9), nn.Dropout(0.5), nn.Linear(9, 3)).eval()
    setup, state = build(module, tasks(1), config())
    group = next(iter(train(setup, state))).agents
    images, labels = torch.ones(4, 8, 2, 6, 6).double(), torch.zeros(4, 8).long()
    assert len(set(group.gradient(group.layout.start().repeat(4, 1), images, labels)[0].tolist())) == 4


def test_factored_layers_are_those_that_are_called_as_such():
    assert [factored(module) for module in (Asking(), Direct(), hooked())] == [["net.0", "net.1"], [], ["1"]]


@pytest.mark.parametrize("place", ["dense", "frozen"])
def test_a_bias_alone_can_be_dense_or_frozen(place):
    module = nn.Sequential(nn.Flatten(), nn.Linear(72, 30), nn.Tanh(), nn.Linear(30, 3))
    setup, state = build(module, tasks(), config(**{place: ("1.bias",)}))
    opened = next(iter(train(setup, state)))
    assert opened.full == 72 * 30 + 30 + 93  # the bias is sent once
    after = [event.state.parameters["1.bias"] for event in train(setup, state) if event.kind == "flood"]
    assert torch.equal(after[0], after[2]) == (place == "frozen")
    assert lossless(module, **{place: ("1.bias",)})


@pytest.mark.parametrize("method", codecl.METHODS)
def test_a_frozen_backbone_leaves_only_the_head_to_train(method, tmp_path):
    module = nn.Sequential(nn.Flatten(), nn.Linear(72, 10), nn.ReLU(), nn.Linear(10, 3))
    module[1].requires_grad_(False)
    result = codecl.fit(module, tasks(), out=tmp_path, method=method, **SMALL)
    assert result.metrics["free_by_task"] == [{}, {}, {}]
    assert result.metrics["bwt"] == (None if method == "stl" else 0)
    assert torch.equal(result.model(2)[1].weight, module[1].weight.double())


def test_a_bare_linear_is_its_own_head(tmp_path):
    stream = flat(tasks(), 1)
    result = codecl.fit(nn.Linear(72, 3), stream, out=tmp_path, **SMALL)
    assert result.metrics["bwt"] == 0  # each task has its own
    assert result.metrics["acc"] > 80


def test_a_last_test_batch_of_one_image_joins_the_one_before(tmp_path):
    settings = {**SMALL, "train": {"epochs": 1, "batch_size": 4, "test_batch_size": 47}}
    assert codecl.fit(normed(), tasks(1), out=tmp_path, **settings).metrics["status"] == "complete"


def test_backward_passes_that_cannot_be_stacked_run_in_a_loop():
    class Saving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(72, 6), nn.Linear(6, 3)

        def forward(self, x):
            return self.head(checkpoint(lambda y: torch.tanh(self.body(y)), x.flatten(1), use_reentrant=False))

    module = Saving()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = list(trajectory(module, tasks(2), config()))
    loop = list(trajectory(module, tasks(2), config(train={"execution": "loop"})))
    assert max(furthest(a, b) for a, b in zip(ours, loop, strict=True)) < 1e-12


def test_sequences_first_or_last_grow_the_same(tmp_path):
    class Sequence(nn.Module):
        def __init__(self, first: bool) -> None:
            super().__init__()
            self.first = first
            self.embed, self.body, self.head = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 3)

        def forward(self, x):
            x = x.flatten(1, 2)  # [images, 12, 6]
            x = x.transpose(0, 1) if self.first else x
            return self.head(torch.tanh(self.body(torch.tanh(self.embed(x)))).mean(0 if self.first else 1))

    free = []  # 12 positions, 6 images of which the first layer looks at 2: 12 is a multiple of 6
    for first in (False, True):
        torch.manual_seed(0)
        settings = {**SMALL, "growth": {"threshold": 0.9, "images": (2, 6)}}
        free.append(codecl.fit(Sequence(first), tasks(), out=tmp_path / str(first), **settings).metrics["free_by_task"])
    assert free[0] == free[1]


def test_tokens_and_an_embedding(tmp_path):
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.body, self.head = nn.Embedding(20, 6), nn.Linear(6, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.head(torch.relu(self.body(self.embed(x).mean(1))))

    words = torch.randint(20, (80, 5), generator=torch.Generator().manual_seed(0))
    labels = (words.float().mean(1) > 9.5).long()
    stream = [codecl.Task((words, labels), (words, labels), 2), ((19 - words, labels), (19 - words, labels), 2)]
    result = codecl.fit(Words(), stream, out=tmp_path, **SMALL)
    first, second = result.metrics["free_by_task"]
    assert first["embed"] == 20 > second["embed"]  # tokens that the first task did not see, or seldom
    assert codecl.fit(Words(), stream, out=tmp_path, frozen=["embed.weight"], **SMALL).metrics["status"] == "complete"


class Scaled(nn.Module):
    def __init__(self, k, hidden=0.0) -> None:
        super().__init__()
        self.k, self.body, self.head = k, nn.Linear(72, 6), nn.Linear(6, 3)
        self.register_buffer("shift", torch.tensor(hidden), persistent=False)

    def forward(self, x):
        return self.head(torch.tanh(self.k * self.body(x.flatten(1)) + self.shift))


def test_attributes_and_hidden_buffers_make_another_model(tmp_path):
    def fit(k, hidden=0.0):
        torch.manual_seed(0)
        return codecl.fit(Scaled(k, hidden), tasks(2), out=tmp_path, **SMALL).trained

    assert [fit(1.0), fit(5.0), fit(5.0, 1.0), fit(5.0, 1.0)] == [True, True, True, False]


def test_code_without_a_file_is_told_apart_by_what_it_does():
    def made(text):
        space = {"__name__": "notebook"}
        exec(f"class Net:\n    def forward(self, x):\n        return [{text} for y in x]", space)
        return code_digest(space["Net"])

    assert made("y + 1") == made("y + 1") != made("y + 2")


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(72, 6), nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.seen.add_(1)
        return self.head(self.body(x.flatten(1)))


class ConvLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line, self.conv = nn.Linear(6, 6), nn.Conv2d(2, 3, 1)

    def forward(self, x):
        return self.conv(self.line(x)).mean((2, 3))


def flat_linear(inputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 3))


def normed():
    return nn.Sequential(nn.Flatten(), nn.Linear(72, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


BIAS = ["0.bias"]


@pytest.mark.parametrize(
    ("module", "settings", "says"),
    [
        (Counting(), {}, "buffer 'seen' changes while the model trains"),
        (ConvLast(), {}, "is not a Linear that gives its outputs"),
        (nn.Sequential(nn.Flatten(), nn.LazyLinear(3)), {}, "lazy layers"),
        (flat_linear(72).requires_grad_(False), {}, "nothing in it trains"),
        (normed(), {"train": {"batch_size": 1}}, "training on 1 images"),
        (flat_linear(70), {}, "fails: RuntimeError: mat1 and mat2"),
        (nn.Sequential(nn.Flatten(0), nn.Linear(3456, 3)), {}, "it gives|fails"),
        (normed(), {"growth": {"images": 4, "subspace_from": "all"}}, "taking 1 images"),
        (normed(), {"train": {"batch_size": 4, "test_batch_size": 1}}, "taking 1 images"),
        (flat_linear(72), {"head": None, "frozen": ["1.weight", "1.bias"]}, "nothing trains"),
        (nn.Sequential(nn.Flatten(), nn.Linear(72, 4), nn.Linear(4, 3)), {"frozen": ["2.weight"]}, "is the head's"),
        (nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3)), {"frozen": BIAS, "dense": BIAS}, "is in both|it gives"),
    ],
)
def test_modules_that_are_refused_before_training(module, settings, says, tmp_path):
    with pytest.raises(ConfigError, match=says) as caught:
        codecl.fit(module, tasks(), out=tmp_path, **{**SMALL, **settings})
    assert "\n" not in str(caught.value)
    assert not any(tmp_path.iterdir())


def test_a_partly_frozen_head_cannot_grow(tmp_path):
    module = nn.Sequential(nn.Flatten(), nn.Linear(72, 9), nn.Linear(9, 3))
    module[2].weight.requires_grad_(False)
    assert codecl.fit(module, tasks(2), out=tmp_path, **SMALL).metrics["status"] == "complete"
    for classes in (2, 5):
        with pytest.raises(ConfigError, match=r"images of shape .* fails"):
            codecl.fit(module, [*tasks(1), *tasks(1, classes=classes)], out=tmp_path, **SMALL)


def test_another_model_is_another_run_even_with_equal_weights(tmp_path):
    def make(activation):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(72, 10), activation, nn.Linear(10, 3))

    frozen = make(nn.ReLU())
    frozen[1].weight.requires_grad_(False)
    frozen[1].bias.requires_grad_(False)
    for module in (make(nn.ReLU()), make(nn.Tanh()), frozen, make(nn.Dropout(0.1)), make(nn.Dropout(0.2))):
        assert codecl.fit(module, tasks(2), out=tmp_path, **SMALL).trained
    assert not codecl.fit(make(nn.Tanh()).eval(), tasks(2), out=tmp_path, **SMALL).trained  # the mode is fit's to set


def test_other_code_in_a_users_file_is_another_run(cli, tmp_path):
    text = "from codecl.methods import Dpsgd\nclass Mine(Dpsgd):\n    '''{}'''\n"
    short = ("--set", "train.epochs=1", "--set", "train.batch_size=100", "--json", "--quiet")
    folders = []
    for version in ("one", "one", "two"):
        (tmp_path / "mine.py").write_text(text.format(version))
        (run,) = json.loads(cli("run", "--method", "mine.py:Mine", *short, cwd=tmp_path).stdout)
        folders.append(run["folder"])
    assert folders[0] == folders[1] != folders[2]
    assert "-Mine-" in folders[0]


def test_a_method_of_ours_as_an_object_is_the_method_by_name(tmp_path):
    module = nn.Sequential(nn.Flatten(), nn.Linear(72, 9), nn.Linear(9, 3))
    named = codecl.fit(module, tasks(2), out=tmp_path, method="d-ewc", **SMALL)
    assert not codecl.fit(module, tasks(2), out=tmp_path, method=DEwc(), **SMALL).trained
    assert named.metrics["method"] == "d-ewc"
