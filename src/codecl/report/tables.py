"""Runs -> tables: a row for each configuration, mean ± std over seeds, beside the numbers of the paper's Table 1;
what was learned beside what is still known."""

import csv
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from rich.markup import escape
from rich.table import Table

from codecl.errors import ConfigError
from codecl.report import formats
from codecl.report.configurations import (
    Configuration,
    Score,
    group,
    kept_percent,
    ms_per_step,
    not_original,
    not_scored,
    remarks,
)
from codecl.report.formats import UNKNOWN, Column, Sheet, number, size
from codecl.report.score_words import ScoreWords
from codecl.runs.grid import preset
from codecl.runs.reader import Run
from codecl.runs.schema import Metrics

NOTE = (
    "ACC: mean accuracy over tasks at the end. BWT: how it changed since each task was learned; below 0 is forgetting."
    " cc: what full communication sends / all that was sent. kept: the most that a task keeps for itself, compared with"
    " the body that all share."
)
PAPER_NOTE = (
    "Δ: ours − the paper's. cc: what full communication sends / all that was sent, our own count. cc_reference: the"
    " same ratio as the authors count it, which is the one to set beside the paper's: every head and norm in every"
    " message, nothing of what is sent between tasks."
)
ORDER = ("stl", "d-ewc", "codec-full", "codec")  # of the methods in the paper; others follow
OURS: Mapping[str, Callable[[Metrics], float | None]] = {
    "acc": lambda run: run.acc,
    "bwt": lambda run: run.bwt,
    "cc": lambda run: run.traffic.cc_reference,  # counted as the authors do
}
Key = tuple[str | None, str, int, str]  # benchmark, topology, agents, method


def results(runs: Sequence[Run], paper: bool = False) -> Sheet:
    """A row for each configuration; with `paper`, beside the paper's. Columns that would say nothing are left out."""
    rows = in_order(group(runs)) if paper else group(runs)
    columns = [*_names(rows, paper), *(_beside_the_paper(rows) if paper else _scores(rows))]
    statuses = [row.metrics.status for row in rows]
    if {*statuses} != {"complete"}:
        columns.append(Column("status", statuses, words=True))
    words = ScoreWords.of(run.metrics for run in runs)
    lines = [PAPER_NOTE if paper else words.put(NOTE), *remarks(run.metrics for run in runs)]
    records = [_record(row, paper) for row in rows]
    if words.name != "accuracy":
        records = [record | {"score": row.metrics.score} for record, row in zip(records, rows, strict=True)]
    return Sheet("results", columns, "\n".join(lines), records)


def _names(rows: Sequence[Configuration], paper: bool) -> list[Column]:
    """Which runs a row is about."""
    metrics = [row.metrics for row in rows]
    names = {(run.benchmark, run.method, run.topology, run.agents) for run in metrics}
    columns = [
        Column("preset", [run.benchmark for run in metrics], words=True),
        Column("method", [run.method for run in metrics], words=True),
        Column("agents", [f"{run.topology} {run.agents}" for run in metrics], words=True),
        Column("variant", [row.variant for row in rows], words=True, fold=True),
        Column("seeds", [str(len(row.runs)) for row in rows]),
    ]
    shown = {
        "preset": len({run.benchmark for run in metrics}) > 1,
        "variant": any(row.variant for row in rows) if paper else len(names) < len(rows),
    }
    return [column for column in columns if shown.get(column.title, True)]


def _scores(rows: Sequence[Configuration]) -> list[Column]:
    def over_seeds(value: Callable[[Metrics], float | None]) -> list[str]:
        return [str(row.score(value)) for row in rows]

    return [
        *score_columns(rows),
        Column("sent", [size(fmean(run.metrics.traffic.sent_bytes for run in row.runs)) for row in rows]),
        Column("cc", over_seeds(lambda run: run.traffic.cc), fold=True),
        kept_column(rows),
        Column("ms a step", [number(row.score(ms_per_step).mean) for row in rows], fold=True, optional=True),
    ]


