"""Two configurations, each of one run or of several seeds -> what differs in their configs and in what came out."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from codecl.errors import ConfigError
from codecl.report.formats import Column, Sheet
from codecl.report.rows import Metrics, Runs, Score
from codecl.report.spread import BySeed, Difference, difference
from codecl.report.units import spread_of_bytes
from codecl.runs.config import RunConfig
from codecl.runs.config import difference as config_difference
from codecl.runs.reader import Run, as_fleets, find_runs, read_config, read_metrics

NOTE = (
    "A, B: mean ± std over seeds. B − A: ± how far its 95 % interval reaches ({ways}). more, less: zero is outside the"
    " interval. Each row stands by itself: of 20 rows without any difference one is outside by chance."
)
WAYS = {"paired": "of the differences seed by seed", "Welch": "of the means, Welch's: the seeds are not the same"}
LONGEST = 100  # of a config's difference in words


class Side(NamedTuple):
    """The runs of one configuration, by seed."""

    path: Path
    config: RunConfig
    exchange: str
    runs: Mapping[int, Metrics]

    @property
    def tasks(self) -> int:
        """Finished, by the run that came furthest."""
        return max(len(_matrix(run)) for run in self.runs.values())

    def values(self, of: "Callable[[Metrics], Any]") -> BySeed:
        found = {seed: of(run) for seed, run in sorted(self.runs.items())}
        return {seed: float(value) for seed, value in found.items() if value is not None and math.isfinite(value)}


class Quantity(NamedTuple):
    """Something that runs have one value of."""

    key: str
    title: str
    of: Callable[[Metrics], Any]
    form: Callable[[float, float | None], str]  # of a value and its spread


class Line(NamedTuple):
    """One quantity at both sides."""

    quantity: Quantity
    found: Difference


class Comparison(NamedTuple):
    a: Side
    b: Side
    config: Sequence[str]  # fields that differ, `field: a, b`
    lines: Sequence[Line]


def compare(a: Path, b: Path) -> Comparison:
    left, right = side("A", a), side("B", b)
    changes = [text for text in config_difference(left.config, right.config) if not text.startswith("seed: ")]
    if left.exchange != right.exchange:
        changes.append(f"exchange: {left.exchange}, {right.exchange}")
    lines = [
        Line(quantity, difference(left.values(quantity.of), right.values(quantity.of)))
        for quantity in quantities(min(left.tasks, right.tasks), left.tasks == right.tasks)
    ]
    return Comparison(left, right, changes, lines)


def side(name: str, path: Path) -> Side:
    """The runs at a path, which should be of one configuration."""
    runs = as_fleets([Run(folder, read_metrics(folder)) for folder in find_runs([path])])
    found = [(run.folder, run.metrics.dump()) for run in runs]
    groups: dict[tuple[str, str], list[tuple[Path, Metrics]]] = {}
    for folder, run in found:
        groups.setdefault((_config(folder).digest(), _exchange(run)), []).append((folder, run))
    if len(groups) > 1:
        names = [str(group[0][0].parent) for group in groups.values()]
        shown = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
        raise ConfigError(f"{name}: {path} holds {len(groups)} configurations ({shown}); give one of them")
    return Side(path, _config(found[0][0]), _exchange(found[0][1]), _by_seed(name, found))


def _by_seed(name: str, runs: Runs) -> dict[int, Metrics]:
    out: dict[int, tuple[Path, Metrics]] = {}
    for folder, run in runs:
        earlier, _ = out.setdefault(run["seed"], (folder, run))
        if earlier != folder:
            raise ConfigError(f"{name}: seed {run['seed']} is there twice ({earlier}, {folder}); leave one out")
    return {seed: run for seed, (_, run) in out.items()}


def _config(folder: Path) -> RunConfig:
    """Of a run, or of a fleet's first agent."""
    agents = sorted(folder.glob("agent-*/config.yaml"))
    return read_config(agents[0].parent if agents and not (folder / "config.yaml").exists() else folder)


def _exchange(run: Metrics) -> str:
    return str(run.get("exchange") or "simulated")


def quantities(tasks: int, same: bool) -> list[Quantity]:
    """What is compared, with so many tasks at both sides; scores over all tasks where both have the `same` number."""

    def whole(of: Callable[[Metrics], Any]) -> Callable[[Metrics], Any]:
        """Of runs that finished all tasks."""
        return lambda run: of(run) if len(_matrix(run)) == tasks else None

    def traffic(key: str) -> Callable[[Metrics], Any]:
        return whole(lambda run: run["traffic"][key])

    over_all = [
        Quantity("acc", "ACC %", whole(lambda run: run["acc"]), _plain),
        Quantity("bwt", "BWT %", whole(lambda run: run["bwt"]), _plain),
        Quantity("cc", "cc", traffic("cc"), _plain),
        Quantity("cc_reference", "cc_reference", traffic("cc_reference"), _plain),
        Quantity("train_bytes", "train bytes", traffic("train_bytes"), spread_of_bytes),
        Quantity("boundary_bytes", "boundary bytes", traffic("boundary_bytes"), spread_of_bytes),
        Quantity("consensus_error", "consensus error", whole(_consensus), _rough),
    ]
    pace = Quantity("ms_per_iteration", "ms a step", lambda run: run["timing"]["ms_per_iteration"], _plain)
    each = range(tasks)
    ends = [Quantity(f"accuracy_{task + 1}", f"task {task + 1} %", _accuracy(task), _plain) for task in each]
    return [*(over_all if same else []), pace, *ends]


