"""What a person sees while a run goes on: a live line on a terminal, plain lines elsewhere, nothing when quiet."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from codecl.report.units import size
from codecl.runs.config import RunConfig
from codecl.train.events import EpochEnded, Evaluated, Event, TaskOpened

EVERY_S = 10.0  # plain lines inside a task come at most this often
Watch = Callable[[Event], None]


class Story:
    """A run's progress in words, put together from its events."""

    def __init__(self, config: RunConfig, tasks: int) -> None:
        self.config, self.tasks = config, tasks
        self.sent, self.loss, self.acc = 0, "", ""
        self.task, self.name, self.steps, self.done = "", "", 0, 0

    def note(self, event: Event) -> None:
        self.sent += getattr(event, "bytes", 0)
        if isinstance(event, TaskOpened):
            self.task, self.name, self.steps = f"task {(event.task or 0) + 1}/{self.tasks}", event.name, event.steps
        elif isinstance(event, EpochEnded):
            self.loss = f"loss {sum(event.loss) / len(event.loss):.3f}"
        elif isinstance(event, Evaluated):
            self.acc = f"acc {sum(event.accuracy) / len(event.accuracy):.1f} %"
        elif event.kind == "step":  # a run that is resumed does not begin at 0
            begun = ((event.task or 0) * self.config.train.epochs + (event.epoch or 0)) * self.steps
            self.done = max(self.done, begun) + 1

    @property
    def total(self) -> int:
        """Steps of the whole run, tasks ahead taken to be as long as this one."""
        ahead = self.tasks * self.config.train.epochs * self.steps
        return max(ahead, self.done, 1)

    def line(self, epoch: int | None) -> str:
        where = "" if epoch is None else f"epoch {epoch + 1}/{self.config.train.epochs}"
        parts = [self.task, where, self.loss, self.acc, f"sent {size(self.sent)}", self.name]
        return " · ".join(part for part in parts if part)


@contextmanager
def watching(console: Console, config: RunConfig, tasks: int, quiet: bool) -> Iterator[Watch]:
    """A consumer of events that shows them."""
    if quiet:
        yield lambda event: None
    elif console.is_terminal:
        with _live(console, config, tasks) as watch:
            yield watch
    else:
        yield _plain(console, config, tasks)


@contextmanager
def _live(console: Console, config: RunConfig, tasks: int) -> Iterator[Watch]:
    story = Story(config, tasks)
    story_column = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # gives way where the terminal is narrow
    columns = (
        TextColumn(f"[bold]{config.method.name}[/]", table_column=Column(no_wrap=True)),
        TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True, min_width=5)),
        BarColumn(10, table_column=Column(min_width=10)),
        TextColumn("{task.description}", markup=False, table_column=story_column),
    )
    with Progress(*columns, console=console, transient=True, expand=True) as progress:
        bar = progress.add_task("starting", total=None)

        def watch(event: Event) -> None:
            story.note(event)
            if event.kind == "step":
                progress.update(bar, completed=story.done, total=story.total)
            else:
                progress.update(bar, description=story.line(event.epoch))

        yield watch


def _plain(console: Console, config: RunConfig, tasks: int) -> Watch:
    story = Story(config, tasks)
    began = last = time.monotonic()

    def watch(event: Event) -> None:
        nonlocal last
        story.note(event)
        now = time.monotonic()
        ended = isinstance(event, Evaluated)
        if ended or (isinstance(event, EpochEnded) and now - last > EVERY_S):
            last = now
            left = (now - began) / max(story.done, 1) * (story.total - story.done)
            line = f"{config.method.name} · {story.line(None if ended else event.epoch)} · {left:.0f} s left"
            console.print(line, markup=False, highlight=False, soft_wrap=True)

    return watch


@contextmanager
def boarding(board: Path | None, run: Path, watch: Watch) -> Iterator[Watch]:
    """The same consumer, with what it is handed also on TensorBoard, where there is a folder for it."""
    if board is None:
        yield watch
        return
    from codecl.report.tensorboard import Board

    with Board(board, run) as drawn:

        def both(event: Event) -> None:
            watch(event)
            drawn(event)

        yield both