def score_columns(rows: Sequence[Configuration]) -> list[Column]:
    """ACC and BWT of the score that the rows share; where they have several, with its name in a column."""
    words = ScoreWords.of(row.metrics for row in rows)
    acc = [row.score(lambda run: run.acc).text(row.words.digits) for row in rows]
    bwt = [row.score(lambda run: run.bwt).text(row.words.digits) for row in rows]
    names = [] if words.name else [Column("score", [row.words.axis for row in rows], words=True)]
    return [*names, Column(words.title("ACC"), acc, fold=True), Column(words.title("BWT"), bwt, fold=True)]


def kept_column(rows: Sequence[Configuration]) -> Column:
    """The most that a task keeps for itself; seeds normally have the same."""
    return Column("kept %", [number(row.score(kept_percent).mean, ".1f") for row in rows], fold=True)


def _beside_the_paper(rows: Sequence[Configuration]) -> list[Column]:
    """Ours, the paper's and the difference, three columns a score."""
    columns = []
    for name, (title, ours) in {"acc": ("ACC", "ACC %"), "bwt": ("BWT", "BWT %"), "cc": ("cc", "cc_reference")}.items():
        pairs = [beside(row)[name] for row in rows]
        columns += [
            Column(ours, [str(pair.ours) for pair in pairs], fold=True),
            Column(f"paper {title}", [str(pair.paper) for pair in pairs], fold=True),
            Column(f"Δ {title}", [number(pair.difference, "+z.2f") for pair in pairs]),
        ]
    cc = Column("cc", [str(row.score(lambda run: run.traffic.cc)) for row in rows], fold=True)
    return [*columns, cc, kept_column(rows)]


def _record(row: Configuration, paper: bool) -> dict[str, Any]:
    """A row for machines: every number as it is."""
    acc, bwt = row.score(lambda run: run.acc), row.score(lambda run: run.bwt)
    reference = row.score(lambda run: run.traffic.cc_reference)
    return {
        "benchmark": row.metrics.benchmark,
        "method": row.metrics.method,
        "topology": row.metrics.topology,
        "agents": row.metrics.agents,
        "variant": row.variant,
        "status": row.metrics.status,
        "seeds": len(row.runs),
        "acc": acc.mean,
        "acc_std": acc.std,
        "bwt": bwt.mean,
        "bwt_std": bwt.std,
        "cc": row.score(lambda run: run.traffic.cc).mean,
        "cc_reference": reference.mean,
        "cc_reference_std": reference.std,
        "kept_percent": row.score(kept_percent).mean,
        "ms_per_iteration": row.score(ms_per_step).mean,
        **(_paper_record(row) if paper else {}),
        "not_scored": "; ".join(not_scored(run.metrics for run in row.runs)),
        "not_original": "; ".join(not_original(run.metrics for run in row.runs)),
    }


def plain(folder: Path, run: Metrics) -> dict[str, Any]:
    """A run's metrics as they are, and the share that is made of them."""
    return {"folder": str(folder), **run.dump(), "kept_percent": run.kept_percent}


def _paper_record(row: Configuration) -> dict[str, float | None]:
    acc, bwt, cc = beside(row).values()
    scores = {"paper_acc": acc.paper.mean, "paper_acc_std": acc.paper.std}
    scores |= {"paper_bwt": bwt.paper.mean, "paper_bwt_std": bwt.paper.std, "paper_cc": cc.paper.mean}
    return {**scores, **{f"{name}_difference": pair.difference for name, pair in beside(row).items()}}


class Beside(NamedTuple):
    """A score of ours, the paper's, and ours − the paper's where both tell of the same tasks."""

    ours: Score
    paper: Score
    difference: float | None


