"""Tasks that were learned before: their training images are not needed any more."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from codecl.data.forms import collate_of, loaded
from codecl.data.inputs import Batch
from codecl.data.task import Task, TaskData, TaskInfo, TaskOptions, about_of
from codecl.errors import ConfigError


@dataclass(frozen=True)
class PastTask:
    """What is known of a task that was learned before, with its test images where they are here."""

    index: int
    about: TaskInfo
    test: TaskData | None = None

    def describe(self) -> TaskInfo:
        return self.about

    def test_images(self, batch: int) -> Iterator[Batch] | None:
        """As TaskData gives them; None: they are not here, and the task is not scored again."""
        return None if self.test is None else self.test.test_images(batch)


def past_task(index: int, about: TaskInfo, given: Any, options: TaskOptions) -> PastTask:
    """`given`: the task as it was, or its test data alone; None: neither is here. Law: it is scored as in the run that
    trained it."""
    if given is None:
        return PastTask(index, about)
    if options.config.validation and not isinstance(given, Task):
        raise ConfigError(
            f"test_again: task {about.name!r} is scored on a part of its training images (data.validation); give the"
            " whole codecl.Task"
        )
    nothing = (torch.arange(0),) * options.agents  # is dealt to agents: they do not train on it again
    options = options._replace(partition=nothing)
    known = Task(given, given, about.classes, about.name, about.mean, about.std, about.labels, about.original)
    task = given if isinstance(given, Task) else known
    if options.config.validation:
        test: Any = TaskData(index, task, options).test
    else:
        config, split = options.config, about_of(index, task, "test", options.targets)
        test = loaded(task.test, split, config.loading, config.workers)
    task = task._replace(train=test, test=test, collate=task.collate or collate_of(task.test))
    plain = options.config.model_copy(update={"augment": "none", "held_out": 0.0, "validation": 0.0})
    data = TaskData(index, task, options._replace(config=plain))
    pairs = zip(about, data.describe(), strict=True)
    other = [f"{field}: {before}, {now}" for (field, before), (_, now) in pairs if before != now]
    if other:
        raise ConfigError(
            f"tasks: the run has learned others, its task {index + 1} is another ({'; '.join(other[:2])})"
        )
    return PastTask(index, about, data)
