"""Two configurations, each of one run or of several seeds -> what differs in their configs and in what came out."""

import math
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from codecl.errors import ConfigError
from codecl.report.configurations import Score, finished, kept_percent, ms_per_step, remarks
from codecl.report.formats import UNKNOWN, Column, Sheet, spread_of_bytes, with_spread
from codecl.report.score_words import ScoreWords
from codecl.runs.config import RunConfig
from codecl.runs.config import difference as config_difference
from codecl.runs.reader import Run, read_config
from codecl.runs.schema import Metrics

NOTE = (
    "A, B: mean ± std over seeds. B − A: ± how far its 95 % interval reaches ({ways}). more, less: zero is outside the"
    " interval. Each row stands by itself: of 20 rows without any difference one is outside by chance."
)
WAYS = {"paired": "of the differences seed by seed", "Welch": "of the means, Welch's: the seeds are not the same"}
MAX_CHANGE = 100  # letters of a config's difference

Verdict = Literal["equal", "more", "less", "no difference seen", "one seed: cannot say", "not known"]
BySeed = Mapping[int, float]
Value = Callable[[Metrics], float | None]
Text = Callable[[float, float | None], str]  # of a value and its spread


class Difference(NamedTuple):
    """b − a, with the interval that holds the true one in 95 of 100 cases."""

    a: Score
    b: Score
    mean: float | None
    low: float | None
    high: float | None
    way: Literal["paired", "Welch"] | None  # how the interval was made
    verdict: Verdict


def difference(a: BySeed, b: BySeed) -> Difference:
    """Of the same seeds: of each seed, then their mean (paired). Of other seeds: of the means (Welch)."""
    scores = Score.of(list(a.values())), Score.of(list(b.values()))
    if not a or not b:
        return Difference(*scores, None, None, None, None, "not known")
    mean = statistics.fmean(b.values()) - statistics.fmean(a.values())
    if ({*a.values()} == {*b.values()} and len({*a.values()}) == 1) or a == b:
        return Difference(*scores, 0.0, 0.0, 0.0, None, "equal")
    if len(a) < 2 or len(b) < 2:
        return Difference(*scores, mean, None, None, None, "one seed: cannot say")
    paired = a.keys() == b.keys()
    low, high = _interval(a, b, paired, mean)
    verdict: Verdict = "no difference seen"
    if low > 0:
        verdict = "more"
    elif high < 0:
        verdict = "less"
    return Difference(*scores, mean, low, high, "paired" if paired else "Welch", verdict)


def _interval(a: BySeed, b: BySeed, paired: bool, mean: float) -> tuple[float, float]:
    """The 95 % interval of b − a; where nothing spreads, the difference itself."""
    from scipy import stats  # slow to import

    spreading = [[b[seed] - a[seed] for seed in a]] if paired else [a.values(), b.values()]
    if all(len(set(values)) == 1 for values in spreading):
        return mean, mean
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of values that are nearly the same
        if paired:
            test = stats.ttest_rel([b[seed] for seed in a], list(a.values()))
        else:
            test = stats.ttest_ind(list(b.values()), list(a.values()), equal_var=False)
    interval = test.confidence_interval(0.95)
    return float(interval.low), float(interval.high)


class Side(NamedTuple):
    """The runs of one configuration, by seed."""

    path: Path
    config: RunConfig
    exchange: str
    runs: Mapping[int, Metrics]

    @property
    def tasks(self) -> int:
        """Finished, by the run that came furthest."""
        return max(len(run.accuracy_matrix) for run in self.runs.values())

    @property
    def score(self) -> str:
        return next(iter(self.runs.values())).score

    @property
    def not_scored(self) -> set[int]:
        """Tasks that ACC and BWT of one of the runs leave out."""
        return {task for run in self.runs.values() for task in run.not_scored or ()}

    def values(self, value: Value) -> BySeed:
        values = {seed: value(run) for seed, run in sorted(self.runs.items())}
        return {seed: float(known) for seed, known in values.items() if known is not None and math.isfinite(known)}


