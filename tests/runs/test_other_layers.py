"""Runs of models with tables, attention and recurrent parts, from their plan to a user's module again."""

import pytest
import torch
from torch import nn

import codecl
from codecl import api
from codecl.errors import ConfigWarning
from codecl.plan import forecast, plan
from codecl.runs.config import merge, validate
from tests.plan.test_plan import check_all, check_bounds, check_first_task
from tests.problems import config, tasks
from tests.space.test_users_modules import WORDS, Gpt, Lstm, Vit, sentences


class Reader(nn.Module):
    """Words, attention, a GRU, a weight of its own."""

    def __init__(self, classes=3) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8, padding_idx=0)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.gru, self.w = nn.GRU(8, 6, batch_first=True), nn.Parameter(0.3 * torch.randn(6, 5))
        self.scale, self.head = nn.Parameter(torch.ones(5)), nn.Linear(5, classes)

    def forward(self, x):
        x = self.words(x)
        x = self.gru(self.attention(x, x, x)[0])[1][-1]
        return self.head(torch.tanh(x @ self.w) * self.scale)


def reader(shape, classes):
    """For a config to name."""
    return Reader(classes)


SETTINGS = {
    "plain": {},
    "everyone's images": {"growth": {"subspace_from": "all"}, "norms": "own"},
    "own directions": {"own": {"directions": 2}, "growth": {"subspace_from": "all"}, "dtype": "float32"},
    "chosen directions": {"own": {"directions": 2}, "free": {"directions": 4}},
    "full": {"method": "codec-full"},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_plan_is_what_the_run_then_records_and_its_models_come_back(settings, tmp_path):
    named = {"model": {"name": "tests.runs.test_other_layers:reader"}, "train": {"execution": "loop", "epochs": 1}}
    what, stream = validate(merge(config(**settings).model_dump(), named)), sentences(3)
    before = plan(what, stream)
    result = api.run(what, out=tmp_path, tasks=stream, device="cpu", mu=True)
    check_first_task(before, result.folder)
    check_bounds(before, result.folder)
    check_all(plan(what, stream, like=forecast.read(result.folder)), result.folder, result.metrics["traffic"])
    for number, task in enumerate(stream):
        model = codecl.load(result.folder, number, allow_code=True)
        assert type(model) is Reader
        accuracy = float((model(task.test[0]).argmax(1) == task.test[1]).double().mean())
        assert 100 * accuracy == pytest.approx(result.metrics["accuracy_matrix"][-1][number])


@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:agents run one after another")
@pytest.mark.parametrize("make", [Gpt, Lstm, Vit])
def test_what_comes_back_is_the_users_own_module(make, tmp_path):
    torch.manual_seed(0)
    module, stream = make(), tasks(2) if make is Vit else sentences(2)
    short = {"train": {"epochs": 1, "batch_size": 4}, "growth": {"images": 12}, "own": {"directions": 1}}
    with pytest.warns(ConfigWarning):
        result = codecl.fit(module, stream, out=tmp_path, device="cpu", **short)
    model = result.model(0)
    assert type(model) is make
    assert not any("forward" in vars(part) for part in model.modules())  # PyTorch's own ways again
    assert list(model.state_dict()) == list(module.state_dict())
    inputs = stream[0].test[0]
    inputs = inputs.float() if inputs.is_floating_point() else inputs
    accuracy = float((model(inputs).argmax(1) == stream[0].test[1]).double().mean())
    assert 100 * accuracy == pytest.approx(result.metrics["accuracy_matrix"][-1][0], abs=2.1)  # a fused kernel rounds


def test_a_run_goes_on_with_tokens_in_its_memory(tmp_path):
    """`after`: the second half of a run is as if it had been there from the start."""
    stream = sentences(3)
    short = {
        "train": {"epochs": 1, "batch_size": 4},
        "growth": {"images": 12},
        "own": {"directions": 2},
    }

    def fitted(tasks, out, **more):
        torch.manual_seed(0)
        return codecl.fit(Reader(), tasks, out=tmp_path / out, device="cpu", **short, **more)

    whole = fitted(stream, "whole")
    parts = fitted(stream, "parts", after=fitted(stream[:2], "first"))
    assert parts.metrics["accuracy_matrix"] == whole.metrics["accuracy_matrix"]
    ours, theirs = whole.model(2).state_dict(), parts.model(2).state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    ("norms", "says"),
    [
        ("first", "model: 'scale' multiplies no inputs: trained in the first task only, as norms are"),
        ("own", "model: 'scale' multiplies no inputs: each task has its own, as of norms"),
        ("shared", "model: 'scale' multiplies no inputs: trained whole in every task"),
    ],
)
def test_small_parameters_are_named_in_one_line_and_do_as_norms_do(norms, says, tmp_path):
    torch.manual_seed(0)
    short = {"train": {"epochs": 1, "batch_size": 4}, "growth": {"images": 12}, "device": "cpu"}
    with pytest.warns(ConfigWarning) as caught:
        result = codecl.fit(Reader(), sentences(2), out=tmp_path, norms=norms, **short)
    (line,) = [str(warning.message) for warning in caught if "scale" in str(warning.message)]
    assert line.startswith(says)
    assert "\n" not in line
    first, second = (result.model(number).scale.detach() for number in range(2))
    assert torch.equal(first, second) == (norms != "own")
    assert not torch.equal(first, torch.ones(5))
