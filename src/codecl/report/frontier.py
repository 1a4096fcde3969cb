"""The trade-off of recorded runs: accuracy against what was sent and against what tasks keep for themselves."""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from codecl.errors import ConfigError
from codecl.report.commands import NOT_SAID, as_set, changed, command
from codecl.report.configurations import Configuration, group, kept_percent, not_original, remarks
from codecl.report.figures import Points, Series
from codecl.report.formats import UNKNOWN, Column, Sheet, number, size
from codecl.report.score_words import ScoreWords
from codecl.report.tables import benchmark, kept_column
from codecl.runs.config import flat
from codecl.runs.reader import Run

NOTE = "best: no other configuration has at least this ACC with no more bytes sent and no more kept."
LABELS = ("preset", "method", "agents", "exchange", "variant", "folder")  # what tells runs apart beside fields
MIN_ON_PAGE = 3  # configurations of one benchmark
Costs = Sequence[float]  # each the lower the better


class Choice(NamedTuple):
    """A configuration, and where it stands among others."""

    configuration: Configuration
    fields: Mapping[str, Any]  # in which the configurations differ from one another
    costs: Costs | None  # -ACC, bytes sent, % kept; None: it has not finished its tasks
    best: bool

    @property
    def name(self) -> str:
        words = [_said(value) if name in LABELS else f"{name} {_said(value)}" for name, value in self.fields.items()]
        return ", ".join(words) or self.configuration.name


def choices(runs: Sequence[Run]) -> list[Choice]:
    """The configurations of runs of one benchmark, those that sent least first."""
    benchmarks = sorted({_benchmark(run) for run in runs})
    if len(benchmarks) > 1:
        raise ConfigError(
            f"RUNS: they are of several benchmarks ({'; '.join(benchmarks)}), whose accuracies do not compare;"
            " give the folders of one"
        )
    configurations = sorted(group(runs), key=_sent)
    costs = [_costs(configuration) for configuration in configurations]
    rows = zip(configurations, differing(configurations), costs, undominated(costs), strict=True)
    return [Choice(*row) for row in rows]


def _benchmark(run: Run) -> str:
    words = ScoreWords.of([run.metrics])
    score = "" if words.name == "accuracy" else f", {words.name}"
    return f"{benchmark(run.metrics.benchmark) or run.metrics.benchmark}, {run.metrics.tasks} tasks{score}"


def _sent(configuration: Configuration) -> float:
    return configuration.score(lambda run: run.traffic.sent_bytes).mean or 0.0


def _costs(configuration: Configuration) -> Costs | None:
    """What is not known to be kept counts as more than anything that is."""
    acc, kept = configuration.score(lambda run: run.acc).mean, configuration.score(kept_percent).mean
    if acc is None or configuration.metrics.status == "partial":
        return None
    return -acc, _sent(configuration), math.inf if kept is None else kept


def undominated(costs: Sequence[Costs | None]) -> list[bool]:
    """Whether no other is as low in every cost and lower in one (Pareto-optimal)."""
    known = [cost for cost in costs if cost is not None]
    return [
        cost is not None and not any(other != cost and all(map(float.__le__, other, cost)) for other in known)
        for cost in costs
    ]


def differing(configurations: Sequence[Configuration]) -> list[dict[str, Any]]:
    """Of each configuration, the labels and fields in which they differ from one another; of fields, those that some
    config has other than its preset."""
    fields = [_fields(configuration) for configuration in configurations]
    shown = {*LABELS, *(name for one in configurations for name in _changed(one))}
    known = dict.fromkeys(name for one in fields for name in one if name in shown)
    names = [name for name in known if len({json.dumps(one.get(name)) for one in fields}) > 1]
    rows = [{name: one.get(name) for name in names} for one in fields]
    if len({json.dumps(row) for row in rows}) < len(rows):  # the same config twice
        rows = [row | {"folder": str(one.runs[0].folder.parent)} for row, one in zip(rows, configurations, strict=True)]
    return rows


def _fields(configuration: Configuration) -> dict[str, Any]:
    run, config = configuration.metrics, configuration.runs[0].config
    labels: dict[str, Any] = {"preset": run.benchmark, "method": run.method, "agents": f"{run.topology} {run.agents}"}
    labels["exchange"] = run.exchange or "simulated"
    if config is None:
        return labels | {"variant": configuration.variant}
    unsaid = NOT_SAID | {"checkpoint": True, "train": {"execution"}}  # they decide no score
    return labels | flat(config.model_dump(mode="json", exclude=unsaid))


def _changed(configuration: Configuration) -> Sequence[str]:
    """Names of fields; all, where there is no preset to compare with."""
    config = configuration.runs[0].config
    if config is not None:
        with suppress(ConfigError):
            return list(changed(config))
    return list(_fields(configuration))


