"""What happens in a run, as the loop and the peers tell it: one typed record a kind, one line each in `events.jsonl`.

Printing, recording, progress bars and plots consume them. Fields that are excluded hold live objects for consumers in
this process; all others are recorded."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from codecl.data.catalogue import Verdict

Status = Literal["complete", "degraded", "partial"]
MAX_AGENTS, MAX_TASKS = 4096, 1 << 16  # of a run
Live = Field(None, exclude=True, repr=False)


class Event(BaseModel):
    """Where in the run it happened: task and epoch from 0, step from the task's start. The writer adds the time."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=True)
    always: ClassVar[tuple[str, ...]] = ("kind", "time", "task", "epoch", "step")

    kind: str  # what happened
    time: float | None = None  # seconds since 1970
    task: int | None = Field(None, ge=0, lt=MAX_TASKS)  # from 0
    epoch: int | None = Field(None, ge=0)  # of the task, from 0
    step: int | None = Field(None, ge=0)  # from the task's start

    def record(self) -> dict[str, Any]:
        """For `events.jsonl`: plain values; what does not apply is left out."""
        values = self.model_dump(mode="json")
        return {name: value for name, value in values.items() if value is not None or name in self.always}

    def stamped(self) -> Self:
        """As it is kept: with the time, without live objects."""
        live = (name for name, field in type(self).model_fields.items() if field.exclude)
        return self.model_copy(update=dict.fromkeys(live) | {"time": round(time.time(), 3)})


class InTask(Event):
    """It happened inside a task, or at its end."""

    task: int = Field(ge=0, lt=MAX_TASKS)


class Sent(InTask):
    """Something was sent: messages (a directed edge each) and their bytes, of all agents."""

    messages: int  # a directed edge each
    bytes: int  # of all of them


class RunStarted(Event):
    kind: Literal["run"] = "run"
    benchmark: str  # the preset's name
    method: str  # by its name
    agents: int = Field(ge=1, le=MAX_AGENTS)  # how many
    topology: str  # by its name
    seed: int  # of everything random
    tasks: int = Field(ge=0, le=MAX_TASKS)  # how many
    each_task_alone: bool = False  # scored right after each task, as `stl` is
    edges: Sequence[tuple[int, int]]  # (sender, hearer)
    contraction: float  # √ρ: what one round leaves of any disagreement, at most
    digest: str  # of the config
    execution: str  # how agents share the device
    ms_per_step: Mapping[str, float] = {}  # of each way that was measured
    measured: bool = False  # now; otherwise remembered, or there was nothing to choose
    threads: int | None = None  # of a CPU that were chosen; None: as many as PyTorch has
    exchange: str = "simulated"  # or cluster, or peers
    ranks: int = 1  # processes of a cluster
    agent: int | None = None  # of a peer: its number
    fleet: str | None = None  # of a peer: the fleet's name
    data_sets: Mapping[str, Verdict] | None = None  # of the catalogue that it reads; None: no such, or not recorded
    score: str = "accuracy"  # what tasks are scored with; ACC and BWT are of it


