"""Images of which nobody says the task: the class with the largest output of all tasks' heads, each head on its own
task's model. The paper's setting knows the task; this is what is left where it is not known.

Shapes: B images, C classes of all tasks together.
"""

from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

from codecl.data.task import TaskData
from codecl.space import norms
from codecl.train.scoring import outputs, outputs_of
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
    groups = _alike(setup, state, here)
    right = []
    for first, data in zip(firsts, here, strict=True):
        given_BC, labels = _of_all_heads(setup, state, here, data, groups)
        right.append((given_BC.argmax(1) == first + labels).double().mean())
    return 100 * float(torch.stack(right).mean())


def _alike(setup: Setup, state: State, tasks: Sequence[TaskData]) -> list[list[int]]:
    """Tasks (from 0) in groups whose models differ in their heads alone: one look is enough for all heads of a group.
    A group a task where the module does more than hand out what its head gives."""
    groups: dict[object, list[int]] = {}
    for number, (task, kept) in enumerate(zip(tasks, state.kept, strict=True)):
        head_alone = not kept.statistics and not kept.directions and {*kept.parameters} == {*setup.roles.head}
        seen_as = task.task.mean, task.task.std, task.describe().stored
        groups.setdefault(seen_as if head_alone else number, []).append(number)
    together = max(groups.values(), key=len)
    some = tasks[together[0]].first(min(2, tasks[together[0]].train.size))
    with suppress(Exception):  # a user's module may count on the number of its head's outputs, and raise anything
        one, side_by_side = (
            outputs(setup.module, _parameters(setup, state, group), some, 2) for group in (together[:1], together)
        )
        is_head = side_by_side.shape[1] == sum(_rows(setup, state, together))
        if is_head and torch.allclose(one, side_by_side[:, : one.shape[1]], rtol=1e-4, atol=1e-5):
            return [*groups.values()]
    return [[number] for number in range(len(tasks))]


def _rows(setup: Setup, state: State, group: Sequence[int]) -> list[int]:
    """Outputs of the heads of these tasks."""
    return [len(state.kept[number].parameters[setup.roles.head[0]]) for number in group]


def _parameters(setup: Setup, state: State, group: Sequence[int]) -> dict[str, Tensor]:
    """Of the model of these tasks, their heads side by side."""
    kept = [state.kept[number] for number in group]
    heads = {name: torch.cat([one.parameters[name] for one in kept]) for name in setup.roles.head}
    return {**kept[0].model(setup.roles.layers, state.parameters), **heads}


def _of_all_heads(
    setup: Setup, state: State, tasks: Sequence[TaskData], asked: TaskData, groups: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor]:
    """(what the models of all tasks give for the test images of one, side by side; their labels). Each model sees the
    images as it was trained to."""
    batch_size, by_task = setup.train.test_batch_size, dict[int, Tensor]()
    for group in groups:
        with norms.normalising(setup.module, state.kept[group[0]].statistics):
            parts = asked.test_images(batch_size, seen_as=tasks[group[0]])
            given, labels = outputs_of(setup.module, _parameters(setup, state, group), parts, batch_size)
        for number, given_BO in zip(group, given.split(_rows(setup, state, group), 1), strict=True):
            by_task[number] = given_BO[:, : tasks[number].classes]
    return torch.cat([by_task[number] for number in range(len(tasks))], 1), labels
