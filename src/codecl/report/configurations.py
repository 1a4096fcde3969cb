"""Run folders -> runs, ended or not, in the order in which they are shown; what cannot be used is said. Runs that
differ in their seed alone -> a configuration: its name, its variant in words, its scores over seeds."""

import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from codecl.errors import ConfigError, DataError
from codecl.methods import METHODS
from codecl.report.commands import changed
from codecl.report.formats import UNKNOWN, with_spread
from codecl.report.score_words import ScoreWords
from codecl.runs import reader
from codecl.runs.reader import Run
from codecl.runs.schema import Metrics
from codecl.train.events import TaskOpened

MARKS = ("metrics.json", "events.jsonl", "config.yaml")
MAX_VARIANT = 40  # letters


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
    if not runs and not refused:
        raise DataError(f"{', '.join(map(str, paths)) or 'paths'}: no runs in it")
    if not runs:
        others = f"; nor can {len(refused) - 1} more be used" if len(refused) > 1 else ""
        raise DataError(f"{refused[0].folder}: {refused[0].why}{others}")
    return Gathered(sorted(reader.as_fleets(runs), key=_order), refused)


def _order(run: Run) -> tuple[Any, ...]:
    """codec first, its opponents after it, methods of a user's own last; few agents before many."""
    labels = run.metrics
    place = list(METHODS).index(labels.method) if labels.method in METHODS else len(METHODS)
    return labels.benchmark, place, labels.method, labels.topology, labels.agents


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
        return self.text()

    def text(self, digits: str = ".2f") -> str:
        return UNKNOWN if self.mean is None else with_spread(self.mean, self.std, digits)


class Configuration(NamedTuple):
    """Runs that differ in their seed alone and ended alike."""

    name: str  # no other has it
    variant: str  # what its config has other than the preset's
    runs: Sequence[Run]

    @property
    def metrics(self) -> Metrics:
        """Of its first run: for what all of them have in common."""
        return self.runs[0].metrics

    @property
    def tasks(self) -> list[str]:
        """What its tasks are called, with their numbers from 1: `1 digits`; `task 1` where there are no names."""
        known = {event.task: event.name for run in self.runs for event in run.of(TaskOpened)}
        count = max(self.metrics.tasks, *(task + 1 for task in known), 0)
        names = {task: f"{task + 1} {name}" for task, name in known.items() if name and name != f"task {task + 1}"}
        return [names.get(task) or f"task {task + 1}" for task in range(count)]

    @property
    def words(self) -> ScoreWords:
        """How its score is said."""
        return ScoreWords.of([self.metrics])

    @property
    def partial(self) -> bool:
        """It was stopped, or goes on: its scores are of some of its tasks."""
        return self.metrics.status == "partial"

    @property
    def setting(self) -> tuple[object, ...]:
        """All that decides its scores but the method and the seed: configurations that share it can be compared."""
        run, config = self.metrics, self.runs[0].config
        changes: dict[str, str] = {}
        if config is not None:
            with suppress(ConfigError):
                changes = changed(config)
        fields = frozenset(item for item in changes.items() if not item[0].startswith(("method.", "checkpoint.")))
        return run.benchmark, run.topology, run.agents, run.tasks, run.exchange, fields

    def score(self, value: Callable[[Metrics], float | None]) -> Score:
        return Score.of([known for run in self.runs if (known := value(run.metrics)) is not None])


def ms_per_step(run: Metrics) -> float | None:
    return run.timing.ms_per_iteration


def kept_percent(run: Metrics) -> float | None:
    return run.kept_percent


def not_original(runs: Iterable[Metrics]) -> list[str]:
    """A line for each data set of these runs that is known to be another than the published one."""
    return list(dict.fromkeys(f"{name}: {how}" for run in runs for name, how in run.not_original.items()))


def not_scored(runs: Iterable[Metrics]) -> list[str]:
    """A line for each run whose ACC and BWT are not over all of its tasks."""
    lines = []
    for run in runs:
        if run.not_scored:
            tasks = ", ".join(str(task + 1) for task in run.not_scored)
            name = f"{run.benchmark}, {run.method}, {run.topology} {run.agents}, seed {run.seed}"
            lines.append(f"{name}: not scored again at the end: tasks {tasks}; ACC and BWT are over the others")
    return list(dict.fromkeys(lines))


def remarks(runs: Iterable[Metrics]) -> list[str]:
    """What a reader of scores has to know, a line each."""
    known = list(runs)
    return [*not_original(known), *not_scored(known)]


