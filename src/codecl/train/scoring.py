"""What a model gives for images that it does not train on, batch by batch: its accuracy on test images, its loss on
held-out ones."""

import time
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from codecl.data.inputs import Batch, Inputs, count, in_batches, stacked, tensors_of
from codecl.space import norms
from codecl.space.calling import call
from codecl.space.layout import Parameters
from codecl.space.tracing import evaluating
from codecl.train.events import Evaluated
from codecl.train.state import Setup, State

TOGETHER = 1024  # images in one go, where a GPU looks at many batches at once


def evaluate(setup: Setup, state: State, task: int) -> Evaluated:
    """Accuracy of the flooded model on every task so far."""
    began = time.perf_counter()
    scores = []
    for data, kept in zip(setup.tasks, state.kept, strict=False):
        batch_size = setup.train.test_batch_size
        with norms.normalising(setup.module, kept.statistics):
            parameters = kept.model(setup.roles.layers, state.parameters)
            given, labels = outputs_of(setup.module, parameters, data.test_images(batch_size), batch_size)
        scores.append(100 * (given.argmax(-1) == labels).sum().item() / len(labels))
    return Evaluated(task=task, accuracy=scores, seconds=time.perf_counter() - began, state=state)


def loss(module: nn.Module, parameters: Parameters, parts: Iterable[Batch], batch_size: int) -> float:
    """Mean cross entropy of the module with these parameters, over all images of the parts."""
    return float(functional.cross_entropy(*outputs_of(module, parameters, parts, batch_size)))


def outputs_of(
    module: nn.Module, parameters: Parameters, parts: Iterable[Batch], batch_size: int
) -> tuple[Tensor, Tensor]:
    """(what the module gives for all images of the parts, their labels); of images, one part at a time is held."""
    pairs = [(outputs(module, parameters, images, batch_size), labels) for images, labels in parts]
    given, labels = (torch.cat(column) for column in zip(*pairs, strict=True))
    return given, labels


@torch.no_grad()
def outputs(module: nn.Module, parameters: Parameters, images: Inputs, batch_size: int) -> Tensor:
    """What the module with these parameters gives for images, each batch normalised by itself."""

    def given(images_B: Inputs) -> Tensor:
        return call(module, parameters, images_B)

    with evaluating(module):
        batches = in_batches(images, batch_size)
        first = together(given, batches) if tensors_of(images)[0].is_cuda else []
        return torch.cat([*first, *map(given, batches[len(first) :])])


def together(given: Callable[[Inputs], Tensor], batches: Sequence[Inputs]) -> list[Tensor]:
    """What `given` gives for the batches of one size in front, many in one go: a GPU has little to do in a small one.
    Nothing where the model cannot be stacked."""
    size = count(batches[0])
    equal = [batch for batch in batches if count(batch) == size]
    many = max(1, TOGETHER // size)
    found: list[Tensor] = []
    try:
        for start in range(0, len(equal), many):
            found += torch.vmap(given)(stacked(equal[start : start + many])).unbind()
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        return []
    return found
