"""`codecl table`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from codecl.cli.common import AsJson, Format, app, console_for
from codecl.errors import ConfigError


@app.command()
def table(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS…", help="Run folders, or folders that hold some.")],
    paper: Annotated[bool, typer.Option("--paper", help="Beside the paper's Table 1.")] = False,
    output_format: Format = None,
    as_json: AsJson = False,
) -> None:
    """Results of recorded runs: mean ± std over seeds, a row a configuration."""
    from codecl.report import formats
    from codecl.report.gather import finished
    from codecl.report.tables import results
    from codecl.runs.reader import find_runs, read_metrics

    if as_json and (paper or output_format is not None):
        raise ConfigError("--json: gives the metrics as they are; leave out --paper and --format, or take --format csv")
    write = formats.writer(output_format)
    if as_json:
        metrics = [{"folder": str(folder), **read_metrics(folder).dump()} for folder in find_runs(runs)]
        print(json.dumps(metrics, indent=1))
        return
    sheet = results(finished(runs), paper)
    if write:
        print(write(sheet), end="")
    else:
        formats.show(sheet, console_for(False), uncut=paper)
