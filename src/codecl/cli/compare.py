"""`codecl compare`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from codecl.cli.common import Format, app, console_for
from codecl.errors import ConfigError

BEFORE = {"markdown": "- ", "latex": "% "}  # what stands before a line above the table


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="A run folder, or one that holds seeds of a configuration.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="What to set beside it.")],
    output_format: Format = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """What differs between two configurations, in the config and in what came out, and whether seeds differ as much."""
    from codecl.report import compare as comparing
    from codecl.report import formats

    if as_json and output_format is not None:
        raise ConfigError("--json and --format: choose one")
    write = formats.writer(output_format)
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
    console = console_for(False)
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    formats.show(sheet, console, uncut=not console.is_terminal)
