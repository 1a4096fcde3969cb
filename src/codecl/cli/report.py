"""`codecl report`: what came out of runs as a page and pictures."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from codecl.cli.common import app


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS…", help="Run folders, or folders that hold some.")],
    out: Annotated[Path, typer.Option("--out", help="Where the report goes.")] = Path("report"),
    paper: Annotated[
        bool | None, typer.Option("--paper/--no-paper", help="Beside the paper's Table 1. Default: where it is there.")
    ] = None,
    figures: Annotated[bool, typer.Option("--figures/--no-figures", help="Each figure as SVG, PNG and CSV.")] = True,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Results, curves and traffic of recorded runs: one page that opens anywhere, and each figure as a file."""
    from codecl.report.formats import size
    from codecl.report.gather import gather
    from codecl.report.page import write

    gathered = gather(runs)
    for refused in gathered.refused:
        print(f"codecl: left out {refused.folder}: {refused.why}", file=sys.stderr)
    count = write(gathered, out, paper, figures)
    if count:
        print(f"{out / 'figures'}  {count} figures, each as svg, png and csv")
    page = out / "report.html"
    print(f"{page}  {size(page.stat().st_size)}")
    if show:
        typer.launch(page.resolve().as_uri())