class Quantity(NamedTuple):
    """Something that runs have one value of, compared."""

    key: str
    title: str
    text: Text
    difference: Difference


class Comparison(NamedTuple):
    a: Side
    b: Side
    config: Sequence[str]  # fields that differ, `field: a, b`
    quantities: Sequence[Quantity]


def compare(a: Path, b: Path) -> Comparison:
    left = side("A", a)
    right = side("B", b)
    changes = [text for text in config_difference(left.config, right.config) if not text.startswith("seed: ")]
    if left.exchange != right.exchange:
        changes.append(f"exchange: {left.exchange}, {right.exchange}")
    return Comparison(left, right, changes, quantities(left, right))


def side(name: str, path: Path) -> Side:
    """The runs at a path, which should be of one configuration."""
    runs = finished([path])
    configs = [run.config or read_config(run.folder) for run in runs]  # which says what is wrong with it
    exchanges = [run.metrics.exchange or "simulated" for run in runs]
    firsts: dict[tuple[str, str], Path] = {}
    for run, config, exchange in zip(runs, configs, exchanges, strict=True):
        firsts.setdefault((config.digest(), exchange), run.folder.parent)
    if len(firsts) > 1:
        names = list(map(str, firsts.values()))
        shown = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
        raise ConfigError(f"{name}: {path} holds {len(names)} configurations ({shown}); give one of them")
    by_seed: dict[int, Run] = {}
    for run in runs:
        seed = run.metrics.seed
        before = by_seed.setdefault(seed, run)
        if before is not run:
            raise ConfigError(f"{name}: seed {seed} is there twice ({before.folder}, {run.folder}); leave one out")
    return Side(path, configs[0], exchanges[0], {seed: run.metrics for seed, run in by_seed.items()})


def quantities(a: Side, b: Side) -> list[Quantity]:
    """Scores over all tasks where both sides have as many, the time of a step, and the tasks that both have."""
    tasks = min(a.tasks, b.tasks)

    def compared(key: str, title: str, value: Value, text: Text = with_spread) -> Quantity:
        return Quantity(key, title, text, difference(a.values(value), b.values(value)))

    def over_all(key: str, title: str, value: Value, text: Text = with_spread) -> Quantity:
        return compared(key, title, lambda run: value(run) if len(run.accuracy_matrix) == tasks else None, text)

    words = ScoreWords.of([*a.runs.values(), *b.runs.values()])
    spread = partial(with_spread, digits=words.digits)
    of_score = [
        over_all("acc", words.title("ACC"), lambda run: run.acc, spread),
        over_all("bwt", words.title("BWT"), lambda run: run.bwt, spread),
    ]
    scores = [
        *(of_score if words.name and a.not_scored == b.not_scored else []),
        over_all("cc", "cc", lambda run: run.traffic.cc),
        over_all("cc_reference", "cc_reference", lambda run: run.traffic.cc_reference),
        over_all("kept_percent", "kept %", kept_percent, partial(with_spread, digits=".1f")),
        over_all("train_bytes", "train bytes", lambda run: run.traffic.train_bytes, spread_of_bytes),
        over_all("boundary_bytes", "boundary bytes", lambda run: run.traffic.boundary_bytes, spread_of_bytes),
        over_all("consensus_error", "consensus error", _consensus, partial(with_spread, digits=".1g")),
    ]
    pace = compared("ms_per_iteration", "ms a step", ms_per_step)
    titles = [f"task {n}{' %' * words.percent}" for n in range(1, tasks + 1)] if words.name else []
    ends = [compared(f"accuracy_{n + 1}", title, partial(_accuracy, n), spread) for n, title in enumerate(titles)]
    return [*(scores if a.tasks == b.tasks else []), pace, *ends]


def _accuracy(task: int, run: Metrics) -> float | None:
    """Of a task at the end; of tasks that stand alone, when its own training ended."""
    matrix = run.accuracy_matrix
    if task >= len(matrix):
        return None
    return matrix[task if run.each_task_alone else -1][task]


def _consensus(run: Metrics) -> float | None:
    """At the end of the last task, before agreement."""
    return run.consensus_error_by_task[-1] if run.consensus_error_by_task else None


