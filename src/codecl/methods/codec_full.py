"""CoDeC with full communication: the gradient is projected, messages are whole weights. The paper's own baseline."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from codecl.methods.base import LR, Memory, Method, TaskEnd, TaskEndSize, TaskSizes
from codecl.methods.subspace import grown, grown_size, objection
from codecl.space import chart as charts
from codecl.space.growth import bases_of
from codecl.space.layers import Layer
from codecl.space.layout import Layout

Charts = Sequence[tuple[int, charts.Chart | None]]  # of each slot: its size, and where to project its gradient


class CodecFull(Method):
    """CoDeC without compression: project every gradient, send whole weights."""

    grows: ClassVar[bool] = True

    def free(self, memory: Memory, layers: Sequence[Layer]) -> Mapping[str, Sequence[Tensor]]:
        return {}

    def within(self, memory: Memory, layers: Sequence[Layer]) -> Mapping[str, Sequence[Tensor]]:
        return bases_of(memory, layers)

    def prepare(self, memory: Memory, layout: Layout) -> Charts:
        bases = self.within(memory, [slot.layer for slot in layout.slots if slot.layer])
        return [
            (slot.size, charts.chart(slot.chart.anchor_GON, bases[slot.name]) if slot.name in bases else None)
            for slot in layout.slots
        ]

    def step(self, task: Charts, base_AD: Tensor, coords_AD: Tensor, grad_AD: Tensor, lr: LR) -> Tensor:
        """x ← mix(x) - η g O Oᵀ: line 6 for each layer, then lines 7 and 8."""
        parts = grad_AD.split([size for size, _ in task], -1)
        return base_AD - lr * torch.cat(
            [_project(part, chart) for part, (_, chart) in zip(parts, task, strict=True)], -1
        )

    def remember(self, end: TaskEnd) -> Memory | None:
        return grown(end)

    def objection(self, end: TaskEnd, agent: int, memory: Memory) -> str:
        return objection(end, agent, memory)

    def task_end_size(self, sizes: TaskSizes) -> TaskEndSize:
        return grown_size(sizes)


def _project(grad_AD: Tensor, chart: charts.Chart | None) -> Tensor:
    if chart is None:
        return grad_AD
    return charts.project(grad_AD.view(-1, *chart.anchor_GON.shape), chart).flatten(1)
