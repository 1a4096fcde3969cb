"""`codecl theory`: the paper's analysis, checked on the package's own loop."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codecl.cli.common import console_for, group
from codecl.errors import RunFailed

if TYPE_CHECKING:
    from codecl.report.figures import Lines
    from codecl.report.formats import Sheet
    from codecl.theory.check import Checked
    from codecl.theory.rates import Slope

NAMES = {"K": "steps K", "N": "agents N"}
theory = group("theory", "The analysis behind it, checked by running it.")

Problems = Annotated[int, typer.Option(min=4, help="Seeded problems; a multiple of 4 has each kind as often.")]
AsJson = Annotated[bool, typer.Option("--json", help="Every case as JSON, nothing else on standard output.")]


@theory.command()
def check(
    problems: Problems = 20,
    seeds: Annotated[int, typer.Option(min=2, help="Noise seeds of each: the bounds are on expectations.")] = 10,
    steps: Annotated[int, typer.Option(min=10, help="Of each problem's run.")] = 100,
    quick: Annotated[bool, typer.Option("--quick", help="Less of everything: half a minute.")] = False,
    out: Annotated[Path, typer.Option("--out", help="Where the two rate figures go.")] = Path("theory"),
    as_json: AsJson = False,
) -> None:
    """Lemma 1, the consensus bound, the gradient bound and the rate, measured on small problems; and controls that have
    to fail. Exits with 1 where something that is claimed does not hold."""
    import torch

    from codecl.report import formats, pictures
    from codecl.theory import check as checks
    from codecl.theory import rates as walked

    console = console_for(as_json)
    sheets: list[Sheet] = []

    def show(sheet: "Sheet") -> None:
        sheets.append(sheet)
        if not as_json:
            formats.show(sheet, console)

    if quick:
        problems, seeds, steps = 4, 5, 60
    torch.set_num_threads(1)  # the problems are too small for more
    with console.status("running small problems"):
        checked = list(checks.checked(problems, seeds, steps))
        show(bounds(f"{len(checked)} inequalities, {seeds} noise seeds each", checked))
        show(bounds("where the printed bounds fail", list(checks.counterexamples())))
        broken = list(checks.broken(4, 3, 1000) if quick else checks.broken(4, seeds))
        show(bounds("control: the columns of the mixing matrix do not sum to 1", broken))
        slopes = walked.slopes(walked.QUICK if quick else walked.Size())
        show(rates(slopes))
    if as_json:
        print(json.dumps({sheet.title: list(sheet.records) for sheet in sheets}, indent=1))
    for along in NAMES:
        figure = rate_figure(along, [slope for slope in slopes if slope.along == along])
        for path in pictures.write(figure, out / figure.key):
            console.print(f"wrote {path}", style="dim", highlight=False, soft_wrap=True)
    failed = wrong(checked, broken, slopes)
    if failed:
        raise RunFailed(f"theory: {failed[0]}" + (f"; and {len(failed) - 1} more" if len(failed) > 1 else ""))
    console.print("All that is claimed holds, and every control fails as it should.", highlight=False)


def bounds(title: str, checked: Sequence["Checked"]) -> "Sheet":
    """A row an inequality, over all cases: in how many it holds, and the case where it is nearest to not holding."""
    from codecl.report.formats import Column, Sheet

    groups = {what: [row for row in checked if row.what == what] for what in dict.fromkeys(row.what for row in checked)}
    nearest = [min(rows, key=lambda row: row.margin) for rows in groups.values()]
    printed = [[row.printed_holds for row in rows if row.printed is not None] for rows in groups.values()]
    columns = [
        Column("inequality", list(groups), words=True, fold=True),
        Column("holds in", [f"{sum(row.holds for row in rows)} of {len(rows)}" for rows in groups.values()]),
        Column("left", [_number(row.left) for row in nearest]),
        Column("right", [_number(row.right) for row in nearest]),
        Column("ratio", [_number(row.margin) for row in nearest]),
        Column("printed", [_number(row.printed) for row in nearest]),
        Column("it holds in", [f"{sum(map(bool, holds))} of {len(holds)}" if holds else "-" for holds in printed]),
    ]
    note = "left, right: of the case where they are nearest (ratio: right / left). printed: the paper's right side."
    return Sheet(title, columns, note, [_record(row) for row in checked])


def _record(row: "Checked") -> dict[str, Any]:
    sides = {"right": None if row.right == float("inf") else row.right, "holds": row.holds}
    return {**row._asdict(), **sides, "printed_holds": row.printed_holds}


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return "no bound" if value == float("inf") else f"{value:.3g}"


def rates(slopes: Sequence["Slope"]) -> "Sheet":
    from codecl.report.formats import Column, Sheet
    from codecl.theory.rates import HIGHEST, LOWEST

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


def wrong(checked: Sequence["Checked"], broken: Sequence["Checked"], slopes: Sequence["Slope"]) -> list[str]:
    """What is not as it should be, a line each."""
    from codecl.theory.check import passes_though_broken

    failed = [row for row in checked if not row.holds]
    lines = [f"{row.what} does not hold: {row.left:.3g} > {row.right:.3g} ({row.case})" for row in failed]
    lines += [f"the control passed: {row.what} ({row.case})" for row in passes_though_broken(broken)]
    return lines + [f"slope in {s.along}, {s.what}: {s.mean:+.3f}" for s in slopes if not s.as_it_should]


def rate_figure(along: str, slopes: Sequence["Slope"]) -> "Lines":
    from codecl.report.figures import Lines, Series

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
