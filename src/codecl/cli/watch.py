"""`codecl watch`."""

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from codecl.cli.common import app, console_for
from codecl.errors import CodeclError, DataError

if TYPE_CHECKING:
    from codecl.runs.follow import Follower

EVERY_S = 0.5


@app.command()
def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a folder that holds some.")],
    once: Annotated[bool, typer.Option("--once", help="Show how it stands now, and end.")] = False,
    patience: Annotated[float, typer.Option(min=0, help="Seconds to wait for a run to begin.")] = 0,
) -> None:
    """Follow a run that is under way, here or in another process, from its folder alone, until it ends.

    Exit codes: 0 complete, 4 degraded, 1 stopped. Ctrl-C ends the watching, not the run."""
    from codecl.cli.live import following
    from codecl.runs.follow import Follower

    console = console_for(False)
    follower = Follower(run, patience)
    _wait(follower)
    with following(console, once) as show:
        view = follower.look()
        show(view)
        while not once and not view.over:
            time.sleep(EVERY_S)
            view = follower.look()
            show(view)
    if view.alone and view.alone.state == "stopped":
        console.print(f"stopped: {go_on(run)}", highlight=False, markup=False, soft_wrap=True)
    if view.alone or not once:
        raise typer.Exit(view.exit_code)


def _wait(follower: "Follower") -> None:
    """Until something is recorded there."""
    patience = follower.patience
    deadline = time.monotonic() + patience
    while not follower.there():
        if time.monotonic() >= deadline:
            what = "holds no run, begun or finished" if follower.path.exists() else "no such folder"
            way = "" if patience else " (--patience 60 waits a minute for a run to begin)"
            raise DataError(f"{follower.path}: {what}{way}")
        time.sleep(min(EVERY_S, patience))


def go_on(folder: Path) -> str:
    """What to type to go on with a run, where the folder tells and it gives this very run; otherwise words."""
    from codecl.report.commands import changed
    from codecl.runs.code import named
    from codecl.runs.grid import grid
    from codecl.runs.reader import read_config
    from codecl.runs.writer import folder_of

    same = "the command that started it goes on where it stopped"
    try:
        config = read_config(folder)
        if named(config):  # is not run to find out how to go on
            return same
        out = folder.parents[1]
        settings = [f"{field}={value}" for field, value in changed(config).items()]
        names = (config.method.name, str(config.agents), config.topology.name, str(config.seed))
        (made,) = grid(config.preset, *names, settings)
    except (CodeclError, IndexError):
        return same
    if made.decisive() != config.decisive() or folder_of(made, out) != folder:
        return same
    options = [*zip(("--method", "--agents", "--topology", "--seeds"), names, strict=True)]
    options += [("--set", setting) for setting in settings]
    options += [("--out", str(out))] if out != Path("runs") else []
    command = ["codecl", "run", config.preset, *(word for option in options for word in option)]
    return f"go on with `{shlex.join(command)}`"
