"""Recorded runs -> rows: runs that differ in their seed alone and ended alike, and their scores over seeds."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from codecl.report.variant import variant

Metrics = Mapping[str, Any]
Runs = Sequence[tuple[Path, Metrics]]  # a run folder and its metrics


class Score(NamedTuple):
    """Mean and sample standard deviation over seeds; None where there is none."""

    mean: float | None = None
    std: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Score":
        if not values:
            return cls()
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)

    def __str__(self) -> str:
        if self.mean is None:
            return "-"
        return f"{self.mean:.2f}" if self.std is None else f"{self.mean:.2f} ± {self.std:.2f}"


class Row(NamedTuple):
    """The runs of one configuration and status."""

    variant: str  # what its config has other than the preset's
    runs: Sequence[Metrics]

    @property
    def first(self) -> Metrics:
        """For what all runs of the row have in common."""
        return self.runs[0]

    @property
    def status(self) -> str:
        return str(self.first["status"])

    def over_seeds(self, *path: str) -> Score:
        return Score.of([value for run in self.runs if (value := _get(run, path)) is not None])

    def mean_bytes(self, *keys: str) -> float:
        return statistics.fmean(sum(run["traffic"][key] for key in keys) for run in self.runs)


def _get(run: Metrics, path: Sequence[str]) -> Any:
    value: Any = run
    for key in path:
        value = value.get(key) if value is not None else None
    return value


def alike(folder: Path, run: Metrics) -> tuple[Path, str, str | None]:
    """What is equal where runs differ in their seed alone and ended alike."""
    return folder.parent, run["status"], run.get("exchange")


def rows(runs: Runs) -> list[Row]:
    groups: dict[tuple[Path, str, str | None], list[tuple[Path, Metrics]]] = {}
    for folder, run in runs:
        groups.setdefault(alike(folder, run), []).append((folder, run))
    return [Row(variant(*group[0]), [run for _, run in group]) for group in groups.values()]