def _said(value: Any) -> str:
    return UNKNOWN if value is None else as_set(value)


def sheet(rows: Sequence[Choice], commands: bool = False) -> Sheet:
    """A row for each configuration; `commands`: with what makes it again in a column."""
    configurations = [row.configuration for row in rows]
    statuses, words = [one.metrics.status for one in configurations], configurations[0].words
    accs = [one.score(lambda run: run.acc) for one in configurations]
    bwts = [one.score(lambda run: run.bwt) for one in configurations]
    columns = [
        *(
            Column(name, [_said(row.fields[name]) for row in rows], name in LABELS, fold=True)
            for name in rows[0].fields
        ),
        Column("seeds", [str(len(one.runs)) for one in configurations], fold=True),
        Column(words.title("ACC"), [acc.text(words.digits) for acc in accs], fold=True),
        Column(words.title("BWT"), [number(bwt.mean, words.digits) for bwt in bwts], fold=True),
        Column("cc", [number(one.score(lambda run: run.traffic.cc).mean) for one in configurations], optional=True),
        Column("sent", [size(_sent(one)) for one in configurations]),
        kept_column(configurations),
        Column("best", ["yes" if row.best else "" for row in rows], words=True),
    ]
    if {*statuses} != {"complete"}:
        columns.append(Column("status", statuses, words=True))
    if commands:
        columns.append(Column("command", [command(one.runs) or UNKNOWN for one in configurations], words=True))
    lines = [NOTE, *remarks(run.metrics for one in configurations for run in one.runs)]
    return Sheet("trade-off", columns, "\n".join(lines), [_record(row) for row in rows])


def _record(row: Choice) -> dict[str, Any]:
    """A row for machines: every number as it is."""
    one = row.configuration
    acc, bwt = one.score(lambda run: run.acc), one.score(lambda run: run.bwt)
    return {
        **row.fields,
        "seeds": len(one.runs),
        "status": one.metrics.status,
        "acc": acc.mean,
        "acc_std": acc.std,
        "bwt": bwt.mean,
        "bwt_std": bwt.std,
        "cc": one.score(lambda run: run.traffic.cc).mean,
        "sent_bytes": _sent(one),
        "kept_percent": one.score(kept_percent).mean,
        "best": row.best,
        "not_original": "; ".join(not_original(run.metrics for run in one.runs)),
        "command": command(one.runs),
    }


def _about(series: Sequence[Series], joined: int) -> str:
    said = ["Mean ± standard deviation over seeds."] if any(one.std for one in series) else []
    said.append("Filled: no other configuration has at least this ACC with no more bytes sent and no more kept.")
    if joined > 1:
        said.append("The line joins those that are best by the two quantities shown here alone.")
    return " ".join(said)


def by_bytes(rows: Sequence[Choice]) -> Points | None:
    return _points("frontier-bytes", "ACC against megabytes sent", "MB sent", rows, 1, 1e6, log_x=True)


def by_kept(rows: Sequence[Choice]) -> Points | None:
    return _points("frontier-kept", "ACC against numbers kept", "the most that a task keeps, % of the body", rows, 2)


def _points(
    key: str, title: str, x: str, rows: Sequence[Choice], place: int, unit: float = 1.0, log_x: bool = False
) -> Points | None:
    """`place`: of the cost that is shown. Those of which it is not known, or has no place on the axis, are left out."""
    series, best, pairs = [], [], []
    for row in rows:
        if row.costs is None or not math.isfinite(row.costs[place]) or (log_x and not row.costs[place]):
            continue
        acc = row.configuration.score(lambda run: run.acc)
        pairs.append((-(acc.mean or 0.0), row.costs[place] / unit))
        std = None if acc.std is None else [acc.std]
        series.append(Series(row.name, [pairs[-1][1]], [acc.mean], std))
        best.append(row.best)
    if not series:
        return None
    joined = sorted((at, -cost) for (cost, at), joins in zip(pairs, undominated(pairs), strict=True) if joins)
    y = rows[0].configuration.words.title("ACC")
    return Points(key, title, _about(series, len(joined)), x, y, series, best, joined, log_x)


def on_page(configurations: Sequence[Configuration]) -> dict[str, list[Choice]]:
    """By benchmark, where enough configurations differ in more than their labels."""
    runs: dict[str, list[Run]] = {}
    for run in (run for configuration in configurations for run in configuration.runs):
        runs.setdefault(_benchmark(run), []).append(run)
    found = {name: [row for row in choices(of_one) if row.costs] for name, of_one in runs.items()}
    return {
        name: rows for name, rows in found.items() if len(rows) >= MIN_ON_PAGE and not {*rows[0].fields} <= {*LABELS}
    }
