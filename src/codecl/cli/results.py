"""What came out of runs: `codecl table`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from codecl.cli.common import AsJson, app, console_for


@app.command()
def table(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS…", help="Run folders, or folders that hold some.")],
    as_json: AsJson = False,
) -> None:
    """Results of recorded runs: mean ± std over seeds, a row a configuration."""
    from codecl import record
    from codecl.report.table import results

    found = [(folder, record.read_metrics(folder)) for folder in record.find_runs(runs)]
    if as_json:
        print(json.dumps([{"folder": str(folder), **run} for folder, run in found], indent=1))
    else:
        console_for(False).print(results(found))
