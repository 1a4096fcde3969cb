"""`codecl extend`."""

from pathlib import Path
from typing import Annotated

import typer

from codecl.cli import common
from codecl.cli.run import RunOptions, run_one, show_results


@common.app.command()
def extend(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a complete run.")],
    task: Annotated[str, typer.Option(help="A data set's name, a stream as in data.stream, or next: of its own.")],
    out: Annotated[Path | None, typer.Option("--out", help="Where the new folder goes. Default: beside RUN.")] = None,
    device: common.Device = "auto",
    exchange: common.Exchange = "auto",
    quiet: common.Quiet = False,
    as_json: common.AsJson = False,
) -> None:
    """Learn one more task after those of a finished run, which stays as it is."""
    from codecl.exchange.cluster.ranks import joined
    from codecl.runs.build import device_of, load_tasks
    from codecl.runs.reader import one_run, read_config
    from codecl.runs.resume import extended

    with joined(exchange, device_of(device)) as ranks:
        folder = one_run(run)
        config = extended(read_config(folder), task)
        console = common.console_for(as_json, ranks.is_main)
        out = out if out is not None else folder.resolve().parents[1]
        result = run_one(config, RunOptions(out, device, ranks, quiet, console, after=folder), load_tasks)
    if ranks.is_main:
        show_results(console, [result], as_json)
