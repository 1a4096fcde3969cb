"""Progress in words: the state of a run, of a fleet, of many runs as tables; or a plain line."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from codecl.report.formats import duration, size
from codecl.report.progress import score_words, scored
from codecl.runs.follow import FollowerView, Liveness, RunSnapshot, Snapshot
from codecl.runs.metrics import Progress

BLOCKS = "▁▂▃▄▅▆▇█"
SPARK = 40  # epochs in a sparkline
TONES: dict[Liveness, str] = {
    "starting": "cyan",
    "under way": "cyan",
    "silent": "yellow",
    "stopped": "red",
    "complete": "green",
    "degraded": "yellow",
}
NARROW = 76  # columns; below, tables leave out what is least missed


def sparkline(values: Sequence[float], width: int = SPARK) -> str:
    """The last values as blocks, the least of them at the bottom; a gap where one is not a number."""
    shown = values[-width:]
    known = [value for value in shown if math.isfinite(value)]
    if not known:
        return " " * len(shown)
    low, span = min(known), max(known) - min(known)
    heights = ((value - low) / span if span else 0.0 for value in shown)
    return "".join(BLOCKS[round(h * (len(BLOCKS) - 1))] if math.isfinite(h) else " " for h in heights)


def number(value: float | None, digits: str = ".2f") -> str:
    return "-" if value is None else format(value, digits)


def about(now: Progress) -> str:
    """`quickstart: codec, 4 agents on ring, seed 1`"""
    run = now.about
    if run is None:
        return "starting"
    return f"{run.benchmark}: {run.method}, {run.agents} agents on {run.topology}, seed {run.seed}"


def left(snapshot: Snapshot) -> str:
    """How long it will still take."""
    if snapshot.progress.left_s is None or snapshot.state != "under way":
        return ""
    return f"{duration(max(0.0, snapshot.progress.left_s - snapshot.silent_s))} left"


def drawn(view: FollowerView, width: int, height: int) -> RenderableType:
    """All that is followed, for a terminal of this size."""
    run = view.alone
    if run is None:
        return many(view, width)
    return fleet(run, width) if run.place.agents else single(run.parts[0], width, height)


def names(view: FollowerView) -> dict[Path, str]:
    """What the folders that are followed are called: nothing, where there is but one."""
    runs = {snapshot.folder: run for run in view.runs for snapshot in run.parts}
    if view.alone:
        return {folder: f"agent {_agent(folder)}" if run.place.agents else "" for folder, run in runs.items()}
    return {folder: str(folder.relative_to(view.path)) for folder in runs}


def _agent(folder: Path) -> str:
    return folder.name.removeprefix("agent-")


def single(snapshot: Snapshot, width: int, height: int) -> RenderableType:
    """A run: how far it is, what it has learned, what it has sent."""
    now = snapshot.progress
    silent = f" for {duration(snapshot.silent_s)}" if snapshot.state == "silent" else ""
    head = _two_sides(Text(about(now), "bold"), Text(snapshot.state + silent, TONES[snapshot.state]))
    share = now.steps / now.all_steps if now.all_steps else 0.0
    bar = _two_sides(ProgressBar(total=1.0, completed=share), f"{100 * share:.0f} %")
    tasks = (_tasks(now, max(3, height - 12)), Text()) if now.opened else ()
    return Group(head, bar, Text(), *tasks, _facts(snapshot, width))


def _two_sides(left: RenderableType, right: RenderableType) -> Table:
    row = Table.grid(expand=True, padding=(0, 1))
    row.add_column(ratio=1)
    row.add_column(justify="right", no_wrap=True)
    row.add_row(left, right)
    return row


def _tasks(now: Progress, room: int) -> Table:
    """A row a task; where there are more than fit, the last."""
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    table.add_column("task", no_wrap=True, overflow="ellipsis")
    words = score_words(now)
    for title in (words.title("learned"), words.title("now"), "cc in training"):
        table.add_column(title, justify="right", no_wrap=True)
    first = max(0, now.opened - room)
    for task in range(first, now.opened):
        name = f"{task + 1} {now.names[task]}" + (f" (and {first} before)" if first and task == first else "")
        doing = f"epoch {now.epoch}/{now.epochs}" if now.phase == "training" else now.phase
        known = _at(now.known, task, words.digits) if task < len(now.known) else doing
        table.add_row(Text(name), _at(now.learned, task, words.digits), known, _at(now.cc_by_task, task))
    return table


def _at(values: Sequence[float | None], place: int, digits: str = ".2f") -> str:
    return number(values[place], digits) if place < len(values) else ""


def _facts(snapshot: Snapshot, width: int) -> Table:
    now = snapshot.progress
    spread = f" ({min(now.loss):.3f} to {max(now.loss):.3f} by agent)" if len(now.loss) > 1 else ""
    loss = f"{sparkline(now.losses, max(8, min(SPARK, width - 54)))} {now.losses[-1]:.3f}{spread}" if now.losses else ""
    speed = f"{now.steps_a_second:.3g} a second" if now.steps_a_second and snapshot.state == "under way" else ""
    steps = ", ".join(part for part in (f"{now.steps} of {now.all_steps}", speed, left(snapshot)) if part)
    so_far = "" if now.ended else " so far"
    kept = f"; a task keeps up to {now.kept_percent:.1f} % of the body for itself" if now.kept_percent else ""
    error = "disagreement" if now.about and now.about.fleet else "consensus error"
    rows = {
        "steps": steps if now.all_steps else "",
        "loss": loss,
        "ACC": f"{score_words(now).named(now.acc, '.2f')}{scored(now)}{so_far}{kept}" if now.acc is not None else "",
        "sent": f"{size(now.sent)}, cc {number(now.cc)}{so_far}" if now.sent else "",
        error: number(now.apart, ".2g") if now.apart is not None else "",
        "away": ", ".join(f"agent {agent}" for agent in now.away) if not now.ended else "",
        "missed": f"{now.missed} messages" if now.missed else "",
        "refused": ", ".join(f"what agent {agent} grew" for agent in now.refused),
        "folder": str(snapshot.folder),
    }
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in rows.items():
        if text:
            grid.add_row(name, Text(text))
    return grid


def fleet(run: RunSnapshot, width: int) -> RenderableType:
    """Agents that are peers, a row each."""
    first = furthest(run)
    head = Text(about(first), "bold") + Text(f"  {run.state}", TONES[run.state])
    rows = [
        {
            "agent": _agent(agent.folder),
            "state": Text(agent.state, TONES[agent.state]),
            "task": f"{now.opened}/{now.tasks}",
            "epoch": f"{now.epoch}/{now.epochs}",
            "loss": number(now.losses[-1] if now.losses else None, ".3f"),
            "ACC": number(now.acc, score_words(now).digits),
            "missed": str(now.missed),
            "away": " ".join(map(str, now.away)) if not now.ended else "",
            "last sign": f"{duration(agent.silent_s)} ago",
        }
        for agent, now in ((agent, agent.progress) for agent in run.parts)
    ]
    table = _table(rows, left_out=("missed",) if width < NARROW else ())
    sent = sum(agent.progress.sent for agent in run.parts)
    expected = first.about.agents if first.about else 0
    recorded = f"{len(run.parts)} of {expected} agents are recorded here; " if expected > len(run.parts) else ""
    return Group(head, table, Text(f"{recorded}sent {size(sent)}, cc {number(fleet_cc(run))} so far", "dim"))


def fleet_cc(run: RunSnapshot) -> float | None:
    """Of all agents that are recorded: each counts what it sends itself."""
    known = [now for now in (part.progress for part in run.parts) if now.cc is not None]
    sent = sum(now.sent for now in known)
    return sum((now.cc or 0.0) * now.sent for now in known) / sent if sent else None


def furthest(run: RunSnapshot) -> Progress:
    return max((snapshot.progress for snapshot in run.parts), key=lambda now: (bool(now.about), now.steps))


def many(view: FollowerView, width: int) -> RenderableType:
    """A row a run."""
    rows = [
        {
            "run": Text(str(run.place.folder.relative_to(view.path)), overflow="fold"),
            "state": Text(run.state, TONES[run.state]),
            "task": f"{now.opened}/{now.tasks}",
            "loss": number(now.losses[-1] if now.losses else None, ".3f"),
            "ACC": number(now.acc, score_words(now).digits),
            "cc": number(fleet_cc(run)),
            "kept %": number(now.kept_percent, ".1f"),
            "sent": size(sum(snapshot.progress.sent for snapshot in run.parts)),
            "left": max((left(snapshot).removesuffix(" left") for snapshot in run.parts), key=len),
        }
        for run, now in ((run, furthest(run)) for run in view.runs)
    ]
    return _table(rows, left_out=("loss", "sent", "cc", "kept %") if width < NARROW else ())


def _table(rows: Sequence[Mapping[str, Any]], left_out: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    titles = [title for title in (rows[0] if rows else ()) if title not in left_out]
    for title in titles:
        words = title in ("state", "run", "away")
        table.add_column(title, justify="left" if words else "right", no_wrap=title != "run")
    for cells in rows:
        table.add_row(*(cells[title] for title in titles))
    return table