def about(comparison: Comparison) -> list[str]:
    """What is compared, and what should be known about it, a line each."""
    a, b = comparison.a, comparison.b
    changes = [text if len(text) <= MAX_CHANGE else text[: MAX_CHANGE - 1] + "…" for text in comparison.config]
    lines = [f"A: {_named(a)}", f"B: {_named(b)}"]
    lines.append("configs differ in " + "; ".join(changes) if changes else "configs are the same")
    if a.path.resolve() == b.path.resolve():
        lines.append("A and B are the same folder")
    if a.tasks != b.tasks:
        lines.append(
            f"A finished {a.tasks} tasks, B {b.tasks}: scores and bytes over all tasks are left out, the"
            f" first {min(a.tasks, b.tasks)} are compared"
        )
    if a.score != b.score:
        lines.append(f"A is scored with {a.score}, B with {b.score}: their scores do not compare")
    if a.not_scored != b.not_scored:
        lines.append("A and B were not scored on the same tasks at the end: ACC and BWT are left out")
    others = [remarks(side.runs.values()) for side in (a, b)]
    if others[0] == others[1]:
        return lines + others[0]
    return lines + [f"{name}: {line}" for name, of_side in zip("AB", others, strict=True) for line in of_side]


def _named(side: Side) -> str:
    run = next(iter(side.runs.values()))
    seeds = ", ".join(map(str, sorted(side.runs)))
    odd = [f"seed {seed} is {run.status}" for seed, run in sorted(side.runs.items()) if run.status != "complete"]
    words = f"{run.method}, {run.agents} agents on {run.topology}, seed{'s' * (len(side.runs) > 1)} {seeds}"
    return "; ".join([f"{side.path} ({run.benchmark}: {words})", *odd])


def sheet(comparison: Comparison) -> Sheet:
    """A row a quantity; those that neither side knows are left out."""
    rows = [row for row in comparison.quantities if (row.difference.a.mean, row.difference.b.mean) != (None, None)]
    ways = {row.difference.way for row in rows}
    note = NOTE.format(ways="; ".join(words for way, words in WAYS.items() if way in ways))
    columns = [
        Column("", [row.title for row in rows], words=True, fold=True),
        Column("A", [_score(row, row.difference.a) for row in rows]),
        Column("B", [_score(row, row.difference.b) for row in rows]),
        Column("B − A", [_change(row) for row in rows]),
        Column("verdict", [row.difference.verdict for row in rows], words=True, fold=True),
    ]
    return Sheet("", columns, note if ways & set(WAYS) else "", [_record(row) for row in rows])


def _score(row: Quantity, score: Score) -> str:
    return UNKNOWN if score.mean is None else row.text(score.mean, score.std)


def _change(row: Quantity) -> str:
    """The difference, and how far its interval reaches to each side."""
    mean, low, high = row.difference.mean, row.difference.low, row.difference.high
    if mean is None:
        return UNKNOWN
    reach = (high - low) / 2 if row.difference.way and low is not None and high is not None else None
    return ("+" if mean > 0 else "") + row.text(mean, reach)


def _record(row: Quantity) -> dict[str, Any]:
    """A row for machines: every number as it is."""
    apart = row.difference
    sides = {"a": apart.a.mean, "a_std": apart.a.std, "b": apart.b.mean, "b_std": apart.b.std}
    interval = {"difference": apart.mean, "low": apart.low, "high": apart.high, "interval": apart.way}
    return {"metric": row.key, **sides, **interval, "verdict": apart.verdict}


def plain(comparison: Comparison) -> dict[str, Any]:
    """All of it for machines."""

    def of(side: Side) -> dict[str, Any]:
        status = {str(seed): run.status for seed, run in sorted(side.runs.items())}
        return {"path": str(side.path), "digest": side.config.digest(), "tasks": side.tasks, "status_by_seed": status}

    rows = [_record(row) for row in comparison.quantities]
    return {"a": of(comparison.a), "b": of(comparison.b), "config": list(comparison.config), "metrics": rows}