def group(runs: Sequence[Run]) -> list[Configuration]:
    """The configurations of some runs, in the order of their first runs.

    Runs beside each other whose configs differ in the seed alone belong together, also where an older codecl, whose
    configs had fewer fields, called the folder otherwise."""
    groups: dict[tuple[Path | str, ...], list[Run]] = {}
    for run in runs:
        folder, kind = run.folder.parent, (run.metrics.status, run.metrics.exchange or "")
        alike = groups.setdefault((folder.parent, run.config.digest() if run.config else folder.name, *kind), [])
        if run.metrics.seed in [other.metrics.seed for other in alike]:  # the same run in two folders
            alike = groups.setdefault((folder, *kind), [])
        alike.append(run)
    firsts = [seeds[0] for seeds in groups.values()]
    return list(map(Configuration, _names(firsts), map(variant, firsts), groups.values()))


def _names(firsts: Sequence[Run]) -> list[str]:
    """`codec · ring 4`; what is special about a run where others have it otherwise, whatever their method; where it is,
    only where nothing else tells it from another."""
    metrics = [run.metrics for run in firsts]
    several = len({run.benchmark for run in metrics}) > 1
    names = [f"{f'{m.benchmark}: ' if several else ''}{m.method} · {m.topology} {m.agents}" for m in metrics]
    states = ["" if run.status == "complete" else f" ({run.status})" for run in metrics]
    places = [run.folder.parent.parent.resolve() for run in firsts]
    top = os.path.commonpath(places) if places else ""  # holds them all
    relative = [str(place.relative_to(top)) for place in places]
    folders = [run.folder.parent.name for run in firsts]
    names = [", ".join(filter(None, pair)) for pair in zip(names, _telling(firsts), strict=True)]
    for words in (list(map(_digest, firsts)), relative, folders, list(map(str, range(1, len(firsts) + 1)))):
        names = _distinguished(names, states, words)
    return [name + state for name, state in zip(names, states, strict=True)]


def _telling(runs: Sequence[Run]) -> list[str]:
    """Of each run, the words of its variant that not all runs have."""
    words = list(map(_words, runs))
    common = set.intersection(*map(set, words)) if words else set()
    return shortened([", ".join(word for word in of_one if word not in common) for of_one in words])


def _distinguished(names: Sequence[str], states: Sequence[str], words: Sequence[str]) -> list[str]:
    """Names with more words where two are alike and the words are not."""
    alike: dict[tuple[str, str], set[str]] = {}
    for name, state, word in zip(names, states, words, strict=True):
        alike.setdefault((name, state), set()).add(word)
    return [
        f"{name}, {word}" if word and len(alike[name, state]) > 1 else name
        for name, state, word in zip(names, states, words, strict=True)
    ]


def compared(
    configurations: Sequence[Configuration], method: str, other: str
) -> list[tuple[Configuration, Configuration]]:
    """Finished configurations of two methods, side by side where all but the method is the same."""
    finished = [one for one in configurations if not one.partial]
    return [
        (one, beside)
        for one in finished
        for beside in finished
        if (one.metrics.method, beside.metrics.method) == (method, other) and one.setting == beside.setting
    ]


def common_tasks(configurations: Sequence[Configuration]) -> list[str]:
    """What tasks are called where several configurations are shown; numbers where they have not the same. One that has
    not come to a task yet does not know its name."""
    lists = [configuration.tasks for configuration in configurations]
    plain = [f"task {number}" for number in range(1, max(map(len, lists)) + 1)]
    names = [{*of_task, number} - {None} for number, of_task in zip(plain, zip_longest(*lists), strict=True)]
    if any(len(of_task) > 2 for of_task in names):
        return plain
    return [next(iter(of_task - {number}), number) for number, of_task in zip(plain, names, strict=True)]


def variant(run: Run) -> str:
    """`penalty_step=implicit`; where the config cannot say it, the digest at the end of the configuration's folder."""
    exchange = [run.metrics.exchange] if run.metrics.exchange else []
    words = _words(run)
    return ", ".join(words if words != exchange else filter(None, [*exchange, _digest(run)]))


def _words(run: Run) -> list[str]:
    """Its exchange, where it is not simulated, and each field that its config has other than the preset."""
    words = [run.metrics.exchange] if run.metrics.exchange else []
    if run.config is not None:
        with suppress(ConfigError):  # of a preset that is not here
            changes = changed(run.config)
            changes.pop("checkpoint.every", None)  # decides no number
            words += [f"{field.removeprefix('method.')}={value}" for field, value in changes.items()]
    return words


def _digest(run: Run) -> str:
    """What the name of its configuration's folder ends in, if anything."""
    return run.folder.parent.name.partition(f"{run.metrics.topology}{run.metrics.agents}-")[2]


def shortened(variants: Sequence[str]) -> list[str]:
    """Cut where that leaves them different."""
    short = [text if len(text) <= MAX_VARIANT else text[: MAX_VARIANT - 1] + "…" for text in variants]
    return short if len(set(short)) == len(set(variants)) else list(variants)
