"""Plain decentralized SGD: nothing is protected. `stl` is the same run, scored as an upper bound."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor

from codecl.methods.base import LR, Memory, Method, TaskEnd, TaskEndSize, TaskSizes
from codecl.space.layers import Layer
from codecl.space.layout import Layout


class Dpsgd(Method):
    """DPSGD: mix, then a gradient step on the whole model. Forgets."""

    looks_at_images: ClassVar[bool] = False

    def free(self, memory: Memory, layers: Sequence[Layer]) -> Mapping[str, Sequence[Tensor]]:
        return {}

    def prepare(self, memory: Memory, layout: Layout) -> None:
        return None

    def step(self, task: None, base_AD: Tensor, coords_AD: Tensor, grad_AD: Tensor, lr: LR) -> Tensor:
        return base_AD - lr * grad_AD

    def remember(self, end: TaskEnd) -> Memory | None:
        return {} if end.chosen in end.rows else None

    def task_end_size(self, sizes: TaskSizes) -> TaskEndSize:
        return TaskEndSize(0, 0)


class Stl(Dpsgd):
    """Single-task learning, sequential: DPSGD, each task scored right after it was learned (an upper bound)."""

    each_task_alone: ClassVar[bool] = True
