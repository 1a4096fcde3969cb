"""What recorded runs give: `codecl table`, `frontier`, `predict`, `compare` and `report`."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from codecl.cli import common
from codecl.errors import ConfigError

if TYPE_CHECKING:
    from codecl.report.formats import Sheet

BEFORE = {"markdown": "- ", "latex": "% "}  # what stands before a line above the table of a comparison
PlainJson = Annotated[bool, typer.Option("--json", help="As JSON.")]


def _writer(output_format: str | None, as_json: bool) -> Callable[["Sheet"], str] | None:
    """What writes a table in this format; None: a terminal's."""
    from codecl.report import formats

    if as_json and output_format is not None:
        raise ConfigError("--json and --format: choose one")
    return formats.writer(output_format)


@common.app.command()
def table(
    runs: common.Runs,
    paper: Annotated[bool, typer.Option("--paper", help="Beside the paper's Table 1.")] = False,
    output_format: common.Format = None,
    as_json: common.AsJson = False,
) -> None:
    """Results of recorded runs: mean ± std over seeds, one row for each configuration."""
    from codecl.report import formats
    from codecl.report.configurations import finished
    from codecl.report.tables import plain, results
    from codecl.runs.reader import find_runs, read_metrics

    if as_json and (paper or output_format is not None):
        raise ConfigError("--json: gives the metrics as they are; leave out --paper and --format, or take --format csv")
    write = formats.writer(output_format)
    if as_json:
        print(json.dumps([plain(folder, read_metrics(folder)) for folder in find_runs(runs)], indent=1))
        return
    sheet = results(finished(runs), paper)
    if write:
        print(write(sheet), end="")
    else:
        formats.show(sheet, common.console_for(False))


@common.app.command()
def frontier(
    runs: common.Runs,
    commands: Annotated[bool, typer.Option("--commands", help="Also the command that makes each one again.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Also figures, as SVG, PNG and CSV, into FOLDER.")
    ] = None,
    output_format: common.Format = None,
    as_json: PlainJson = False,
) -> None:
    """The trade-off of recorded runs, one row for each configuration: accuracy, bytes sent, numbers kept."""
    from codecl.report import formats
    from codecl.report import frontier as trade_off
    from codecl.report.commands import command
    from codecl.report.configurations import finished

    write = _writer(output_format, as_json)
    rows = trade_off.choices(finished(runs))
    sheet = trade_off.sheet(rows, commands and write is not None)
    if as_json:
        print(json.dumps(list(sheet.records), indent=1))
    elif write:
        print(write(sheet), end="")
    else:
        console = common.console_for(False)
        formats.show(sheet, console)
        for row in rows if commands else ():
            line = command(row.configuration.runs) or formats.UNKNOWN
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    if out is not None:
        from codecl.report import pictures

        figures = [figure for draw in (trade_off.by_bytes, trade_off.by_kept) if (figure := draw(rows))]
        for path in (path for figure in figures for path in pictures.write(figure, out / figure.key)):
            print(path, file=sys.stderr if write or as_json else sys.stdout)


@common.app.command()
def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGES…", help="Image files.")],
    task: Annotated[
        str | None, typer.Option(help="Of which task: its name, or its number from 1. Left out: found by the model.")
    ] = None,
    resize: Annotated[bool, typer.Option("--resize", help="Scale images to the size that the model takes.")] = False,
    top: Annotated[int, typer.Option(min=1, help="So many classes of each image, the most probable first.")] = 1,
    allow_code: common.AllowCode = False,
    as_json: PlainJson = False,
) -> None:
    """Classify images with what a run has learned, each by itself."""
    from codecl.runs.predict import predict

    predictions = predict(run, task, images, resize, top, allow_code)
    if as_json:
        print(json.dumps([{"image": one.image, "classes": dict(one.classes)} for one in predictions], indent=1))
        return
    width = max(len(one.image) for one in predictions)
    for one in predictions:
        named = ", ".join(f"{name} {100 * value:.1f} %" for name, value in one.classes)
        print(f"{one.image:<{width}}  {named}")


@common.app.command()
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="A run folder, or one that holds seeds of a configuration.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="What to set beside it.")],
    output_format: common.Format = None,
    as_json: PlainJson = False,
) -> None:
    """What differs between two configurations, in the config and in what came out, and whether seeds differ as much."""
    from codecl.report import compare as comparing
    from codecl.report import formats

    write = _writer(output_format, as_json)
    comparison = comparing.compare(a, b)
    if as_json:
        print(json.dumps(comparing.plain(comparison), indent=1))
        return
    sheet, lines = comparing.sheet(comparison), comparing.about(comparison)
    if write:
        before = BEFORE.get(output_format or "")
        above = "".join(f"{before}{line}\n" for line in lines) + "\n" if before else ""
        print(above + write(sheet), end="")
        return
    console = common.console_for(False)
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    formats.show(sheet, console)


@common.app.command()
def report(
    runs: common.Runs,
    out: Annotated[Path, typer.Option("--out", help="Where the report goes.")] = Path("report"),
    paper: Annotated[
        bool | None, typer.Option("--paper/--no-paper", help="Beside the paper's Table 1. Default: where it is there.")
    ] = None,
    figures: Annotated[bool, typer.Option("--figures/--no-figures", help="Each figure as SVG, PNG and CSV.")] = True,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Results, curves and traffic of recorded runs: one page that opens anywhere, and each figure as a file."""
    from codecl.report.configurations import gather
    from codecl.report.formats import size
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
