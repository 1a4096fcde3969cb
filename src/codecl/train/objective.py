"""What is learned, and how it is scored: functions of outputs and targets, by name or a user's own.

A loss is a mean over the batch; a score is of all test images of a task, and higher is better.
Shapes: B images of a batch, K outputs of a head. Outputs are [B, K]; targets are classes [B], or numbers [B] or [B, K].
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from codecl.data.targets import Targets
from codecl.errors import RunFailed
from codecl.registry import lookup, reason

if TYPE_CHECKING:
    from codecl.train.config import TrainConfig

Loss = Callable[[Tensor, Tensor], Tensor]
Score = Callable[[Tensor, Tensor], float]
TINY = 1e-30  # a sum of squares below it is none


class LossFailed(RunFailed, RuntimeError):
    """A user's loss failed. What cannot be stacked or captured may still run: the loop catches RuntimeError."""


def _like(outputs: Tensor, targets: Tensor) -> Tensor:
    """Targets [B] or [B, K] as numbers [B, K]."""
    return (targets.unsqueeze(-1) if targets.ndim < outputs.ndim else targets).to(outputs.dtype)


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.mse_loss(outputs, _like(outputs, targets))


def bce(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of several labels an image, each there or not; outputs are logits."""
    return functional.binary_cross_entropy_with_logits(outputs, _like(outputs, targets))


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Images whose class is right, in percent."""
    return 100 * (outputs.argmax(-1) == targets).sum().item() / len(targets)


def r2(outputs: Tensor, targets: Tensor) -> float:
    """1 - (squared error / squared distance to the mean), a mean over outputs: 1 is perfect, 0 is as the mean."""
    wanted = _like(outputs, targets)
    error_K = (wanted - outputs).square().sum(0)
    spread_K = (wanted - wanted.mean(0)).square().sum(0)
    return float((1 - error_K / spread_K.clamp(min=TINY)).mean())


def negative_mse(outputs: Tensor, targets: Tensor) -> float:
    return -float(mse(outputs, targets))


def label_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Of several labels an image, those that are rightly there or not, in percent; outputs are logits."""
    return 100 * float(((outputs > 0) == (_like(outputs, targets) > 0.5)).double().mean())


def f1(outputs: Tensor, targets: Tensor) -> float:
    """2 TP / (2 TP + FP + FN) of all labels of all images together; outputs are logits. 0 where there is none."""
    found, wanted = outputs > 0, _like(outputs, targets) > 0.5
    right = int((found & wanted).sum())
    return 2 * right / max(1, int(found.sum()) + int(wanted.sum()))


LOSSES: dict[str, Loss] = {"cross-entropy": functional.cross_entropy, "mse": mse, "bce": bce}
SCORES: dict[str, Score] = {
    "accuracy": accuracy,
    "r2": r2,
    "negative-mse": negative_mse,
    "label-accuracy": label_accuracy,
    "f1": f1,
}
TARGETS: dict[str, Targets] = {"cross-entropy": "classes", "mse": "numbers", "bce": "labels"}  # of others: any
SCORE_OF = {"cross-entropy": "accuracy", "mse": "r2", "bce": "label-accuracy"}  # where none is named


def loss_of(config: "TrainConfig") -> Loss:
    """What agents minimise."""
    if config.label_smoothing:
        smoothing = config.label_smoothing
        return lambda outputs, targets: functional.cross_entropy(outputs, targets, label_smoothing=smoothing)
    return plain_loss(config)


def plain_loss(config: "TrainConfig") -> Loss:
    """The same, of labels as they are: for images that agents do not train on."""
    name, function = config.loss, lookup("train.loss", LOSSES, config.loss)
    if name in LOSSES:
        return LOSSES[name]

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        given = f"outputs {list(outputs.shape)} and targets {list(targets.shape)}"
        wanted = "it should give one number, the mean over the batch, as a tensor of shape []"
        try:
            value = function(outputs, targets)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a user's function may raise anything
            raise LossFailed(f"train.loss: {name} fails on {given} ({reason(error)}); {wanted}") from error
        if not isinstance(value, Tensor) or value.ndim:
            found = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise LossFailed(f"train.loss: {name} gives {found} for {given}; {wanted}")
        return value

    return loss


def score_of(config: "TrainConfig") -> Score:
    """How the outputs for all test images of a task are scored."""
    name, function = config.score, lookup("train.score", SCORES, config.score)
    if name in SCORES:
        return SCORES[name]

    def score(outputs: Tensor, targets: Tensor) -> float:
        given = f"outputs {list(outputs.shape)} and targets {list(targets.shape)}"
        try:
            value = function(outputs.cpu(), targets.cpu())
            found = float(value)
        except Exception as error:  # a user's function may raise anything
            line = f"train.score: {name} fails on {given} ({reason(error)}); it should give one number, the higher the"
            raise RunFailed(f"{line} better") from error
        if not math.isfinite(found):
            raise RunFailed(f"train.score: {name} gives {found} for {given}; it should give one finite number")
        return found

    return score
