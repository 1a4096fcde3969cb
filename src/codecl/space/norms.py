"""Statistics of batch norms, measured on a task's training images: with them a prediction does not depend on the other
images of its batch, and one image alone can be classified.

Shapes: C channels of a norm.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from math import gcd

import torch
from torch import Tensor, nn

from codecl.data.inputs import Inputs
from codecl.models import GROUPS
from codecl.space.calling import call
from codecl.space.layout import Parameters
from codecl.space.tracing import evaluating

PASSES = 2  # the first normalises by the batch; the second by what the first new, so that agents see alike
MEAN, VARIANCE = "running_mean", "running_var"  # PyTorch's names: a loaded module is an ordinary one
MOMENTS = "codecl_moments"  # of a norm whose statistics agents gossip: mean and mean square [2, C], as coordinates


def batch_norms(module: nn.Module) -> dict[str, nn.Module]:
    """The parts that mix the images of a batch."""
    return {name: norm for name, norm in module.named_modules() if isinstance(norm, nn.modules.batchnorm._BatchNorm)}


def with_group_norms(module: nn.Module) -> nn.Module:
    """Batch norms become group norms, of the same parameters: each image is normalised by itself, in up to eight
    groups of channels. Changes the module in place, and gives it. Law: of itself, it is the same."""
    for name, norm in batch_norms(module).items():
        features = int(getattr(norm, "num_features", 0))
        group = nn.GroupNorm(gcd(GROUPS, features), features, float(getattr(norm, "eps", 1e-5)), affine=False)
        group.affine = bool(getattr(norm, "affine", False))
        group.weight, group.bias = norm.weight, norm.bias  # type: ignore[assignment]
        group.train(norm.training)
        if not name:
            return group
        owner, _, last = name.rpartition(".")
        setattr(module.get_submodule(owner), last, group)
    return module


def statistics_size(module: nn.Module) -> int:
    """How many numbers the statistics of all batch norms are."""
    return sum(2 * int(getattr(norm, "num_features", 0)) for norm in batch_norms(module).values())


@contextmanager
def normalising(module: nn.Module, statistics: Mapping[str, Tensor]) -> Iterator[None]:
    """In here, in evaluation mode, norms use these statistics; without any, those of their batch."""
    put(module, statistics)
    try:
        yield
    finally:
        for name in statistics:
            owner, _, what = name.rpartition(".")
            setattr(module.get_submodule(owner), what, None)


def depends_on_batch(module: nn.Module) -> bool:
    """Whether there are batch norms without statistics of their own, so that images of a batch change each other."""
    return any(getattr(norm, MEAN) is None for norm in batch_norms(module).values())


def put(module: nn.Module, statistics: Mapping[str, Tensor]) -> None:
    """Give the module's norms these statistics."""
    for name, value in statistics.items():
        owner, _, what = name.rpartition(".")
        setattr(module.get_submodule(owner), what, value)


def unit_statistics(features: Mapping[str, int], like: Tensor) -> dict[str, Tensor]:
    """Mean 0 and variance 1 for norms with so many features: they leave their inputs as they are."""
    zeros = {f"{name}.{MEAN}".lstrip("."): like.new_zeros(count) for name, count in features.items()}
    return zeros | {f"{name}.{VARIANCE}".lstrip("."): like.new_ones(count) for name, count in features.items()}


def is_statistic(name: str) -> bool:
    """Whether a saved tensor is one of these, not a parameter."""
    return name.rpartition(".")[2] in (MEAN, VARIANCE)


def measure(
    module: nn.Module, parameters: Parameters, batches: Iterable[Inputs], statistics: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Of each norm [3, C] in float64: how many values came in, their sum, and the sum of their squares."""
    sums: dict[str, Tensor] = {}

    def add(name: str, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        values = inputs[0].double().movedim(1, 0).flatten(1)
        count = torch.full_like(values[:, 0], values.shape[1])
        new = torch.stack([count, values.sum(1), values.square().sum(1)])
        sums[name] = sums[name] + new if name in sums else new

    handles = [norm.register_forward_pre_hook(partial(add, name)) for name, norm in batch_norms(module).items()]
    try:
        with torch.no_grad(), evaluating(module), normalising(module, statistics):
            for images in batches:
                call(module, parameters, images)
    finally:
        for handle in handles:
            handle.remove()
    return sums


def statistics_of(sums: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Mean and variance of each norm's inputs. Law: those of all values that were summed, wherever they were."""
    out = {}
    for name, (count, total, squares) in sums.items():
        mean = total / count
        out[f"{name}.{MEAN}".lstrip(".")] = mean.to(dtype)
        out[f"{name}.{VARIANCE}".lstrip(".")] = (squares / count - mean.square()).clamp(min=0).to(dtype)
    return out


def moments_of(module: nn.Module, statistics: Mapping[str, Tensor], like: Tensor) -> dict[str, Tensor]:
    """Of each norm, the mean and mean square that these statistics stand for; without any, of mean 0 and variance 1."""
    features = {name: int(getattr(norm, "num_features", 0)) for name, norm in batch_norms(module).items()}
    known, out = {**unit_statistics(features, like), **statistics}, {}
    for name in features:
        mean, variance = (known[f"{name}.{what}".lstrip(".")] for what in (MEAN, VARIANCE))
        out[f"{name}.{MOMENTS}".lstrip(".")] = torch.stack([mean, variance + mean.square()]).to(like)
    return out


def without_moments(parameters: Parameters) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(parameters, and the statistics that moments among them stand for). Law: undoes `moments_of`."""
    out, statistics = {}, {}
    for name, value in parameters.items():
        owner, _, what = name.rpartition(".")
        if what != MOMENTS:
            out[name] = value
            continue
        mean, square = value
        statistics[f"{owner}.{MEAN}".lstrip(".")] = mean.clone()
        statistics[f"{owner}.{VARIANCE}".lstrip(".")] = (square - mean.square()).clamp(min=0)
    return out, statistics
