"""The table of `codecl bench`."""

from collections.abc import Mapping
from typing import Any

from codecl.bench import SAME
from codecl.report.formats import Column, Sheet

RATIOS = ("dpsgd", "codec-full", "plain-loop")


def speed(measured: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> Sheet:
    """A row a case; with `before`, how much of the earlier time it takes."""
    rows = measured["rows"]
    memory = ["–" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}" for row in rows]
    columns = [
        Column("model", [row["model"] for row in rows], words=True),
        Column("agents", [str(row["agents"]) for row in rows]),
        Column("method", [row["method"] for row in rows], words=True),
        Column("execution", [row["execution"] for row in rows], words=True),
        Column("ms a step", [_spread(row["ms"]) for row in rows]),
        Column("peak MiB", memory),
        *(Column(f"/ {other}", [_spread(row["ratio"].get(other)) for row in rows]) for other in RATIOS),
    ]
    if measured.get("ranks", 1) > 1:
        columns.append(Column("waiting ms", [_spread(row["wait_ms"]) for row in rows]))
        columns.append(Column("Mbit/s out", [_spread(row["mbit_s"]) for row in rows]))
    if before:
        earlier = {_case(row): row["ms"]["median"] for row in before["rows"]}
        shares = [row["ms"]["median"] / earlier[_case(row)] if _case(row) in earlier else None for row in rows]
        columns.append(Column("/ before", ["–" if share is None else f"{share:.2f}" for share in shares]))
    return Sheet(_title(measured), columns, "", rows)


def _case(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[key] for key in SAME)


def _title(measured: Mapping[str, Any]) -> str:
    environment = measured["environment"]
    machine = f"{environment['device_name']}, torch {environment['torch']}"
    machine += f", {measured['ranks']} ranks" if measured.get("ranks", 1) > 1 else ""
    return f"a step on {machine}: median (least-most) of {measured['rounds']} rounds"


def _spread(values: Mapping[str, float] | None) -> str:
    if values is None:
        return "–"
    return f"{values['median']:.2f} ({values['min']:.2f}-{values['max']:.2f})"