def beside(configuration: Configuration) -> dict[str, Beside]:
    """acc, bwt and cc of a configuration beside the paper's."""
    run = configuration.metrics
    printed = _printed().get((benchmark(run.benchmark), run.topology, run.agents, run.method), {})
    out = {}
    for name, value in OURS.items():
        ours, paper = configuration.score(value), printed.get(name, Score())
        difference = None
        of_all = run.status != "partial" and not (run.not_scored and name != "cc")
        if of_all and ours.mean is not None and paper.mean is not None:
            difference = ours.mean - paper.mean
        out[name] = Beside(ours, paper, difference)
    return out


def in_order(configurations: Sequence[Configuration]) -> list[Configuration]:
    """As the paper has them: benchmark, agents, topology, method."""

    def place(configuration: Configuration) -> tuple[str, int, str, int, str]:
        run = configuration.metrics
        method = ORDER.index(run.method) if run.method in ORDER else len(ORDER)
        return run.benchmark, run.agents, run.topology, method, run.method

    return sorted(configurations, key=place)


def in_paper(name: str) -> bool:
    """Whether a preset is one of the paper's."""
    return benchmark(name) in {key[0] for key in _printed()}


def benchmark(name: str) -> str | None:
    """What the paper calls a preset; None for one that is not here."""
    try:
        return preset(name).paper
    except ConfigError:
        return None


@cache
def _printed() -> dict[Key, dict[str, Score]]:
    text = (resources.files("codecl") / "report" / "table1.csv").read_text(encoding="utf-8")
    return {
        (line["benchmark"], line["topology"], int(line["agents"]), line["method"]): {
            name: Score(*(float(text) if text else None for text in (line[name], line.get(f"{name}_std"))))
            for name in OURS
        }
        for line in csv.DictReader(text.splitlines())
    }


def forgetting(runs: Sequence[Metrics], tasks: Sequence[str]) -> Table:
    """For each run, a task's score right after it was learned and at the end."""
    table = formats.blank(f"{ScoreWords.of(runs).axis}: when learned → at the end")
    table.add_column("task")
    for run in runs:
        table.add_column(run.method, justify="right")
    for index, task in enumerate(tasks):
        table.add_row(escape(task), *(_learned_and_now(run, index) for run in runs))
    return table


def _learned_and_now(run: Metrics, task: int) -> str:
    matrix = run.accuracy_matrix
    if task >= len(matrix):
        return UNKNOWN
    learned, now = matrix[task][task], matrix[-1][task]
    if learned is None:
        return UNKNOWN
    words = ScoreWords.of([run])
    digits = ".1f" if words.percent else words.digits
    if now is None:
        return f"{learned:{digits}} → {UNKNOWN}"
    tone = "red" if now < learned - words.some(3, learned) else "green"
    return f"{learned:{digits}} → [{tone}]{now:{digits}}[/]"


def in_words(runs: Sequence[Metrics]) -> str:
    """The point of the comparison in a sentence or two; empty where there is nothing to compare."""
    by_method = {run.method: run for run in runs if run.status == "complete"}
    if len(by_method) != len(runs) or not {"codec", "dpsgd"} <= set(by_method):
        return ""
    codec, dpsgd = by_method["codec"], by_method["dpsgd"]
    if codec.bwt is None or dpsgd.bwt is None or codec.traffic.cc is None or codec.not_scored != dpsgd.not_scored:
        return ""
    sent, full = codec.traffic.sent_bytes, codec.traffic.full_bytes
    return (
        f"Of what they had learned, codec {_change(codec)}, plain dpsgd {_change(dpsgd)} (BWT).\n"
        f"codec sent {size(sent)} where full communication sends {size(full)}, {full / sent:.2f} times as much."
    )


def _change(run: Metrics) -> str:
    words, bwt = ScoreWords.of([run]), run.bwt or 0.0
    return f"lost {words.points(-bwt, '.2f')}" if bwt < 0 else f"lost nothing ({words.points(bwt, '+.2f')})"
