"""What a run needs and what it holds: settings of training, the state between tasks, the place inside one.

Shapes: A agents of this process, E what a step hands to the next.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor, nn

from codecl.agents import Running
from codecl.exchange import Exchange
from codecl.growth import GrowthConfig
from codecl.layers import Survey
from codecl.layout import Parameters
from codecl.methods import Method
from codecl.precision import Precision
from codecl.stream import TaskData
from codecl.topology import Topology


class TrainConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    epochs: int = Field(10, gt=0, description="of each task")
    batch: int = Field(10, gt=0, description="images of an agent's batch")
    rate: float = Field(0.1, gt=0, allow_inf_nan=False, description="η, the learning rate, at a task's start")
    milestones: tuple[float, ...] = Field((0.5, 0.75), description="parts of the epochs after which η is multiplied")
    decay: float = Field(0.1, gt=0, le=1, description="what η is multiplied with at a milestone")
    schedule: Literal["steps", "cosine"] = Field("steps", description="η falls at milestones, or along a cosine to 0")
    warmup: int = Field(0, ge=0, description="epochs of each task in which η rises to its full value")
    momentum: float = Field(0, ge=0, lt=1, description="β, in coordinates: momentum on projected gradients")
    smoothing: float = Field(0, ge=0, lt=1, description="of labels: the part of a label spread over all classes")
    order: Literal["paper", "adapt-then-combine"] = Field("paper", description="mix before or after the local step")
    running: Running | Literal["auto"] = Field(
        "auto",
        description="how agents share a device: stacked, streams or loop; auto: what is fastest, measured once",
    )
    precision: Precision = Field("tf32", description="of products while training: highest, tf32 (on a GPU) or bf16")
    test_batch: int = Field(64, gt=0, description="images of a test batch")
    norm_statistics: Literal["batch", "task"] = Field(
        "batch", description="of batch norms when predicting: the batch's own, or the task's, measured when it ends"
    )

    @field_validator("milestones")
    @classmethod
    def _inside(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if any(not 0 < part < 1 for part in value):
            raise ValueError("parts of the epochs lie between 0 and 1")
        return value

    def rate_at(self, epoch: int) -> float:
        """η of this epoch, reset for each task. `steps`, as in the paper: ÷10 after 50 % and 75 % of the epochs."""
        rate = self.rate * min(1.0, (epoch + 1) / (self.warmup + 1))
        if self.schedule == "cosine":
            return rate * (1 + math.cos(math.pi * epoch / self.epochs)) / 2
        return rate * self.decay ** sum(epoch >= part * self.epochs for part in self.milestones)


class State(NamedTuple):
    """What every agent holds between tasks, equal bit for bit."""

    parameters: Parameters  # all but heads
    heads: tuple[Parameters, ...]  # of finished tasks
    memory: Mapping[str, Tensor]  # the method's
    norms: tuple[Parameters, ...] = ()  # statistics of batch norms, of finished tasks; empty: the batch's own


class Middle(NamedTuple):
    """Where a run stands inside a task."""

    epoch: int  # the next one
    carry_AE: Tensor
    step: int = 0  # of that epoch, the next one
    agreed: bool = False  # all epochs are over, and agreement too


class Setup(NamedTuple):
    """Everything that a run needs, built and checked."""

    module: nn.Module
    survey: Survey
    tasks: Sequence[TaskData]
    heads: Sequence[Parameters]  # initial values, a task each
    topology: Topology
    exchange: Exchange
    method: Method
    train: TrainConfig
    growth: GrowthConfig
    seed: int
    running: Running
