"""Runs that differ in their seed alone -> a configuration with a name, and its curves as means over seeds."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from codecl.report.figure import Number, Series
from codecl.report.gather import Run
from codecl.report.rows import Score, alike
from codecl.report.variant import shortened, variant

Curve = Mapping[float, Number]  # x -> y


class Configuration(NamedTuple):
    """Runs that differ in their seed alone and ended alike."""

    name: str  # no other has it
    runs: Sequence[Run]

    @property
    def first(self) -> Run:
        """For what all of its runs have in common."""
        return self.runs[0]

    @property
    def tasks(self) -> list[str]:
        """What its tasks are called, each otherwise."""
        known = {fact["task"]: str(fact["name"]) for run in self.runs for fact in run.facts("task")}
        count = max(int(self.first.metrics["tasks"]), *(task + 1 for task in known), 0)
        names = [known.get(task) or f"task {task + 1}" for task in range(count)]
        return [name if names.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(names, 1)]

    def series(self, name: str, curve: Callable[[Run], Curve]) -> Series:
        """This curve of each run as one, mean and std over seeds."""
        return over_seeds(name, [curve(run) for run in self.runs])


def over_seeds(name: str, curves: Sequence[Curve]) -> Series:
    """A point is the mean of the seeds that have it; std where at least two do. Law: x rises."""
    points: dict[float, list[float]] = {}
    for curve in curves:
        for x, y in curve.items():
            if (value := known(y)) is not None:
                points.setdefault(x, []).append(value)
    xs = sorted(points)
    scores = [Score.of(points[x]) for x in xs]
    spread = any(score.std is not None for score in scores)
    return Series(name, xs, [score.mean for score in scores], [score.std for score in scores] if spread else None)


def known(value: Any) -> float | None:
    """A number as it is; None where there is none, or one that no figure can show."""
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return value if usable else None


def configurations(runs: Sequence[Run]) -> list[Configuration]:
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        groups.setdefault(alike(run.folder, run.metrics), []).append(run)
    names = _names([group[0] for group in groups.values()])
    return [Configuration(name, group) for name, group in zip(names, groups.values(), strict=True)]


def _names(firsts: Sequence[Run]) -> list[str]:
    """`codec · ring 4`; what is special about a run, or where it is, only where that tells it from another."""
    presets = len({run.metrics["benchmark"] for run in firsts}) > 1
    names = [_plain(run, presets) for run in firsts]
    states = ["" if run.metrics["status"] == "complete" else f" ({run.metrics['status']})" for run in firsts]
    variants = shortened([variant(run.folder, run.metrics) for run in firsts])
    outs = _relative([run.folder.parent.parent for run in firsts])
    folders = [run.folder.parent.name for run in firsts]
    for more in (variants, outs, folders, list(map(str, range(1, len(firsts) + 1)))):
        names = _told_apart(names, states, more)
    return [name + state for name, state in zip(names, states, strict=True)]


def _told_apart(names: Sequence[str], states: Sequence[str], more: Sequence[str]) -> list[str]:
    """Names with more words where two are alike and the words are not."""
    whole = list(zip(names, states, strict=True))
    words: dict[tuple[str, str], set[str]] = {}
    for one, said in zip(whole, more, strict=True):
        words.setdefault(one, set()).add(said)
    return [
        f"{one[0]}, {said}" if said and len(words[one]) > 1 else one[0] for one, said in zip(whole, more, strict=True)
    ]


def _relative(places: Sequence[Path]) -> list[str]:
    """Folders as seen from the one that holds them all."""
    whole = [place.resolve() for place in places]
    top = Path(os.path.commonpath(whole)) if whole else Path()
    return [str(place.relative_to(top)) for place in whole]


def _plain(run: Run, preset: bool) -> str:
    found = run.metrics
    first = f"{found['benchmark']}: " if preset else ""
    return f"{first}{found['method']} · {found['topology']} {found['agents']}"


def common_tasks(found: Sequence[Configuration]) -> list[str]:
    """What tasks are called where several configurations are shown; numbers where they have not the same."""
    lists = [configuration.tasks for configuration in found]
    longest = max(lists, key=len)
    same = all(names == longest[: len(names)] for names in lists)
    return longest if same else [f"task {number}" for number in range(1, len(longest) + 1)]
