"""What a method decides: what is free, how a step changes the coordinates, what is remembered when a task ends.

Everything else (batches, gossip, agreement, flood, digests, metrics) is the loop's, the same for all methods.
Shapes: A agents of this process, D coordinates of an agent.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from codecl.data.inputs import Inputs
from codecl.data.task import TaskData
from codecl.exchange import Exchange
from codecl.space.growth import GrowthConfig
from codecl.space.layers import Layer
from codecl.space.layout import Layout

LR = float | Tensor  # η: a number, or on the device where a step is captured and replayed
Memory = Mapping[str, Tensor]  # what a method keeps between tasks; flooded, so equal at every agent, bit for bit
Gradient = Callable[[Tensor, Inputs, Tensor], tuple[Tensor, Tensor]]  # coords, images, labels -> loss [A], [A, D]


class TaskEnd(NamedTuple):
    """What a method may look at when a task ends, after agreement and before the flood."""

    data: TaskData
    module: nn.Module  # as given, for evaluation
    layout: Layout
    gradient: Gradient
    coords_AD: Tensor
    memory: Memory
    exchange: Exchange
    chosen: int  # the agent that floods
    batch_size: int
    growth: GrowthConfig
    norms: Mapping[str, Tensor] = {}

    @property
    def rows(self) -> dict[int, int]:
        """Agents of this process -> their rows."""
        return {agent: row for row, agent in enumerate(self.exchange.agents)}


class TaskSizes(NamedTuple):
    """What decides how much a task's end sends, known before anything trains."""

    layers: Sequence[Layer]
    free: Mapping[str, int]  # free directions of each layer while the task trained, summed over groups
    free_after: Mapping[str, int]
    body: int  # numbers that every task can change
    itemsize: int  # bytes of a number
    growth: GrowthConfig


class TaskEndSize(NamedTuple):
    """Bytes of one send along a tree at a task's end, beside weights, heads and norms."""

    reduce_bytes: int  # up the tree
    memory_bytes: int  # of the flood: what the method remembers


class Method(BaseModel, ABC):
    """A frozen record whose fields are the method's options, with four verbs (and two that most leave as they are)."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    grows: ClassVar[bool] = False  # a core space from agents' images: each needs growth.min_images of them
    needs_gradient: ClassVar[bool] = False  # `step` counts in its units: other optimizers than sgd are refused
    looks_at_images: ClassVar[bool] = True  # `remember` does: privacy of gradients does not cover what it sends
    each_task_alone: ClassVar[bool] = False  # scored right after each task: an upper bound, not continual learning

    @abstractmethod
    def free(self, memory: Memory, layers: Sequence[Layer]) -> Mapping[str, Sequence[Tensor]]:
        """Layers that train in a part of their space: a basis [N, F] of it for each group, or the
        tokens [F] of a table. Others train whole."""

    def within(self, memory: Memory, layers: Sequence[Layer]) -> Mapping[str, Sequence[Tensor]]:
        """Layers whose gradient is projected, with a basis [N, F] of the space for each group."""
        return self.free(memory, layers)

    @abstractmethod
    def prepare(self, memory: Memory, layout: Layout) -> Any:
        """What `step` needs all through the task: made once, handed to each step."""

    @abstractmethod
    def step(self, task: Any, base_AD: Tensor, coords_AD: Tensor, grad_AD: Tensor, lr: LR) -> Tensor:
        """New coordinates [A, D]: `base` and a local step from it. The gradient was taken at `coords`; `base` is the
        mixed coordinates (the paper's order) or `coords` itself (adapt-then-combine). With momentum, or adamw, `grad`
        is the direction that the optimizer makes of it."""

    @abstractmethod
    def remember(self, end: TaskEnd) -> Memory | None:
        """The memory after this task, at the chosen agent; None where it does not live."""

    def objection(self, end: TaskEnd, agent: int, memory: Memory) -> str:
        """What an agent of this process has against what another remembered; empty: nothing."""
        return ""

    def task_end_size(self, sizes: TaskSizes) -> TaskEndSize | None:
        """What `remember` sends and gives, for `codecl plan`. None: not known before a run."""
        return None
