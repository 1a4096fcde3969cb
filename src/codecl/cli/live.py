"""Shows how runs go on: in its place on a terminal, in lines elsewhere, not at all when quiet."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from codecl.cli.display import about, drawn, left, line, names
from codecl.report.formats import duration
from codecl.runs.follow import FollowerView, Liveness
from codecl.runs.metrics import Progress as RunProgress
from codecl.runs.metrics import progress
from codecl.runs.reader import read_events
from codecl.train.events import EpochEnded, Evaluated, Event, Recorded, Stepped, TaskOpened

if TYPE_CHECKING:
    from codecl.runs.config import RunConfig

LINES_S = 5.0  # lines about an epoch come at most this often
TRAINING_LINES_S = 10.0  # the same, of a run of this process
REFRESH_S = 0.5
MAX_WIDTH, MAX_HEIGHT = 100, 1000  # of what is printed once
OnEvent = Callable[[Event], None]
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


class TrainingRun:
    """A run of this process, from its events; what was recorded before it was resumed is read from its folder."""

    def __init__(self, config: "RunConfig", folder: Path) -> None:
        self.config = config
        self.folder = folder
        self.events: list[Recorded] = []
        self.steps = 0

    def note(self, event: Event) -> None:
        if isinstance(event, Stepped):
            self.steps += 1
        elif isinstance(event, Recorded) and self.events:
            self.events.append(event.stamped())
        elif isinstance(event, Recorded):
            self.events = read_events(self.folder)  # an event is recorded before it is handed on
            self.steps = self.progress.steps

    @property
    def progress(self) -> RunProgress:
        return progress(self.events, self.config.train.epochs)


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
            shown.append(stack.enter_context(_bar(console, run)) if console.is_terminal else _plain(console, run))
        if board is not None:
            from codecl.report.tensorboard import Board

            shown.append(stack.enter_context(Board(board, folder)))

        def on_event(event: Event) -> None:
            for show in shown:
                show(event)

        yield on_event


@contextmanager
def _bar(console: Console, run: TrainingRun) -> Iterator[OnEvent]:
    words = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # gives way where the terminal is narrow
    columns = (
        TextColumn(f"[bold]{run.config.method.name}[/]", table_column=Column(no_wrap=True)),
        TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True, min_width=5)),
        BarColumn(10, table_column=Column(min_width=10)),
        TextColumn("{task.description}", markup=False, table_column=words),
    )
    with Progress(*columns, console=console, transient=True, expand=True) as bars:
        bar = bars.add_task("starting", total=None)
        shown = 0.0

        def on_event(event: Event) -> None:
            nonlocal shown
            run.note(event)
            if isinstance(event, Stepped):
                bars.update(bar, completed=run.steps)
            elif isinstance(event, TaskOpened | Evaluated) or time.monotonic() - shown >= REFRESH_S:
                shown = time.monotonic()
                now = run.progress
                bars.update(bar, description=line(now, ""), total=max(now.all_steps, 1))

        yield on_event


def _plain(console: Console, run: TrainingRun) -> OnEvent:
    """A line at each task's end, and in between at most every few seconds."""
    last = time.monotonic()

    def on_event(event: Event) -> None:
        nonlocal last
        run.note(event)
        due = isinstance(event, EpochEnded) and time.monotonic() - last > TRAINING_LINES_S
        if due or isinstance(event, Evaluated):
            last = time.monotonic()
            now = run.progress
            ahead = "" if now.left_s is None else f"{duration(now.left_s)} left"
            text = f"{run.config.method.name} · {line(now, ahead)}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)

    return on_event