def _matrix(run: Metrics) -> Sequence[Sequence[float | None]]:
    return run.get("accuracy_matrix") or []


def _plain(value: float, spread: float | None) -> str:
    return f"{value:.2f}" if spread is None else f"{value:.2f} ± {spread:.2f}"


def _rough(value: float, spread: float | None) -> str:
    return f"{value:.1g}" if spread is None else f"{value:.1g} ± {spread:.1g}"


def _accuracy(task: int) -> Callable[[Metrics], Any]:
    """Of a task at the end; of tasks that stand alone, when its own training ended."""

    def of(run: Metrics) -> Any:
        matrix = _matrix(run)
        if task >= len(matrix):
            return None
        return matrix[task if run["each_task_alone"] else -1][task]

    return of


def _consensus(run: Metrics) -> Any:
    """At the end of the last task, before agreement."""
    known = run.get("consensus_error_by_task")
    return known[-1] if known else None


def about(found: Comparison) -> list[str]:
    """What is compared, and what should be known about it, a line each."""
    same_runs = found.a.path.resolve() == found.b.path.resolve()
    changes = [text if len(text) <= LONGEST else text[: LONGEST - 1] + "…" for text in found.config]
    lines = [*(f"{name}: {_named(one)}" for name, one in (("A", found.a), ("B", found.b)))]
    lines.append("configs differ in " + "; ".join(changes) if changes else "configs are the same")
    if same_runs:
        lines.append("A and B are the same folder")
    if found.a.tasks != found.b.tasks:
        fewer = min(found.a.tasks, found.b.tasks)
        lines.append(
            f"A finished {found.a.tasks} tasks, B {found.b.tasks}: scores and bytes over all tasks are left out, the"
            f" first {fewer} are compared"
        )
    return lines


def _named(one: Side) -> str:
    run = next(iter(one.runs.values()))
    seeds = ", ".join(map(str, sorted(one.runs)))
    odd = [f"seed {seed} is {run['status']}" for seed, run in sorted(one.runs.items()) if run["status"] != "complete"]
    words = f"{run['method']}, {run['agents']} agents on {run['topology']}, seed{'s' * (len(one.runs) > 1)} {seeds}"
    return "; ".join([f"{one.path} ({run['benchmark']}: {words})", *odd])


def sheet(found: Comparison) -> Sheet:
    """A row a quantity; those that neither side knows are left out."""
    lines = [line for line in found.lines if (line.found.a.mean, line.found.b.mean) != (None, None)]
    ways = {line.found.way for line in lines}
    note = NOTE.format(ways="; ".join(WAYS[way] for way in ("paired", "Welch") if way in ways))
    columns = [
        Column("", [line.quantity.title for line in lines], words=True, fold=True),
        Column("A", [_score(line.found.a, line.quantity) for line in lines]),
        Column("B", [_score(line.found.b, line.quantity) for line in lines]),
        Column("B − A", [_change(line) for line in lines]),
        Column("verdict", [line.found.verdict for line in lines], words=True, fold=True),
    ]
    return Sheet("", columns, note if ways & set(WAYS) else "", [record_of(line) for line in lines])


def _score(score: Score, quantity: Quantity) -> str:
    return "-" if score.mean is None else quantity.form(score.mean, score.std)


def _change(line: Line) -> str:
    """The difference, and how far its interval reaches to each side."""
    mean, low, high, form = line.found.mean, line.found.low, line.found.high, line.quantity.form
    if mean is None:
        return "-"
    reach = (high - low) / 2 if line.found.way and low is not None and high is not None else None
    return ("+" if mean > 0 else "") + form(mean, reach)


def record_of(line: Line) -> dict[str, Any]:
    """A row for machines: every number as it is."""
    found = line.found
    return {
        "metric": line.quantity.key,
        "a": found.a.mean,
        "a_std": found.a.std,
        "b": found.b.mean,
        "b_std": found.b.std,
        "difference": found.mean,
        "low": found.low,
        "high": found.high,
        "interval": found.way,
        "verdict": found.verdict,
    }


def plain(found: Comparison) -> dict[str, Any]:
    """All of it for machines."""

    def of(one: Side) -> dict[str, Any]:
        status = {str(seed): run["status"] for seed, run in sorted(one.runs.items())}
        return {"path": str(one.path), "digest": one.config.digest(), "tasks": one.tasks, "status_by_seed": status}

    lines = [record_of(line) for line in found.lines]
    return {"a": of(found.a), "b": of(found.b), "config": list(found.config), "metrics": lines}
