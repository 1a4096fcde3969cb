"""CoDeC: training and messages live in the coordinates of the free space (Algorithm 1, in coordinates)."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor

from codecl.methods.base import LR, Memory, Method, TaskEnd, TaskEndSize, TaskSizes
from codecl.methods.subspace import grown, grown_size, objection
from codecl.space.growth import bases_of
from codecl.space.layers import Layer
from codecl.space.layout import Layout


class Codec(Method):
    """CoDeC: learn in the free space that earlier tasks left, send its coordinates only."""

    grows: ClassVar[bool] = True

    def free(self, memory: Memory, layers: Sequence[Layer]) -> Mapping[str, Sequence[Tensor]]:
        return bases_of(memory, layers)

    def prepare(self, memory: Memory, layout: Layout) -> None:
        return None

    def step(self, task: None, base_AD: Tensor, coords_AD: Tensor, grad_AD: Tensor, lr: LR) -> Tensor:
        """C ← mix(C) - η ∂loss/∂C (lines 4-15): the gradient by coordinates is the projected gradient."""
        return base_AD - lr * grad_AD

    def remember(self, end: TaskEnd) -> Memory | None:
        return grown(end)

    def objection(self, end: TaskEnd, agent: int, memory: Memory) -> str:
        return objection(end, agent, memory)

    def task_end_size(self, sizes: TaskSizes) -> TaskEndSize:
        return grown_size(sizes)
