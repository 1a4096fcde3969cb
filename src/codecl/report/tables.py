"""Runs -> tables: a row a configuration, mean ± std over seeds; what was learned beside what is still known."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from rich.markup import escape
from rich.table import Table

from codecl.report import formats
from codecl.report.configurations import Configuration, group, shortened
from codecl.report.formats import Column, Sheet, size
from codecl.report.paper import beside, in_order
from codecl.runs.reader import Run
from codecl.runs.schema import Metrics

NOTE = (
    "Δ: ours − the paper's. CC: counted as the authors do, every head and norm in every message, nothing of what is"
    " sent between tasks (cc_reference). cc: our own, stricter count of all that is sent."
)


def results(runs: Sequence[Run], paper: bool = False) -> Sheet:
    """A row a configuration; with `paper`, beside the paper's. Columns that would say nothing are left out."""
    rows = in_order(group(runs)) if paper else group(runs)
    columns = [*_names(rows, paper), *(_beside_the_paper(rows) if paper else _scores(rows))]
    statuses = [row.metrics.status for row in rows]
    if {*statuses} != {"complete"}:
        columns.append(Column("status", statuses, words=True))
    return Sheet("results", columns, NOTE if paper else "", [_record(row, paper) for row in rows])


def _names(rows: Sequence[Configuration], paper: bool) -> list[Column]:
    """Which runs a row is about."""
    metrics = [row.metrics for row in rows]
    names = {(run.benchmark, run.method, run.topology, run.agents) for run in metrics}
    columns = [
        Column("preset", [run.benchmark for run in metrics], words=True),
        Column("method", [run.method for run in metrics], words=True),
        Column("agents", [f"{run.topology} {run.agents}" for run in metrics], words=True),
        Column("variant", shortened([row.variant for row in rows]), words=True, fold=True),
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

    steps = [row.score(_ms).mean for row in rows]
    return [
        Column("ACC %", over_seeds(lambda run: run.acc)),
        Column("BWT %", over_seeds(lambda run: run.bwt)),
        Column("sent", [size(fmean(run.metrics.traffic.sent_bytes for run in row.runs)) for row in rows]),
        Column("cc", over_seeds(lambda run: run.traffic.cc)),
        Column("ms a step", ["-" if ms is None else f"{ms:.2f}" for ms in steps]),
    ]


def _ms(run: Metrics) -> float | None:
    return run.timing.ms_per_iteration


def _beside_the_paper(rows: Sequence[Configuration]) -> list[Column]:
    """Ours, the paper's and the difference, three columns a score."""
    columns = []
    for name, unit in {"acc": " %", "bwt": " %", "cc": ""}.items():
        title = name.upper()
        pairs = [beside(row)[name] for row in rows]
        columns += [
            Column(title + unit, [str(pair.ours) for pair in pairs], fold=True),
            Column(f"paper {title}", [str(pair.paper) for pair in pairs], fold=True),
            Column(f"Δ {title}", ["-" if pair.difference is None else f"{pair.difference:+z.2f}" for pair in pairs]),
        ]
    return [*columns, Column("cc", [str(row.score(lambda run: run.traffic.cc)) for row in rows], fold=True)]


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
        "ms_per_iteration": row.score(_ms).mean,
        **(_paper_record(row) if paper else {}),
    }


def _paper_record(row: Configuration) -> dict[str, float | None]:
    pairs = beside(row)
    return {
        "paper_acc": pairs["acc"].paper.mean,
        "paper_acc_std": pairs["acc"].paper.std,
        "paper_bwt": pairs["bwt"].paper.mean,
        "paper_bwt_std": pairs["bwt"].paper.std,
        "paper_cc": pairs["cc"].paper.mean,
        **{f"{name}_difference": pair.difference for name, pair in pairs.items()},
    }


def forgetting(runs: Sequence[Metrics], tasks: Sequence[str]) -> Table:
    """For each run, a task's accuracy right after it was learned and at the end."""
    table = formats.blank("accuracy in %: when learned → at the end")
    table.add_column("task")
    for run in runs:
        table.add_column(run.method, justify="right")
    for index, task in enumerate(tasks):
        table.add_row(escape(task), *(_learned_and_now(run, index) for run in runs))
    return table


def _learned_and_now(run: Metrics, task: int) -> str:
    matrix = run.accuracy_matrix
    if task >= len(matrix):
        return "-"
    learned, now = matrix[task][task], matrix[-1][task]
    if learned is None or now is None:
        return "-"
    tone = "red" if now < learned - 3 else "green"
    return f"{learned:.1f} → [{tone}]{now:.1f}[/]"


def in_words(runs: Sequence[Metrics]) -> str:
    """The point of the comparison in a sentence or two; empty where there is nothing to compare."""
    by_method = {run.method: run for run in runs if run.status == "complete"}
    if len(by_method) != len(runs) or not {"codec", "dpsgd"} <= set(by_method):
        return ""
    codec, dpsgd = by_method["codec"], by_method["dpsgd"]
    if codec.bwt is None or dpsgd.bwt is None or codec.traffic.cc is None:
        return ""
    sent, full = codec.traffic.sent_bytes, codec.traffic.full_bytes
    return (
        f"Of what they had learned, codec {_change(codec.bwt)}, plain dpsgd {_change(dpsgd.bwt)} (BWT).\n"
        f"codec sent {size(sent)} where full communication sends {size(full)}, {full / sent:.2f} times as much."
    )


def _change(bwt: float) -> str:
    return f"lost {-bwt:.2f} points" if bwt < 0 else f"lost nothing ({bwt:+.2f} points)"
