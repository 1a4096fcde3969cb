"""Run folders -> runs, ended or not, in the order in which they are shown; what cannot be used is said."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from codecl.errors import DataError
from codecl.methods import METHODS
from codecl.runs import reader
from codecl.runs.reader import Run

MARKS = ("metrics.json", "events.jsonl", "config.yaml")


class Refused(NamedTuple):
    """A folder that cannot be used, and why, in a plain sentence."""

    folder: Path
    why: str

    @classmethod
    def of(cls, folder: Path, error: DataError) -> "Refused":
        return cls(folder, str(error).removeprefix(f"{folder}: "))


class Gathered(NamedTuple):
    runs: Sequence[Run]
    refused: Sequence[Refused]


def gather(paths: Sequence[Path]) -> Gathered:
    """The runs at or under these paths; DataError where there is not one."""
    folders: dict[Path, None] = {}
    refused: list[Refused] = []
    runs: list[Run] = []
    for path in paths:
        try:
            folders |= dict.fromkeys(reader.find_runs([path], MARKS))
        except DataError as error:
            refused.append(Refused.of(path, error))
    for folder in folders:
        try:
            runs.append(reader.read_run(folder))
        except DataError as error:
            refused.append(Refused.of(folder, error))
    if not runs:
        raise DataError(_nothing(paths, refused))
    return Gathered(sorted(reader.as_fleets(runs), key=_order), refused)


def _order(run: Run) -> tuple[Any, ...]:
    """codec first, its opponents after it, methods of a user's own last; few agents before many."""
    labels = run.metrics
    place = list(METHODS).index(labels.method) if labels.method in METHODS else len(METHODS)
    return labels.benchmark, place, labels.method, labels.topology, labels.agents


def _nothing(paths: Sequence[Path], refused: Sequence[Refused]) -> str:
    if not refused:
        return f"{', '.join(map(str, paths)) or 'paths'}: no runs in it"
    first, *others = refused
    return f"{first.folder}: {first.why}" + (f"; nor can {len(others)} more be used" if others else "")


def finished(paths: Sequence[Path]) -> list[Run]:
    """The runs at or under these paths that have metrics, without their events; DataError for one that is broken."""
    return reader.as_fleets([scores_of(folder) for folder in reader.find_runs(paths)])


def scores_of(folder: Path) -> Run:
    """A run that ended, without its events."""
    try:
        config = reader.read_config(folder)
    except DataError:  # its scores can be shown without it
        config = None
    return Run(folder, reader.read_metrics(folder), (), config, ())
