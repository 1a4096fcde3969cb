"""`codecl theory`: the paper's analysis, checked on the package's own loop."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from codecl.cli.common import console_for, group
from codecl.errors import RunFailed

if TYPE_CHECKING:
    from codecl.report.formats import Sheet

theory = group("theory", "The analysis behind it, checked by running it.")

Problems = Annotated[int, typer.Option(min=4, help="Seeded problems; a multiple of 4 has each kind as often.")]
Seeds = Annotated[int, typer.Option(min=2, help="Noise seeds of each: the bounds are on expectations.")]
Steps = Annotated[int, typer.Option(min=10, help="Of each walk.")]
Quick = Annotated[bool, typer.Option("--quick", help="Four problems and shorter rates.")]
Figures = Annotated[Path, typer.Option("--out", help="Where the two rate figures go.")]
AsJson = Annotated[bool, typer.Option("--json", help="Every case as JSON, nothing else on standard output.")]


@theory.command()
def check(
    problems: Problems = 20,
    seeds: Seeds = 10,
    steps: Steps = 100,
    quick: Quick = False,
    out: Figures = Path("theory"),
    as_json: AsJson = False,
) -> None:
    """Lemma 1, the consensus bound, the gradient bound and the rate, measured on small problems; and controls that have
    to fail. Exits with 1 where something that is claimed does not hold."""
    from codecl.report import formats, pictures
    from codecl.report import theory as report
    from codecl.theory import check as checks
    from codecl.theory import rates

    console = console_for(as_json)
    sheets: list[Sheet] = []

    def show(sheet: "Sheet") -> None:
        sheets.append(sheet)
        if not as_json:
            formats.show(sheet, console, uncut=True)

    with console.status("walking"):
        checked = list(checks.checked(4 if quick else problems, seeds, steps))
        show(report.bounds(f"{len(checked)} inequalities, {seeds} noise seeds each", checked))
        show(report.bounds("where the printed bounds fail", list(checks.counterexamples())))
        broken = list(checks.broken(4, seeds))
        show(report.bounds("control: the columns of the mixing matrix do not sum to 1", broken))
        slopes = rates.slopes(rates.QUICK if quick else rates.Size())
        show(report.rates(slopes))
    if as_json:
        print(json.dumps({sheet.title: list(sheet.records) for sheet in sheets}, indent=1))
    for figure in report.figures(slopes):
        for path in pictures.write(figure, out / figure.key):
            console.print(f"wrote {path}", style="dim", highlight=False, soft_wrap=True)
    wrong = report.wrong(checked, broken, slopes)
    if wrong:
        raise RunFailed(f"theory: {wrong[0]}" + (f"; and {len(wrong) - 1} more" if len(wrong) > 1 else ""))
    console.print("All that is claimed holds, and every control fails as it should.", highlight=False)
