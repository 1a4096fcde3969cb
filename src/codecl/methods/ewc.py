"""D-EWC, the paper's other baseline (Algorithm 2, with the square that its line 5 lacks)."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from codecl.methods.base import LR, Memory, Method, TaskEnd, TaskEndSize, TaskSizes
from codecl.space.layers import Layer
from codecl.space.layout import Layout

FISHER_EPOCH = -1  # the shuffle that Fisher information is measured on


class Pull(NamedTuple):
    """λF and where the penalty λ/2 F (x - x_old)² pulls to, as coordinates."""

    strength_D: Tensor
    old_D: Tensor


class DEwc(Method):
    """Elastic weight consolidation over gossip: weights that mattered are held by a penalty; whole messages."""

    needs_gradient: ClassVar[bool] = True  # the penalty's pull is added to it, and both are clipped

    penalty: float = Field(5000.0, ge=0, description="λ")
    penalty_step: Literal["clipped", "implicit"] = Field(
        "clipped", description="clipped: the paper's; implicit: stable"
    )
    clip: float = Field(100.0, gt=0, description="largest norm of an agent's gradient, for penalty_step: clipped")

    def free(self, memory: Memory, layers: Sequence[Layer]) -> Mapping[str, Sequence[Tensor]]:
        return {}

    def prepare(self, memory: Memory, layout: Layout) -> Pull:
        start_D = layout.start()
        fisher = [memory.get(slot.name, piece.new_zeros(slot.size)) for slot, piece in layout.pieces(start_D)]
        return Pull(self.penalty * torch.cat(fisher), start_D)

    def step(self, task: Pull, base_AD: Tensor, coords_AD: Tensor, grad_AD: Tensor, lr: LR) -> Tensor:
        """clipped: x ← mix(x) - η clip(g + λF(x - x_old)); implicit: x ← (mix(x) - ηg + ηλF x_old) / (1 + ηλF)."""
        if self.penalty_step == "implicit":
            return (base_AD - lr * grad_AD + lr * task.strength_D * task.old_D) / (1 + lr * task.strength_D)
        pulled_AD = grad_AD + task.strength_D * (coords_AD - task.old_D)
        norm_A1 = pulled_AD.norm(dim=1, keepdim=True)
        return base_AD - lr * pulled_AD * (self.clip / norm_A1.clamp(min=self.clip))

    def remember(self, end: TaskEnd) -> Memory | None:
        """Mean over batches of batch size × squared gradient, over agents, then over tasks as a running mean."""
        fisher_AD, batches = torch.zeros_like(end.coords_AD), 0
        for batch in end.data.epoch(FISHER_EPOCH, end.exchange.agents, end.batch_size):
            _, grad_AD = end.gradient(end.coords_AD, *batch)
            fisher_AD += batch.labels_AB.shape[1] * grad_AD.square()
            batches += 1
        parts = [_body(end.layout, row / (batches * end.data.agents)) for row in fisher_AD]
        reduced = end.exchange.reduce(end.chosen, parts)
        if reduced is None:
            return None
        seen = end.data.index
        return {name: (end.memory.get(name, new) * seen + new) / (seen + 1) for name, new in reduced.items()}

    def task_end_size(self, sizes: TaskSizes) -> TaskEndSize:
        return TaskEndSize(sizes.body * sizes.itemsize, sizes.body * sizes.itemsize)


def _body(layout: Layout, row_D: Tensor) -> dict[str, Tensor]:
    """What the next task can change as well: not this task's head, not norms."""
    return {slot.name: piece for slot, piece in layout.pieces(row_D) if slot.kind in ("layer", "dense")}
