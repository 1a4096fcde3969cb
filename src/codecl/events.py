"""The facts that the loop yields. Printing, recording, progress bars and plots consume them; `kind` names each."""

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from torch import Tensor

from codecl.agents import Agents


@dataclass(frozen=True, kw_only=True)
class Event:
    """Where in the run it happened: task and epoch from 0, step from the task's start."""

    kind: ClassVar[str]
    task: int | None = None
    epoch: int | None = None
    step: int | None = None

    def facts(self) -> dict[str, Any]:
        """For the record: plain values only (tensors and objects stay in memory)."""
        shown = (f.name for f in fields(self) if f.metadata.get("recorded", True))
        return {"kind": self.kind, **{name: getattr(self, name) for name in shown}}


LIVE = {"recorded": False}  # a field for consumers in this process


@dataclass(frozen=True, kw_only=True)
class TaskOpened(Event):
    kind = "task"
    name: str
    classes: int
    steps: int  # of an epoch
    coordinates: int  # numbers in a message
    whole: int  # numbers in a message of full communication
    shared: int  # numbers that the authors' accounting adds to both: other heads, norms
    itemsize: int  # bytes of a number
    free: dict[str, int]
    factored: list[str]  # layers that run in the factored form
    agents: Agents = field(metadata=LIVE, repr=False)


@dataclass(frozen=True, kw_only=True)
class Stepped(Event):
    """After each step; not recorded. Its tensors hold until the next step."""

    kind = "step"
    loss_A: Tensor = field(metadata=LIVE, repr=False)
    coords_AD: Tensor = field(metadata=LIVE, repr=False)


@dataclass(frozen=True, kw_only=True)
class Epoch(Event):
    kind = "epoch"
    loss: list[float]  # by agent, mean over the epoch
    rate: float
    consensus_error: float
    mu_mean: float  # μ = ‖projected gradient‖ / ‖gradient‖ of the constrained layers in the epoch's last step,
    mu_max: float  # over agents (Assumption 4 bounds the maximum)
    running: str  # how agents shared the device: stacked, streams or loop
    messages: int
    bytes: int
    seconds: float
    live: Any = field(metadata=LIVE, repr=False)  # what a checkpoint needs


@dataclass(frozen=True, kw_only=True)
class Agreed(Event):
    kind = "agree"
    rounds: int
    messages: int
    bytes: int
    consensus_error: float  # what is left


@dataclass(frozen=True, kw_only=True)
class Grown(Event):
    kind = "grow"
    chosen: int
    messages: int
    bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Flooded(Event):
    kind = "flood"
    chosen: int
    messages: int
    bytes: int
    digest: str
    state: Any = field(metadata=LIVE, repr=False)


@dataclass(frozen=True, kw_only=True)
class Evaluated(Event):
    kind = "eval"
    accuracy: list[float]  # of each task so far, percent
    seconds: float
    state: Any = field(metadata=LIVE, repr=False)
