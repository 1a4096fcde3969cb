"""What a run needs and what it holds: the state between tasks, the position inside one.

Shapes: A agents of this process, D coordinates of an agent, V numbers that its optimizer remembers, M that
messages do, W of what a schedule that watches the loss remembers, E of all four.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from codecl.data.past import PastTask
from codecl.data.task import TaskData
from codecl.exchange import Exchange
from codecl.exchange.gossip import Gossip
from codecl.exchange.messages import MessageConfig, Messages, gossip, messages
from codecl.exchange.robust import FaultsConfig
from codecl.exchange.topology import Topology
from codecl.methods import Method
from codecl.space.directions import FreeConfig, OwnConfig
from codecl.space.growth import GrowthConfig
from codecl.space.kept import Kept
from codecl.space.layout import Parameters
from codecl.space.roles import ParameterRoles
from codecl.train.config import TrainConfig
from codecl.train.execution import Execution
from codecl.train.optimizers import state_size
from codecl.train.plateau import RULE
from codecl.train.privacy import Noise, PrivacyConfig


class State(NamedTuple):
    """What every agent holds between tasks, equal bit for bit."""

    parameters: Parameters  # all but heads
    kept: tuple[Kept, ...]  # what each finished task keeps for itself
    memory: Mapping[str, Tensor]  # the method's
    directions: Mapping[str, Tensor] = {}  # of the task that is open, where they were chosen


class Carry(NamedTuple):
    """What a step hands to the next. Law: `split` undoes `joined`."""

    coords_AD: Tensor
    velocity_AV: Tensor  # what the optimizer remembers: see optimizers.state_size
    memory_AM: Tensor  # of messages
    watched_AW: Tensor  # of the schedule, where it watches the loss, else empty

    def joined(self) -> Tensor:
        return torch.cat(self, 1)

    @classmethod
    def split(cls, carry_AE: Tensor, size: int, config: TrainConfig) -> "Carry":
        velocity = state_size(config, size)
        watched = size + RULE if config.schedule == "plateau" else 0
        memory = carry_AE.shape[1] - size - velocity - watched
        parts = carry_AE.split([size, velocity, memory, watched], 1)
        return cls(*(part.contiguous() for part in parts))  # as a step leaves them: products round by layout too


class TaskPosition(NamedTuple):
    """Where a run stands inside a task."""

    epoch: int  # the next one
    carry_AE: Tensor  # of all agents, joined
    step: int = 0  # of that epoch, the next one
    agreed: bool = False  # all epochs are over, and agreement too


class Setup(NamedTuple):
    """Everything that a run needs, built and checked."""

    module: nn.Module
    roles: ParameterRoles
    tasks: Sequence[TaskData]  # whose images are here to train on
    heads: Sequence[Parameters]  # initial values, a task each, past ones too
    topology: Topology
    exchange: Exchange
    method: Method
    train: TrainConfig
    growth: GrowthConfig
    message: MessageConfig
    own: OwnConfig
    free: FreeConfig
    own_norms: tuple[str, ...]  # parameters of norms that each task has of its own; empty: trained in the first
    seed: int
    execution: Execution
    privacy: PrivacyConfig
    noise: Noise  # where privacy asks for some
    past: Sequence[PastTask] = ()  # that were learned before `tasks`
    faults: FaultsConfig = FaultsConfig()

    @property
    def all_tasks(self) -> list[PastTask | TaskData]:
        return [*self.past, *self.tasks]

    def data(self, task: int) -> TaskData:
        """Of this task, counted from 0 over past ones too."""
        return self.tasks[task - len(self.past)]

    @property
    def agree_rounds(self) -> int:
        """Rounds of agreement at a task's end, in each of which a part of every row is sent."""
        return self.gossip.agree_rounds * self.message.parts

    @property
    def gossip(self) -> Gossip:
        """Of a step."""
        return gossip(self.message, self.topology, self.train.gossip_rounds)

    def messages(self, task: int) -> Messages:
        """How the rows of this task are sent."""
        return messages(self.message, self.seed, task, self.topology, self.train.gossip_rounds, self.faults)
