"""`codecl compare`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from codecl.cli.common import app, console_for
from codecl.errors import ConfigError

BEFORE = {"markdown": "- ", "latex": "% "}  # what stands before a line above the table


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="A run folder, or one that holds seeds of a configuration.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="What to set beside it.")],
    form: Annotated[str | None, typer.Option("--format", help="text, markdown, latex or csv.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """What differs between two configurations, in the config and in what came out, and whether seeds differ as much."""
    from codecl.report import compare as comparing
    from codecl.report import formats

    if as_json and form is not None:
        raise ConfigError("--json and --format: choose one")
    if form is not None and form not in formats.FORMATS:
        raise ConfigError(f"--format: {form!r} is not one of {', '.join(formats.FORMATS)}")
    found = comparing.compare(a, b)
    if as_json:
        print(json.dumps(comparing.plain(found), indent=1))
        return
    sheet, lines = comparing.sheet(found), comparing.about(found)
    if form in formats.PLAIN:
        above = "".join(f"{BEFORE[form]}{line}\n" for line in lines) if form in BEFORE else ""
        print(above + ("\n" if above else "") + formats.PLAIN[form](sheet), end="")
        return
    console = console_for(False)
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    formats.show(sheet, console, whole=not console.is_terminal)
