"""`codecl extend`."""

from pathlib import Path
from typing import Annotated

import typer

from codecl.cli.common import AsJson, app, console_for
from codecl.cli.run import How, finish, one


@app.command()
def extend(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a complete run.")],
    task: Annotated[str, typer.Option(help="A data set's name, a stream as in data.stream, or next: of its own.")],
    out: Annotated[Path | None, typer.Option("--out", help="Where the new folder goes. Default: beside RUN.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: AsJson = False,
) -> None:
    """Learn one more task after those of a finished run, which stays as it is."""
    from codecl import extend, record
    from codecl.predict import one_run

    folder = one_run(run)
    config = extend.extended(record.read_config(folder), task)
    place = out if out is not None else folder.resolve().parents[1]
    console = console_for(as_json)
    finish(console, [one(config, How(place, device, quiet, console, after=folder))], as_json)
