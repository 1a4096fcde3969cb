"""Images of which nobody says the task: the class with the largest output of all tasks' heads, each head on its own
task's model. The paper's setting knows the task; this is what is left where it is not known.

Shapes: B images, C classes of all tasks together.
"""

import torch
from torch import Tensor

from codecl.data.task import TaskData
from codecl.space import norms
from codecl.train.scoring import outputs_of
from codecl.train.state import Setup, State


def accuracy(setup: Setup, state: State) -> float | None:
    """Mean accuracy over tasks, in percent, when the task is not told; None where that has no meaning (one task, one
    head for all, no classes, tasks alone) or a task's test images are not here."""
    tasks = [data.test if not isinstance(data, TaskData) else data for data in setup.all_tasks]
    here = [data for data in tasks if data is not None]
    if len(tasks) < 2 or len(here) < len(tasks) or not setup.roles.head or setup.method.each_task_alone:
        return None
    if not all(data.has_classes and data.shape == here[0].shape for data in here) or setup.train.score != "accuracy":
        return None
    firsts = [sum(data.classes for data in here[:number]) for number in range(len(here))]
    right = []
    for first, data in zip(firsts, here, strict=True):
        given_BC, labels = _of_all_heads(setup, state, here, data)
        right.append((given_BC.argmax(1) == first + labels).double().mean())
    return 100 * float(torch.stack(right).mean())


def _of_all_heads(setup: Setup, state: State, tasks: list[TaskData], asked: TaskData) -> tuple[Tensor, Tensor]:
    """(what the models of all tasks give for the test images of one, side by side; their labels). Each model sees the
    images as it was trained to."""
    batch_size, outputs = setup.train.test_batch_size, []
    for task, kept in zip(tasks, state.kept, strict=True):
        parameters = kept.model(setup.roles.layers, state.parameters)
        with norms.normalising(setup.module, kept.statistics):
            parts = asked.test_images(batch_size, seen_as=task)
            given, labels = outputs_of(setup.module, parameters, parts, batch_size)
        outputs.append(given[:, : task.classes])
    return torch.cat(outputs, 1), labels
