"""What a task's images are to be given: a class, or numbers. What fits the loss is checked before anything trains."""

from typing import Literal

import torch
from torch import Tensor

from codecl.errors import DataError

# classes: one an image; numbers: one for each output; labels: the same, from 0 to 1; any: a user's loss knows
Targets = Literal["classes", "numbers", "labels", "any"]


def checked_numbers(what: str, labels: Tensor, outputs: int, targets: Targets) -> Tensor:
    """Targets that are finite and fit so many outputs; whole numbers as int64. `what` they are, in the error."""
    if not bool(labels.isfinite().all()):
        raise DataError(f"{what} labels hold NaN or infinity")
    if targets != "any":
        wide = labels.shape[1:].numel() if labels.ndim <= 2 else 0
        if wide != outputs:
            wanted = f"[{len(labels)}, {outputs}]" + (f" or [{len(labels)}]" if outputs == 1 else "")
            raise DataError(
                f"{what} labels have shape {list(labels.shape)}, but the task has {outputs} outputs (classes); it"
                f" should be {wanted}"
            )
    if targets == "labels" and bool(((labels < 0) | (labels > 1)).any()):
        raise DataError(f"{what} labels go from {float(labels.min()):g} to {float(labels.max()):g}; bce takes 0 to 1")
    return labels if labels.is_floating_point() else labels.long()


def are_classes(labels: Tensor, classes: int, targets: Targets) -> bool:
    """Whether each image has one class: always where the loss needs it; with a user's loss, where they look so."""
    if targets != "any":
        return targets == "classes"
    if labels.ndim != 1 or labels.dtype != torch.int64 or classes < 2:
        return False
    return bool(((labels >= 0) & (labels < classes)).all())
