"""Wrapped modules and weights: DataParallel, compilation, weight norm. Models come back as a user's class has them."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import codecl
from codecl.errors import ConfigError
from codecl.space.wrapped import copied, unwrapped, weight_norms, without_weight_norms
from tests.problems import tasks

SMALL = {"train": {"epochs": 1, "batch_size": 4, "lr": 0.1}, "growth": {"threshold": 0.9, "images": 12}}


def old_weight_norm(part, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch calls it old, too
        return nn.utils.weight_norm(part, **options)


KINDS = {"parametrization": parametrizations.weight_norm, "hook": old_weight_norm}


def net(kind, dim=0):
    torch.manual_seed(0)
    conv, inner = KINDS[kind](nn.Conv2d(2, 4, 3), dim=dim), KINDS[kind](nn.Linear(64, 6))
    return nn.Sequential(conv, nn.Tanh(), nn.Flatten(), inner, nn.Tanh(), KINDS[kind](nn.Linear(6, 3)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [0, 1, None])
def test_the_effective_weight_goes_out_and_comes_back(kind, dim):
    module, images = net(kind, dim), torch.randn(5, 2, 6, 6)
    expected = module(images)
    plain = without_weight_norms(copied(module))
    weights = {name for name, _ in plain.named_parameters() if not name.endswith("bias")}
    assert weights == {"0.weight", "3.weight", "5.weight"}
    torch.testing.assert_close(module(images), expected)  # it is as it was
    torch.testing.assert_close(plain(images), expected)
    with torch.no_grad():
        for value in plain.parameters():
            value.add_(torch.randn_like(value))
    for name, normed in weight_norms(module).items():
        normed.put(plain.get_parameter(name).detach())
    for number in (0, 3, 5):
        module[number].bias.data = plain[number].bias.data
    torch.testing.assert_close(module(images), plain(images))


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_normed_model_trains_and_fits_its_own_class_again(kind, tmp_path):
    module = net(kind)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    stream = [*tasks(1), *tasks(2, classes=2)[1:]]
    result = codecl.fit(module, stream, out=tmp_path, own={"directions": 1}, **SMALL)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert list(result.metrics["free_by_task"][0]) == ["0", "3"]
    for number, task in enumerate(stream):
        model = result.model(number)
        assert list(model.state_dict()) == list(before)
        accuracy = (model(task.test[0].float()).argmax(1) == task.test[1]).double().mean()
        assert float(accuracy) * 100 == pytest.approx(result.metrics["accuracy_matrix"][1][number])
    fresh = net(kind)
    fresh.load_state_dict(result.model(0).state_dict())
    images = stream[0].test[0].float()
    torch.testing.assert_close(fresh(images), result.model(0)(images))


def test_half_a_weight_norm_cannot_train():
    module = net("parametrization")
    module[0].parametrizations.weight.original0.requires_grad_(False)
    with pytest.raises(ConfigError, match=r"weight norm of '0.weight' only one part") as caught:
        without_weight_norms(module)
    assert "\n" not in str(caught.value)


def flat():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(72, 6), nn.Tanh(), nn.Linear(6, 3))


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_wrappers_are_taken_off(tmp_path):
    plain = codecl.fit(flat(), tasks(2), out=tmp_path, **SMALL)
    assert not codecl.fit(nn.DataParallel(flat()), tasks(2), out=tmp_path, **SMALL).trained  # it is the same run
    for wrap in (nn.DataParallel, torch.compile, lambda module: nn.DataParallel(torch.compile(module))):
        wrapped = wrap(flat())
        assert type(unwrapped(wrapped)) is nn.Sequential
        again = codecl.fit(wrapped, tasks(2), out=tmp_path, **SMALL)
        assert again.metrics["accuracy_matrix"] == plain.metrics["accuracy_matrix"]
        assert list(again.model(0).state_dict()) == list(flat().state_dict())
        assert list(codecl.load(plain.folder, 0, wrapped).state_dict()) == list(flat().state_dict())
