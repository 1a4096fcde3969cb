"""Shows how a run of this process goes on, from its events: a bar on a terminal, a line in a notebook, lines elsewhere.

What `codecl run` and `codecl.fit` share. Nothing here is needed by a run, and nothing here changes one."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from codecl.report.formats import duration, size
from codecl.report.score_words import ScoreWords
from codecl.runs.metrics import Progress, progress
from codecl.runs.reader import read_events
from codecl.train.events import EpochEnded, Evaluated, Event, Recorded, Stepped, TaskOpened

if TYPE_CHECKING:
    from rich.console import Console

    from codecl.runs.config import RunConfig

LINES_S = 10.0  # lines about an epoch come at most this often
REFRESH_S = 0.5
OnEvent = Callable[[Event], None]


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
    def progress(self) -> Progress:
        return progress(self.events, self.config.train.epochs)

    @property
    def line(self) -> str:
        """Its method, and how far it is."""
        now = self.progress
        ahead = "" if now.left_s is None else f"{duration(now.left_s)} left"
        return f"{self.config.method.name} · {line(now, ahead)}"

    @property
    def last_line(self) -> str:
        """What came of it, and where it is recorded."""
        return f"{self.config.method.name} · {line(self.progress._replace(ended='complete'), str(self.folder))}"


def line(now: Progress, remaining: str) -> str:
    """A run's progress in one line."""
    words = [
        f"task {now.opened}/{now.tasks}" if now.opened else "",
        f"epoch {now.epoch}/{now.epochs}" if now.phase == "training" and now.epoch else "",
        f"loss {now.losses[-1]:.3f}" if now.losses else "",
        f"ACC {score_words(now).named(now.acc, '.2f')}{scored(now)}" if now.acc is not None else "",
        f"cc {now.cc:.2f}" if now.cc else "",
        f"sent {size(now.sent)}",
        f"kept {now.kept_percent:.1f} %" if now.acc is not None and now.kept_percent else "",
        remaining,
        now.names[-1] if now.names and not now.ended else "",
        f"away: {', '.join(map(str, now.away))}" if now.away and not now.ended else "",
        f"refused: {', '.join(map(str, now.refused))}" if now.refused else "",
    ]
    return " · ".join(filter(None, words))


def scored(now: Progress) -> str:
    """Where ACC is not over all tasks so far."""
    many = sum(score is not None for score in now.known)
    alone = now.about is not None and now.about.each_task_alone  # each was scored when it was learned
    return "" if alone or many == len(now.known) else f" ({many} of {len(now.known)} tasks, others not scored again)"


def score_words(now: Progress) -> ScoreWords:
    """How its score is said."""
    return ScoreWords.of([now.about] if now.about else [])


@contextmanager
def showing(config: "RunConfig", folder: Path, wanted: bool = True) -> Iterator[OnEvent]:
    """Hands out a consumer of events that shows them where somebody looks: on a terminal, in a notebook. Elsewhere, and
    where it is not wanted, it shows nothing. It begins with the first event, and leaves one line when it ends."""
    run = TrainingRun(config, folder)
    with ExitStack() as stack:
        if wanted and in_notebook():
            yield stack.enter_context(_updating(sys.stdout, run))
        elif wanted and sys.stderr is not None and sys.stderr.isatty():
            from rich.console import Console

            yield stack.enter_context(_on_terminal(Console(stderr=True), run))
        else:
            yield _nothing


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook. Nothing is imported to tell."""
    ipython = sys.modules.get("IPython")
    if ipython is None or "ipykernel" not in sys.modules:
        return False
    return getattr(ipython.get_ipython(), "kernel", None) is not None


def _nothing(event: Event) -> None:
    pass


@contextmanager
def _on_terminal(console: "Console", run: TrainingRun) -> Iterator[OnEvent]:
    """A bar from the first event on; what it said last stays."""
    with ExitStack() as stack:
        shown: list[OnEvent] = []

        def on_event(event: Event) -> None:
            if not shown:
                shown.append(stack.enter_context(bar(console, run)))
            shown[0](event)

        yield on_event
    if run.events:
        console.print(run.last_line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _updating(file: TextIO, run: TrainingRun) -> Iterator[OnEvent]:
    """One line that is written over."""
    said, shown = "", 0.0

    def say(text: str) -> None:
        nonlocal said
        print(f"\r{text:<{len(said)}}", end="", file=file, flush=True)
        said = text

    def on_event(event: Event) -> None:
        nonlocal shown
        run.note(event)
        due = isinstance(event, EpochEnded) and time.monotonic() - shown >= REFRESH_S
        if due or isinstance(event, TaskOpened | Evaluated):
            shown = time.monotonic()
            say(run.line)

    try:
        yield on_event
        if said:
            say(run.last_line)
    finally:
        if said:
            print(file=file)


@contextmanager
def bar(console: "Console", run: TrainingRun) -> Iterator[OnEvent]:
    """A bar on a terminal, which is gone when the run is over."""
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars
    from rich.table import Column

    words = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # gives way where the terminal is narrow
    columns = (
        TextColumn(f"[bold]{run.config.method.name}[/]", table_column=Column(no_wrap=True)),
        TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True, min_width=5)),
        BarColumn(10, table_column=Column(min_width=10)),
        TextColumn("{task.description}", markup=False, table_column=words),
    )
    with Bars(*columns, console=console, transient=True, expand=True) as bars:
        task = bars.add_task("starting", total=None)
        shown = 0.0

        def on_event(event: Event) -> None:
            nonlocal shown
            run.note(event)
            if isinstance(event, Stepped):
                bars.update(task, completed=run.steps)
            elif isinstance(event, TaskOpened | Evaluated) or time.monotonic() - shown >= REFRESH_S:
                shown = time.monotonic()
                now = run.progress
                bars.update(task, description=line(now, ""), total=max(now.all_steps, 1))

        yield on_event


def plain(console: "Console", run: TrainingRun) -> OnEvent:
    """A line at each task's end, and in between at most every few seconds."""
    last = time.monotonic()

    def on_event(event: Event) -> None:
        nonlocal last
        run.note(event)
        due = isinstance(event, EpochEnded) and time.monotonic() - last > LINES_S
        if due or isinstance(event, Evaluated):
            last = time.monotonic()
            console.print(run.line, markup=False, highlight=False, soft_wrap=True)

    return on_event
