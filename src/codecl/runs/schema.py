"""What a run folder holds, typed: `metrics.json` here, the lines of `events.jsonl` in train/events.py."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from codecl.data.catalogue import Verdict
from codecl.train.events import MAX_AGENTS, MAX_TASKS, LinkBytes, RunStarted, Status

SCHEMA = 2
PERCENT = ("accuracy", "label-accuracy")  # scores that are in percent


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Traffic(_Part):
    """Bytes that left agents, and compression ratios; docs/runs.md says how each is counted."""

    cc: float | None  # None: nothing was sent
    cc_by_task: Sequence[float | None]
    cc_reference: float | None
    cc_reference_by_task: Sequence[float | None] | None = None  # None: recorded before it was
    train_bytes: int
    boundary_bytes: int
    full_bytes: int
    wire_bytes: int | None

    @property
    def sent_bytes(self) -> int:
        return self.train_bytes + self.boundary_bytes


class Timing(_Part):
    train_s: float
    iterations: int
    ms_per_iteration: float | None
    wall_s: float


class MeanMax(_Part):
    mean: float
    max: float


class Privacy(_Part):
    """What is guaranteed for one image of an agent (docs/privacy.md)."""

    epsilon: float | None  # ε for an image that is in one task; None: no noise, no guarantee
    delta: float
    epsilon_by_task: Sequence[float | None]
    covers: str  # "gradients": not what is learned from images at a task's end; or "all messages"
    clip: float
    noise: float
    sampling: str


class Labels(_Part):
    """What a run is called."""

    benchmark: str  # the preset's name
    method: str
    agents: int = Field(ge=1, le=MAX_AGENTS)
    topology: str
    seed: int
    tasks: int = Field(ge=0, le=MAX_TASKS)
    each_task_alone: bool = False  # scored right after each task, as `stl` is: an upper bound, not continual learning
    exchange: str | None = None
    agent: int | None = None  # of a peer
    score: str = "accuracy"  # what tasks are scored with; ACC and BWT are of it

    @classmethod
    def of(cls, run: RunStarted) -> "Labels":
        """What the first event of a run calls it. Law: `started` undoes it."""
        names = {name: getattr(run, name) for name in Labels.model_fields}
        return cls(**names | {"exchange": None if run.agent is None else run.exchange})

    @property
    def in_percent(self) -> bool:
        return self.score in PERCENT

    def started(self, **more: Any) -> RunStarted:
        """The first event of a run that is called so."""
        return RunStarted(**self.model_dump(exclude_none=True) | more)


class Metrics(Labels):
    """`metrics.json`."""

    schema_: Literal[2] = Field(2, alias="schema")
    status: Status
    acc: float | None
    bwt: float | None
    # row t: scores after task t; None where not yet seen, or not scored again
    accuracy_matrix: Sequence[Sequence[float | None]]
    traffic: Traffic
    consensus_error_by_task: Sequence[float | None]  # before agreement
    free_by_task: Sequence[Mapping[str, int]]  # entry t: free while task t trained
    kept_by_task: Sequence[int]  # numbers that each task keeps for itself: head, own norms, statistics, own directions
    body: int | None = None  # numbers that all tasks share; None: recorded before it was
    trained_by_task: Sequence[Mapping[str, int]] | None = None  # free directions that were trained, where chosen
    own_by_task: Sequence[Mapping[str, int]] | None = None  # own directions, where tasks have some
    timing: Timing
    acc_without_identity: float | None = None  # at the end, when nobody says which task an image is of
    mu_by_task: Sequence[MeanMax] | None = None  # where it was measured
    disagreement_by_task: Sequence[float | None] | None = None  # of a peer, as the three below
    missed: int | None = None  # messages of neighbours
    links: Mapping[str, LinkBytes] | None = None
    recorded_agents: int | None = None  # of a fleet: whose records were read
    data_sets: Mapping[str, Verdict] | None = None  # of the catalogue that it reads; None: no such, or not recorded

    privacy: Privacy | None = None  # where gradients of single images are clipped
    not_scored: Sequence[int] | None = None  # tasks (from 0) that acc and bwt leave out: their test data was not there

    @field_validator("accuracy_matrix")
    @classmethod
    def _fits_tasks(cls, matrix: Sequence[Sequence[float | None]], about: ValidationInfo) -> Any:
        """A row for each task so far, a score of every task in each: figures and tables rely on it."""
        tasks = about.data.get("tasks", 0)
        if len(matrix) > tasks or any(len(row) != tasks for row in matrix):
            raise ValueError(f"not of {tasks} tasks")
        return matrix

    @property
    def kept_share(self) -> float | None:
        """The most that a task keeps for itself, as a part of the body; None: not known."""
        return kept_share(self.kept_by_task, self.body, self.each_task_alone)

    @property
    def kept_percent(self) -> float | None:
        return None if self.kept_share is None else 100 * self.kept_share

    @property
    def not_original(self) -> dict[str, str]:
        """The data sets of the catalogue that are known to be others than the published ones, and how they differ."""
        others = {name: data for name, data in (self.data_sets or {}).items() if data.status in ("near", "wrong")}
        return {name: data.reason for name, data in others.items()}

    def dump(self) -> dict[str, Any]:
        """As `metrics.json` has it: schema and status first; what does not apply is left out."""
        optional = {name for name, field in Metrics.model_fields.items() if field.default is None}
        values = self.model_dump(mode="json", by_alias=True)
        first = {name: values.pop(name) for name in ("schema", "status")}
        return first | {name: value for name, value in values.items() if value is not None or name not in optional}


def kept_share(kept_by_task: Sequence[int], body: int | None, each_task_alone: bool) -> float | None:
    """Tasks alone also keep the body, each as it was when the task was scored."""
    return max(kept_by_task) / body + each_task_alone if kept_by_task and body else None


def fault(error: ValidationError) -> str:
    """The first thing that is off in what was recorded, in words."""
    first = error.errors()[0]
    name = first["loc"][-1] if first["loc"] else "kind"
    if first["type"] == "missing" or first["input"] is None:
        return f"{name} is not in it"
    return f"{name} is {first['input']!r:.40}"
