"""`codecl extend`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from codecl.cli import common
from codecl.cli.run import After, RunOptions, run_one, show_results


@common.app.command()
def extend(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a complete run.")],
    task: Annotated[str, typer.Option(help="A data set's name, a stream as in data.stream, or next: of its own.")],
    out: Annotated[Path | None, typer.Option("--out", help="Where the new folder goes. Default: beside RUN.")] = None,
    device: common.Device = "auto",
    exchange: common.Exchange = "auto",
    allow_code: common.AllowCode = False,
    quiet: common.Quiet = False,
    as_json: common.AsJson = False,
) -> None:
    """Learn one more task after those of a finished run, which stays as it is.

    Old tasks are tested again where their data is still here; it is not needed for training."""
    from codecl.exchange.cluster.ranks import joined
    from codecl.runs import code
    from codecl.runs.machine import device_of
    from codecl.runs.next_task import added_tasks, extended, old_tests
    from codecl.runs.reader import one_run, read_config, read_files, read_tasks

    with joined(exchange, device_of(device)) as ranks:
        folder = one_run(run)
        old, files, learned = read_config(folder), read_files(folder), len(read_tasks(folder))
        code.check(old, folder, allow_code)
        config = extended(old, task, files)
        console = common.console_for(as_json, ranks.is_main)
        out = out if out is not None else folder.resolve().parents[1]
        after = After(folder, partial(old_tests, old, learned, files))
        options = RunOptions(out, device, ranks, quiet, console, after=after)
        result = run_one(config, options, lambda config: added_tasks(old, config, learned))
    if ranks.is_main:
        show_results(console, [result], as_json)
