"""A pretrained start: what fits is taken by name, what does not is told, and fixed parameters never train."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import codecl
from codecl.errors import ConfigError, ConfigWarning, DataError
from codecl.runs.grid import preset, resolve
from tests.problems import tasks

TRAIN = {"train": {"epochs": 1, "batch_size": 4, "lr": 0.05}, "dtype": "float64", "growth": {"images": 8}}


def net(hidden=8):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(72, hidden), nn.Tanh(), nn.Linear(hidden, 8), nn.Tanh(), nn.Linear(8, 3)
    )


@pytest.fixture
def weights(tmp_path):
    torch.manual_seed(7)
    other = net()
    save_file(other.state_dict(), tmp_path / "weights.safetensors")
    return other, str(tmp_path / "weights.safetensors")


def test_a_run_starts_from_the_file_whatever_the_modules_weights(weights, tmp_path):
    other, file = weights
    torch.manual_seed(0)
    ours = codecl.fit(net(), tasks(2), out=tmp_path / "a", init=file, **TRAIN)
    same = codecl.fit(other, tasks(2), out=tmp_path / "b", **TRAIN)
    for number in range(2):
        pairs = zip(ours.model(number).parameters(), same.model(number).parameters(), strict=True)
        assert all(torch.equal(one, two) for one, two in pairs)


def test_fixed_parameters_never_train(weights, tmp_path):
    other, file = weights
    result = codecl.fit(net(), tasks(3), out=tmp_path, init=file, fixed=["1.*"], **TRAIN)
    for number in range(3):
        model = result.model(number)
        assert torch.equal(model[1].weight, other[1].weight.double())
        assert not torch.equal(model[3].weight, other[3].weight.double())
    again = codecl.Learner.open(result.folder, net())  # the file may be gone by then
    learned = again.learn(tasks(4)[3])
    assert torch.equal(learned.model(3)[1].weight, other[1].weight.double())


def test_a_learner_goes_on_without_the_file(weights, tmp_path):
    _, file = weights
    learner = codecl.Learner(net(), out=tmp_path / "l", init=file, **TRAIN)
    learner.learn(tasks(1)[0])
    (tmp_path / "weights.safetensors").unlink()
    codecl.Learner.open(learner.folder, net()).learn(tasks(2)[1])


def test_what_does_not_match_is_told_in_one_line(weights, tmp_path):
    _, file = weights
    with pytest.warns(ConfigWarning, match="init") as caught:
        codecl.fit(net(hidden=6), tasks(1), out=tmp_path, init=file, **TRAIN)
    (line,) = [str(warning.message) for warning in caught if "init" in str(warning.message)]
    assert line.startswith("init: 3 of 6 tensors are from")
    assert "of another shape there: 1.weight [8, 72], 1.bias [8], 3.weight [8, 8]" in line
    assert "\n" not in line


def test_names_of_wrapped_modules_are_known(tmp_path):
    values = {f"module.{name}": value.clone() for name, value in net().state_dict().items()}
    save_file({**values, "module.extra": torch.zeros(1)}, tmp_path / "wrapped.safetensors")
    with pytest.warns(ConfigWarning, match=r"init: 6 of 6 tensors .*; not in the model: extra$"):
        codecl.fit(net(), tasks(1), out=tmp_path, init=str(tmp_path / "wrapped.safetensors"), **TRAIN)


def test_refusals(weights, tmp_path):
    _, file = weights
    with pytest.raises(DataError, match=r"init: .*none.safetensors cannot be read \(No such file"):
        codecl.fit(net(), tasks(1), out=tmp_path, init=str(tmp_path / "none.safetensors"), **TRAIN)
    (tmp_path / "text.safetensors").write_text("no tensors")
    with pytest.raises(DataError, match=r"text.safetensors is not a .safetensors file"):
        codecl.fit(net(), tasks(1), out=tmp_path, init=str(tmp_path / "text.safetensors"), **TRAIN)
    with pytest.raises(
        ConfigError, match=r"init: no tensor of .* fits the model; it has 1.bias, 1.weight, 3.bias and 3"
    ):
        codecl.fit(nn.Sequential(nn.Flatten(), nn.Linear(72, 3)), tasks(1), out=tmp_path, init=file, **TRAIN)
    with pytest.raises(ConfigError, match=r"fixed: the model has no parameter 'encoder\.\*'"):
        codecl.fit(net(), tasks(1), out=tmp_path, fixed=["encoder.*"], **TRAIN)


def test_another_file_is_another_run(weights, tmp_path):
    _, file = weights
    before = resolve(preset("quickstart"), {"init": file})
    save_file(net().state_dict(), file)
    after = resolve(preset("quickstart"), {"init": file})
    assert before.digest() != after.digest() != resolve(preset("quickstart"), {}).digest()
