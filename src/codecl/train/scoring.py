"""What a model gives for images that it does not train on, batch by batch: its accuracy on test images, its loss on
held-out ones."""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from codecl.data.task import in_batches
from codecl.space import norms
from codecl.space.calling import call
from codecl.space.layout import Parameters
from codecl.space.tracing import evaluating
from codecl.train.events import Evaluated
from codecl.train.state import Setup, State

TOGETHER = 1024  # images in one go, where a GPU looks at many batches at once


def evaluate(setup: Setup, state: State, task: int) -> Evaluated:
    """Accuracy of the flooded model on every task so far; None: of a past one whose test images are not here."""
    began = time.perf_counter()
    scores: list[float | None] = []
    for data, kept in zip(setup.all_tasks, state.kept, strict=False):
        test = data.test_images()
        if test is None:
            scores.append(None)
            continue
        images, labels = test
        with norms.normalising(setup.module, kept.statistics):
            parameters = kept.model(setup.roles.layers, state.parameters)
            given = outputs(setup.module, parameters, images, setup.train.test_batch_size)
        scores.append(100 * (given.argmax(-1) == labels).sum().item() / len(labels))
    return Evaluated(task=task, accuracy=scores, seconds=time.perf_counter() - began, state=state)


def loss(module: nn.Module, parameters: Parameters, images: Tensor, labels: Tensor, batch_size: int) -> float:
    """Mean cross entropy of the module with these parameters."""
    return float(functional.cross_entropy(outputs(module, parameters, images, batch_size), labels))


@torch.no_grad()
def outputs(module: nn.Module, parameters: Parameters, images: Tensor, batch_size: int) -> Tensor:
    """What the module with these parameters gives for images, each batch normalised by itself."""

    def given(images_B: Tensor) -> Tensor:
        return call(module, parameters, images_B)

    with evaluating(module):
        batches = in_batches(images, batch_size)
        first = together(given, batches) if images.is_cuda else []
        return torch.cat([*first, *map(given, batches[len(first) :])])


def together(given: Callable[[Tensor], Tensor], batches: Sequence[Tensor]) -> list[Tensor]:
    """What `given` gives for the batches of one size in front, many in one go: a GPU has little to do in a small one.
    Nothing where the model cannot be stacked."""
    size = len(batches[0])
    equal = [batch for batch in batches if len(batch) == size]
    many = max(1, TOGETHER // size)
    found: list[Tensor] = []
    try:
        for start in range(0, len(equal), many):
            found += torch.vmap(given)(torch.stack(equal[start : start + many])).unbind()
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        return []
    return found
