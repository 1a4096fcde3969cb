"""What came out of runs: `codecl table`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from codecl.cli.common import AsJson, app, console_for
from codecl.errors import ConfigError


@app.command()
def table(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS…", help="Run folders, or folders that hold some.")],
    paper: Annotated[bool, typer.Option("--paper", help="Beside the paper's Table 1.")] = False,
    form: Annotated[str | None, typer.Option("--format", help="text, markdown, latex or csv.")] = None,
    as_json: AsJson = False,
) -> None:
    """Results of recorded runs: mean ± std over seeds, a row a configuration."""
    from codecl import record
    from codecl.report import formats
    from codecl.report.table import sheet

    if as_json and (paper or form is not None):
        raise ConfigError("--json: gives the metrics as they are; leave out --paper and --format, or take --format csv")
    if form is not None and form not in formats.FORMATS:
        raise ConfigError(f"--format: {form!r} is not one of {', '.join(formats.FORMATS)}")
    found = [(folder, record.read_metrics(folder)) for folder in record.find_runs(runs)]
    if as_json:
        print(json.dumps([{"folder": str(folder), **run} for folder, run in found], indent=1))
        return
    shown = sheet(found, paper)
    if form in formats.PLAIN:
        print(formats.PLAIN[form](shown), end="")
    else:
        formats.show(shown, console_for(False), whole=paper)
