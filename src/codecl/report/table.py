"""Metrics -> tables: a row a configuration, mean ± std over seeds; what was learned beside what is still known."""

from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from codecl.report import formats
from codecl.report.formats import Column, Sheet
from codecl.report.paper import beside, in_order
from codecl.report.rows import Metrics, Row, Runs, rows
from codecl.report.units import size
from codecl.report.variant import shortened

NOTE = (
    "Δ: ours − the paper's. CC: counted as the authors do, every head and norm in every message, nothing of what is"
    " sent between tasks (cc_reference). cc: our own, stricter count of all that is sent."
)


def results(runs: Runs) -> Table:
    """A row a configuration, for a terminal."""
    return formats.table(sheet(runs))


def sheet(runs: Runs, paper: bool = False) -> Sheet:
    """A row a configuration; with `paper`, beside the paper's. Columns that would say nothing are left out."""
    found = in_order(rows(runs)) if paper else rows(runs)
    scores = _beside_the_paper(found) if paper else _scores(found)
    columns = [*_names(found, paper), *scores, Column("status", [row.status for row in found], words=True)]
    if {row.status for row in found} == {"complete"}:
        del columns[-1]
    return Sheet("results", columns, NOTE if paper else "", [_record(row, paper) for row in found])


def _names(found: Sequence[Row], paper: bool) -> list[Column]:
    """Which runs a row is about."""
    first = [row.first for row in found]
    names = {(run["benchmark"], run["method"], run["topology"], run["agents"]) for run in first}
    columns = [
        Column("preset", [str(run["benchmark"]) for run in first], words=True),
        Column("method", [str(run["method"]) for run in first], words=True),
        Column("agents", [f"{run['topology']} {run['agents']}" for run in first], words=True),
        Column("variant", shortened([row.variant for row in found]), words=True, fold=True),
        Column("seeds", [str(len(row.runs)) for row in found]),
    ]
    shown = {
        "preset": len({run["benchmark"] for run in first}) > 1,
        "variant": any(row.variant for row in found) if paper else len(names) < len(found),
    }
    return [column for column in columns if shown.get(column.title, True)]


def _scores(found: Sequence[Row]) -> list[Column]:
    return [
        Column("ACC %", [str(row.over_seeds("acc")) for row in found]),
        Column("BWT %", [str(row.over_seeds("bwt")) for row in found]),
        Column("sent", [size(row.mean_bytes("train_bytes", "boundary_bytes")) for row in found]),
        Column("cc", [str(row.over_seeds("traffic", "cc")) for row in found]),
        Column("ms a step", [str(row.over_seeds("timing", "ms_per_iteration")._replace(std=None)) for row in found]),
    ]


def _beside_the_paper(found: Sequence[Row]) -> list[Column]:
    """Ours, the paper's and the difference, three columns a score."""
    columns = []
    for name, unit in {"acc": " %", "bwt": " %", "cc": ""}.items():
        pairs, title = [beside(row)[name] for row in found], name.upper()
        columns += [
            Column(title + unit, [str(pair.ours) for pair in pairs], fold=True),
            Column(f"paper {title}", [str(pair.paper) for pair in pairs], fold=True),
            Column(f"Δ {title}", [_signed(pair.difference) for pair in pairs]),
        ]
    return [*columns, Column("cc", [str(row.over_seeds("traffic", "cc")) for row in found], fold=True)]


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+z.2f}"


def _record(row: Row, paper: bool) -> dict[str, Any]:
    """A row for machines: every number as it is."""
    acc, bwt, reference = row.over_seeds("acc"), row.over_seeds("bwt"), row.over_seeds("traffic", "cc_reference")
    return {
        **{name: row.first[name] for name in ("benchmark", "method", "topology", "agents")},
        "variant": row.variant,
        "status": row.status,
        "seeds": len(row.runs),
        "acc": acc.mean,
        "acc_std": acc.std,
        "bwt": bwt.mean,
        "bwt_std": bwt.std,
        "cc": row.over_seeds("traffic", "cc").mean,
        "cc_reference": reference.mean,
        "cc_reference_std": reference.std,
        "ms_per_iteration": row.over_seeds("timing", "ms_per_iteration").mean,
        **(_paper_record(row) if paper else {}),
    }


def _paper_record(row: Row) -> dict[str, float | None]:
    pairs = beside(row)
    return {
        "paper_acc": pairs["acc"].paper.mean,
        "paper_acc_std": pairs["acc"].paper.std,
        "paper_bwt": pairs["bwt"].paper.mean,
        "paper_bwt_std": pairs["bwt"].paper.std,
        "paper_cc": pairs["cc"].paper.mean,
        **{f"{name}_difference": pair.difference for name, pair in pairs.items()},
    }


def forgetting(named: Sequence[tuple[str, Metrics]], tasks: Sequence[str]) -> Table:
    """For each run, a task's accuracy right after it was learned and at the end."""
    table = formats.blank("accuracy in %: when learned → at the end")
    table.add_column("task")
    for name, _ in named:
        table.add_column(name, justify="right")
    for index, task in enumerate(tasks):
        cells = []
        for _, run in named:
            matrix = run["accuracy_matrix"]
            if index >= len(matrix):
                cells.append("-")
                continue
            learned, now = matrix[index][index], matrix[-1][index]
            tone = "red" if now < learned - 3 else "green"
            cells.append(f"{learned:.1f} → [{tone}]{now:.1f}[/]")
        table.add_row(escape(task), *cells)
    return table


def in_words(runs: Sequence[Metrics]) -> str:
    """The point of the comparison in a sentence or two; empty where there is nothing to compare."""
    by_method = {run["method"]: run for run in runs if run["status"] == "complete"}
    if len(by_method) != len(runs) or not {"codec", "dpsgd"} <= set(by_method):
        return ""
    ours, plain = by_method["codec"], by_method["dpsgd"]
    if ours["bwt"] is None or ours["traffic"]["cc"] is None:
        return ""
    sent = ours["traffic"]["train_bytes"] + ours["traffic"]["boundary_bytes"]
    full = ours["traffic"]["full_bytes"]
    return (
        f"Of what they had learned, codec {_change(ours['bwt'])}, plain dpsgd {_change(plain['bwt'])} (BWT).\n"
        f"codec sent {size(sent)} where full communication sends {size(full)}, {full / sent:.2f} times as much."
    )


def _change(bwt: float) -> str:
    return f"lost {-bwt:.2f} points" if bwt < 0 else f"lost nothing ({bwt:+.2f} points)"
