"""Shows how runs go on: in its place on a terminal, in lines elsewhere, not at all when quiet."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.live import Live

from codecl.cli.display import about, drawn, left, names
from codecl.report.progress import OnEvent, TrainingRun, bar, line, plain
from codecl.runs.follow import FollowerView, Liveness
from codecl.train.events import Event

if TYPE_CHECKING:
    from codecl.runs.config import RunConfig

LINES_S = 5.0  # lines about an epoch come at most this often
MAX_WIDTH, MAX_HEIGHT = 100, 1000  # of what is printed once
Show = Callable[[FollowerView], None]


@contextmanager
def following(console: Console, once: bool = False) -> Iterator[Show]:
    """Hands out what shows runs that are followed from their folders."""
    if once:
        console.width = min(console.width, MAX_WIDTH)
        yield lambda view: console.print(drawn(view, console.width, MAX_HEIGHT))
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            yield lambda view: live.update(drawn(view, console.width, console.height), refresh=True)
    else:
        yield _lines(console)


class _LastLine(NamedTuple):
    state: Liveness
    epochs: int
    time: float


def _lines(console: Console) -> Show:
    """A line at each task's end and each change of state, and a line an epoch at most every few seconds."""
    last: dict[Path, _LastLine] = {}

    def show(view: FollowerView) -> None:
        called = names(view)
        for snapshot in (snapshot for run in view.runs for snapshot in run.parts):
            before = last.get(snapshot.folder)
            now = time.monotonic()
            epochs = len(snapshot.progress.losses)
            lines = [line(end, left(snapshot._replace(progress=end))) for end in snapshot.new] if before else []
            text = line(snapshot.progress, left(snapshot))
            if not before and not called[snapshot.folder]:
                lines.append(about(snapshot.progress))
            due = before and epochs != before.epochs and now - before.time >= LINES_S
            if not before or snapshot.state != before.state:
                lines.append(f"{snapshot.state} · {text}")
            elif due and not snapshot.new:
                lines.append(text)
            prefix = f"{called[snapshot.folder]}: " if called[snapshot.folder] else ""
            for said in lines:
                console.print(prefix + said, markup=False, highlight=False, soft_wrap=True)
            if lines:
                last[snapshot.folder] = _LastLine(snapshot.state, epochs, now)

    return show


@contextmanager
def training(
    console: Console, config: "RunConfig", folder: Path, quiet: bool, board: Path | None = None
) -> Iterator[OnEvent]:
    """Hands out a consumer of events that shows how a run of this process goes on, on TensorBoard too where there is a
    folder for it."""
    with ExitStack() as stack:
        shown: list[OnEvent] = []
        if not quiet and not console.quiet:
            run = TrainingRun(config, folder)
            shown.append(stack.enter_context(bar(console, run)) if console.is_terminal else plain(console, run))
        if board is not None:
            from codecl.report.tensorboard import Board

            shown.append(stack.enter_context(Board(board, folder)))

        def on_event(event: Event) -> None:
            for show in shown:
                show(event)

        yield on_event
