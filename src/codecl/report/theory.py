"""What `codecl theory check` found -> tables and the two rate figures."""

from collections.abc import Sequence
from typing import Any

from codecl.report.figures import Lines, Series
from codecl.report.formats import Column, Sheet
from codecl.theory.check import Checked, passes_though_broken
from codecl.theory.rates import HIGHEST, LOWEST, Slope

NAMES = {"K": "steps K", "N": "agents N"}


def bounds(title: str, checked: Sequence[Checked]) -> Sheet:
    """A row an inequality, over all cases: in how many it holds, and the case where it is nearest to not holding."""
    groups = {what: [row for row in checked if row.what == what] for what in dict.fromkeys(row.what for row in checked)}
    nearest = [min(rows, key=lambda row: row.margin) for rows in groups.values()]
    printed = [[row for row in rows if row.printed is not None] for rows in groups.values()]
    columns = [
        Column("inequality", list(groups), words=True, fold=True),
        Column("holds in", [f"{sum(row.holds for row in rows)} of {len(rows)}" for rows in groups.values()]),
        Column("left", [_number(row.left) for row in nearest]),
        Column("right", [_number(row.right) for row in nearest]),
        Column("ratio", [_number(row.margin) for row in nearest]),
        Column("printed", [_number(row.printed) for row in nearest]),
        Column("it holds in", [_of(rows) for rows in printed]),
    ]
    note = "left, right: of the case where they are nearest (ratio: right / left). printed: the paper's right side."
    return Sheet(title, columns, note, [_record(row) for row in checked])


def _record(row: Checked) -> dict[str, Any]:
    sides = {"right": None if row.right == float("inf") else row.right, "holds": row.holds}
    return {**row._asdict(), **sides, "printed_holds": row.printed_holds}


def _of(rows: Sequence[Checked]) -> str:
    return f"{sum(bool(row.printed_holds) for row in rows)} of {len(rows)}" if rows else "-"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return "no bound" if value == float("inf") else f"{value:.3g}"


def rates(slopes: Sequence[Slope]) -> Sheet:
    seeds = len(slopes[0].values_RX)
    columns = [
        Column("against", [NAMES[slope.along] for slope in slopes], words=True),
        Column("agents", [slope.what for slope in slopes], words=True, fold=True),
        Column("slope", [f"{slope.mean:+.3f} ± {slope.std:.3f}" for slope in slopes]),
        Column("of each seed", [" ".join(f"{value:+.2f}" for value in slope.slopes) for slope in slopes], fold=True),
        Column("has the rate", ["yes" if slope.inside else "no" for slope in slopes], words=True),
        Column("as it should", ["yes" if slope.as_it_should else "NO" for slope in slopes], words=True),
    ]
    note = f"slopes of the log mean squared gradient, {seeds} seeds; the rate: {LOWEST} to {HIGHEST}"
    records = [{**slope._asdict(), "values_RX": slope.values_RX.tolist(), "slopes": slope.slopes} for slope in slopes]
    return Sheet("rate at η = 2 √(N/K)", columns, note, records)


def wrong(checked: Sequence[Checked], broken: Sequence[Checked], slopes: Sequence[Slope]) -> list[str]:
    """What is not as it should be, a line each."""
    failed = [row for row in checked if not row.holds]
    lines = [f"{row.what} does not hold: {row.left:.3g} > {row.right:.3g} ({row.case})" for row in failed]
    lines += [f"the control passed: {row.what} ({row.case})" for row in passes_though_broken(broken)]
    return lines + [f"slope in {s.along}, {s.what}: {s.mean:+.3f}" for s in slopes if not s.as_it_should]


def figures(slopes: Sequence[Slope]) -> list[Lines]:
    """The two rate figures."""
    return [_figure(along, [slope for slope in slopes if slope.along == along]) for along in NAMES]


def _figure(along: str, slopes: Sequence[Slope]) -> Lines:
    x = slopes[0].x
    series = []
    for slope in slopes:
        mean, std = slope.values_RX.mean(0), slope.values_RX.std(0)
        series.append(Series(f"{slope.what}: slope {slope.mean:+.2f}", x, mean.tolist(), std.tolist()))
    start = float(slopes[0].values_RX.mean(0)[0])
    guide = Series("slope -0.50", x, [start * (value / x[0]) ** -0.5 for value in x])
    return Lines(
        f"rate-{along}",
        f"The gradient falls like 1/√{along}",
        "Mean squared gradient at the average model over the second half of the steps, η = 2√(N/K). A slope of -1/2 in"
        f" {NAMES[along]} is the rate; the control does not have it.",
        NAMES[along],
        "mean squared gradient",
        [*series, guide],
        log=True,
        log_x=True,
    )
