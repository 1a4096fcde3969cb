"""Metrics -> tables: a row a configuration, mean ± std over seeds; what was learned beside what is still known."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.markup import escape
from rich.table import Table

Metrics = Mapping[str, Any]
Runs = Sequence[tuple[Path, Metrics]]  # a run folder and its metrics


class Row(NamedTuple):
    """Runs that differ in their seed alone and ended alike: those of one folder and status."""

    folder: str
    runs: Sequence[Metrics]

    @property
    def variant(self) -> str:
        """The digest at the folder's end: the config differs from the preset's in more than its name says."""
        one = self.runs[0]
        return self.folder.partition(f"{one['topology']}{one['agents']}-")[2]

    def over_seeds(self, *path: str) -> str:
        """`mean ± std` of a metric, `mean` of one seed, `-` where there is none."""
        values = [value for run in self.runs if (value := _get(run, path)) is not None]
        if not values:
            return "-"
        mean = f"{statistics.fmean(values):.2f}"
        return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean

    def mean_size(self, *keys: str) -> str:
        return size(statistics.fmean(sum(run["traffic"][key] for key in keys) for run in self.runs))

    @property
    def status(self) -> str:
        return str(self.runs[0]["status"])


def _get(run: Metrics, path: Sequence[str]) -> Any:
    value: Any = run
    for key in path:
        value = value[key]
    return value


def rows(runs: Runs) -> list[Row]:
    groups: dict[tuple[Path, str], list[Metrics]] = {}
    for folder, run in runs:
        groups.setdefault((folder.parent, run["status"]), []).append(run)
    return [Row(folder.name, group) for (folder, _), group in groups.items()]


def results(runs: Runs) -> Table:
    """A row a configuration. Columns that would say nothing are left out."""
    found = rows(runs)
    first = [row.runs[0] for row in found]
    columns: dict[str, list[str]] = {
        "preset": [str(run["benchmark"]) for run in first],
        "method": [str(run["method"]) for run in first],
        "agents": [f"{run['topology']} {run['agents']}" for run in first],
        "variant": [row.variant for row in found],
        "seeds": [str(len(row.runs)) for row in found],
        "ACC %": [row.over_seeds("acc") for row in found],
        "BWT %": [row.over_seeds("bwt") for row in found],
        "sent": [row.mean_size("train_bytes", "boundary_bytes") for row in found],
        "cc": [row.over_seeds("traffic", "cc") for row in found],
        "ms a step": [row.over_seeds("timing", "ms_per_iteration").partition(" ")[0] for row in found],
        "status": [row.status for row in found],
    }
    if len(set(columns["preset"])) == 1:
        del columns["preset"]
    if len({(run["benchmark"], run["method"], run["topology"], run["agents"]) for run in first}) == len(first):
        del columns["variant"]
    if set(columns["status"]) == {"complete"}:
        del columns["status"]
    table = blank("results")
    for title in columns:
        words = title in ("preset", "method", "agents", "variant", "status")
        table.add_column(title, justify="left" if words else "right", no_wrap=True)
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*cells)
    return table


def blank(title: str) -> Table:
    """A table without columns yet, in the style of all of them."""
    return Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False
    )


def forgetting(named: Sequence[tuple[str, Metrics]], tasks: Sequence[str]) -> Table:
    """For each run, a task's accuracy right after it was learned and at the end."""
    table = blank("accuracy in %: when learned → at the end")
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


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
