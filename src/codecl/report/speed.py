"""The table of `codecl bench`."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from codecl.bench.measure import SAME
from codecl.report.formats import blank


def speed(found: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> Table:
    """A row a case; with `before`, how much of the earlier time it takes."""
    columns = [
        "model",
        "agents",
        "method",
        "execution",
        "ms a step",
        "peak MiB",
        "/ dpsgd",
        "/ codec-full",
        "/ plain-loop",
    ]
    spread = found.get("ranks", 1) > 1
    columns += ["waiting ms", "Mbit/s out"] if spread else []
    table = blank(_title(found))
    for title in [*columns, *(["/ before"] if before else [])]:
        table.add_column(title, justify="left" if title in ("model", "method", "execution") else "right", no_wrap=True)
    earlier = {tuple(row[key] for key in SAME): row for row in (before or {}).get("rows", [])}
    for row in found["rows"]:
        cells = [row["model"], str(row["agents"]), row["method"], row["execution"], _spread(row["ms"])]
        cells.append("–" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}")
        cells += [_spread(row["ratio"].get(other)) for other in ("dpsgd", "codec-full", "plain-loop")]
        cells += [_spread(row[field]) for field in ("wait_ms", "mbit_s")] if spread else []
        if before:
            old = earlier.get(tuple(row[key] for key in SAME))
            cells.append(f"{row['ms']['median'] / old['ms']['median']:.2f}" if old else "–")
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _title(found: Mapping[str, Any]) -> str:
    where = found["environment"]
    at = f"{where['device_name']}, torch {where['torch']}"
    at += f", {found['ranks']} ranks" if found.get("ranks", 1) > 1 else ""
    return f"a step on {at}: median (least-most) of {found['rounds']} rounds"


def _spread(values: Mapping[str, float] | None) -> str:
    if values is None:
        return "–"
    return f"{values['median']:.2f} ({values['min']:.2f}-{values['max']:.2f})"
