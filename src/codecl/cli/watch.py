"""`codecl watch`."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from codecl.cli.common import app, console_for
from codecl.errors import DataError

if TYPE_CHECKING:
    from rich.console import Console

    from codecl.runs.follow import Follower, FollowerView

    Show = Callable[[FollowerView], None]

EVERY_S = 0.5
LINES_S = 5.0
WIDEST, TALLEST = 100, 1000  # of what is printed once


@app.command()
def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a folder that holds some.")],
    once: Annotated[bool, typer.Option("--once", help="Show how it stands now, and end.")] = False,
    patience: Annotated[float, typer.Option(min=0, help="Seconds to wait for a run to begin.")] = 0,
) -> None:
    """Follow a run that is under way, here or in another process, from its folder alone, until it ends.

    Exit codes: 0 complete, 4 degraded, 1 stopped. Ctrl-C ends the watching, not the run."""
    from codecl.runs.follow import Follower

    console, follower = console_for(False), Follower(run, patience)
    _wait(follower)
    with showing(console, once) as show:
        view = follower.look()
        show(view)
        while not once and not view.over:
            time.sleep(EVERY_S)
            view = follower.look()
            show(view)
    if view.alone and view.alone.state == "stopped":
        from codecl.report.command import way_on

        console.print(f"stopped: {way_on(run)}", highlight=False, markup=False, soft_wrap=True)
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


@contextmanager
def showing(console: "Console", once: bool = False) -> Iterator["Show"]:
    """Hands out what shows a view: in its place on a terminal, in lines elsewhere."""
    from codecl.cli.live import drawn

    if once:
        console.width = min(console.width, WIDEST)
        yield lambda view: console.print(drawn(view, console.width, TALLEST))
        return
    if not console.is_terminal:
        yield _lines(console)
        return
    from rich.live import Live

    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        yield lambda view: live.update(drawn(view, console.width, console.height), refresh=True)


def _lines(console: "Console") -> "Show":
    """A line at each task's end and each change of state, and a line an epoch at most every few seconds."""
    from codecl.cli.live import about, line, names

    said: dict[Path, tuple[str, int, float]] = {}  # state, epochs and time of the last line

    def show(view: "FollowerView") -> None:
        called = names(view)
        for seen in (part for run in view.runs for part in run.parts):
            state, epochs, when = said.get(seen.folder, ("", 0, 0.0))
            now = time.monotonic()
            lines = [line(seen._replace(progress=end)) for end in seen.new] if state else []
            if not state and not called[seen.folder]:
                lines.append(about(seen.progress))
            due = len(seen.progress.losses) != epochs and now - when >= LINES_S
            if seen.state != state:
                lines.append(f"{seen.state} · {line(seen)}")
            elif due and not seen.new:
                lines.append(line(seen))
            for text in lines:
                prefix = f"{called[seen.folder]}: " if called[seen.folder] else ""
                console.print(prefix + text, markup=False, highlight=False, soft_wrap=True)
            if lines:
                said[seen.folder] = seen.state, len(seen.progress.losses), now

    return show