class PrivateTask(BaseModel):
    """How images of a task are used where their gradients are clipped: docs/privacy.md."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    clip: float  # largest norm of one image's gradient
    noise: float  # on the sum of a batch's, in units of it
    delta: float  # δ
    sampling: str  # how batches are drawn
    images: int  # of an agent; the fewest, where there are several
    batch: int  # images of a batch
    covers: Literal["gradients", "all messages"]  # what the guarantee is about


class TaskOpened(InTask):
    kind: Literal["task"] = "task"
    name: str  # of the task
    classes: int  # how many; outputs, where labels are numbers
    steps: int  # of an epoch
    coordinates: int  # numbers in a message
    full: int  # numbers in a message of full communication
    reference_extra: int  # numbers that the authors' accounting adds to both: other heads, norms
    kept: int  # numbers that the task keeps for itself: head, own norms, norm statistics, own directions
    body: int | None = None  # numbers that all tasks share; None: recorded before it was
    itemsize: int  # bytes of a number
    rows_sent: int | None = None  # to each neighbour in a step, where it is more than one
    free: Mapping[str, int]  # free directions of each layer
    trained: Mapping[str, int] | None = None  # the free directions that it trains in, where they were chosen
    own: Mapping[str, int] | None = None  # its own directions, where it has some
    factored: Sequence[str] = ()  # layers that run in the factored form
    class_counts: Mapping[str, Sequence[int | None]] | None = None  # images of each class, by agent; None: all alike
    images: Sequence[int] | None = None  # of each agent; None: all alike
    own_counts: Mapping[str, int] | None = None  # of a peer with images of its own: how many of each class
    privacy: PrivateTask | None = None  # where gradients of single images are clipped
    agents: Any = Live


class DirectionsChosen(Sent):
    """Before a task opens: the directions in which it trains were chosen, and flooded."""

    kind: Literal["directions"] = "directions"
    chosen: int  # the agent that flooded them
    digest: str  # of what was flooded
    seconds: float  # that it took


class Stepped(Event):
    """After each step; not recorded. Its tensors hold until the next step."""

    kind: Literal["step"] = "step"
    loss_A: Any = Live
    coords_AD: Any = Live


class EpochEnded(Sent):
    kind: Literal["epoch"] = "epoch"
    epoch: int
    step: int
    loss: Sequence[float]  # by agent, mean over the epoch
    lr: float  # η in this epoch
    consensus_error: float | None = None  # mean squared distance of agents to their mean
    disagreement: float | None = None  # of a peer: mean squared distance to the neighbours that it heard
    missed: Mapping[str, Sequence[tuple[int, int]]] | None = None  # of a peer: by neighbour, spans of steps
    clipped: int | None = None  # messages of the task so far that were shortened, where each is looked at
    refused: int | None = None  # that were not mixed: they were no numbers
    mu_mean: float | None = None  # over agents, where it is measured: see train/constraint.py
    mu_max: float | None = None  # the largest
    execution: str  # how agents shared the device
    private_steps: int | None = None  # of this task so far that had noise
    seconds: float  # that the epoch took
    live: Any = Live  # what a checkpoint needs


class Agreed(Sent):
    kind: Literal["agree"] = "agree"
    rounds: int  # of gossip without gradients
    parts: int = 1  # of a row, a message each
    consensus_error: float | None = None  # what is left
    disagreement: float | None = None  # of a peer
    missed: Mapping[str, Sequence[tuple[int, int]]] | None = None  # of a peer


class Grown(Sent):
    kind: Literal["grow"] = "grow"
    chosen: int  # the agent that grew the core space
    seconds: float  # that it took


class Voted(InTask):
    """Agents looked at what one of them flooded, each by its own images."""

    kind: Literal["vote"] = "vote"
    chosen: int  # the agent that flooded it
    stands: bool  # unless more than half object: then the next agent grows
    voters: int
    objections: Mapping[str, str]  # by agent, in words


class Flooded(Sent):
    kind: Literal["flood"] = "flood"
    chosen: int  # the agent whose model everyone has now
    digest: str  # of what was flooded
    state: Any = Live


class Evaluated(InTask):
    kind: Literal["eval"] = "eval"
    # of each task so far: in percent, or what the run's score gives; None: not scored again, its test data is not here
    accuracy: Sequence[float | None]
    without_identity: float | None = None  # after the last task: mean accuracy when nobody says an image's task
    seconds: float  # that it took
    state: Any = Live


class MemberChanged(Event):
    """A peer lost a neighbour, or has it back."""

    kind: Literal["member"] = "member"
    agent: int  # whose state changed
    state: str  # connected, lost, back, dead, alive, linked, joined, gone, discarded, …
    why: str | None = None  # in words
    tasks: Sequence[int] | None = None  # that were discarded


class LinkBytes(BaseModel):
    """What went over one link of a peer: tensors, and headers beside them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sent: int = 0
    received: int = 0
    headers_sent: int = 0
    headers_received: int = 0


class LinksClosed(Event):
    """A peer's last word on its links."""

    kind: Literal["links"] = "links"
    links: Mapping[str, LinkBytes]  # bytes by neighbour
    missed: int  # messages that did not come in time


class NotWritten(Event):
    """Something could not be written for the first time, on a full disk for example; the run goes on without it."""

    kind: Literal["unwritten"] = "unwritten"
    what: str  # events, a checkpoint, the model, metrics, commits
    why: str  # in the system's words


class RunEnded(Event):
    kind: Literal["end"] = "end"
    status: Status  # complete; degraded: somebody missed something; partial: stopped


Recorded = (
    RunStarted
    | DirectionsChosen
    | TaskOpened
    | EpochEnded
    | Agreed
    | Grown
    | Voted
    | Flooded
    | Evaluated
    | MemberChanged
    | LinksClosed
    | NotWritten
    | RunEnded
)
EVENT: TypeAdapter[Recorded] = TypeAdapter(Annotated[Recorded, Field(discriminator="kind")])
E = TypeVar("E", bound=Event)


def of_type(events: Iterable[Event], kind: type[E]) -> list[E]:
    """The events of one kind, in order."""
    return [event for event in events if isinstance(event, kind)]
