"""Run folders -> runs with all that was recorded of them, ended or not; what cannot be used is said."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from codecl.errors import DataError
from codecl.methods import METHODS
from codecl.report.rows import Metrics
from codecl.runs import reader
from codecl.runs.config import RunConfig

MARKS = ("metrics.json", "events.jsonl", "config.yaml")
Fact = Mapping[str, Any]


class Run(NamedTuple):
    """A run, or a fleet of peers as one. Its metrics have what it is called and how it ended."""

    folder: Path
    metrics: Metrics
    events: Sequence[Fact]  # of a fleet: those of the agent that got furthest
    config: RunConfig | None  # None: there is none that can be read
    links: Sequence[tuple[int, int, int]] = ()  # of a fleet: sender, hearer, bytes

    @property
    def alone(self) -> bool:
        """Whether each task is scored right after it was learned, and never again."""
        return bool(self.metrics["each_task_alone"])

    @property
    def opened(self) -> list[int]:
        """Its tasks, as `cc_by_task` and `free_by_task` have them; where no events were kept, from the first on."""
        known = dict.fromkeys(fact["task"] for fact in self.facts("task"))
        return list(known) or list(range(len(self.metrics["free_by_task"])))

    def facts(self, kind: str) -> list[Fact]:
        return [fact for fact in self.events if fact["kind"] == kind]


class Refused(NamedTuple):
    """A folder that cannot be used, and why, in a plain sentence."""

    folder: Path
    why: str


class Gathered(NamedTuple):
    runs: Sequence[Run]
    refused: Sequence[Refused]


def gather(paths: Sequence[Path]) -> Gathered:
    """The runs at or under these paths; DataError where there is not one."""
    folders: dict[Path, None] = {}
    refused: list[Refused] = []
    runs: list[reader.Run] = []
    for path in paths:
        try:
            folders |= dict.fromkeys(reader.find_runs([path], MARKS))
        except DataError as error:
            refused.append(_refused(path, error))
    for folder in folders:
        try:
            runs.append(reader.read_run(folder))
        except DataError as error:
            refused.append(_refused(folder, error))
    if not runs:
        raise DataError(_nothing(paths, refused))
    return Gathered(sorted(map(_plain, reader.as_fleets(runs)), key=_place), refused)


def _place(run: Run) -> tuple[Any, ...]:
    """codec first, its opponents after it, methods of a user's own last; few agents before many."""
    of, order = run.metrics, list(METHODS)
    method = order.index(of["method"]) if of["method"] in order else len(order)
    return str(of["benchmark"]), method, str(of["method"]), str(of["topology"]), of["agents"]


def _refused(folder: Path, error: DataError) -> Refused:
    return Refused(folder, str(error).removeprefix(f"{folder}: "))


def _nothing(paths: Sequence[Path], refused: Sequence[Refused]) -> str:
    if not refused:
        return f"{', '.join(map(str, paths)) or 'paths'}: no runs in it"
    first, more = refused[0], len(refused) - 1
    return f"{first.folder}: {first.why}" + (f"; nor can {more} more be used" if more else "")


def read(folder: Path) -> Run:
    """One run folder; DataError says why it cannot be used."""
    return _plain(reader.read_run(folder))


def _plain(run: reader.Run) -> Run:
    return Run(run.folder, run.metrics.dump(), [event.record() for event in run.events], run.config, run.links)
