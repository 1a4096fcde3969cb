"""Who holds what: images of each class of a task, by agent, where they are dealt unevenly."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from codecl.report.configurations import Configuration
from codecl.report.figures import Heat, Number
from codecl.train.events import TaskOpened

MAX_AGENTS = 64  # of a map that can still be looked at


class Dealt(NamedTuple):
    """How the images of tasks were dealt, of the first seed of a configuration that recorded it."""

    configuration: Configuration
    seed: int
    tasks: Sequence[TaskOpened]  # by their number

    @property
    def note(self) -> str:
        return f" Of seed {self.seed}; other seeds are dealt anew." if len(self.configuration.runs) > 1 else ""


def held(configurations: Sequence[Configuration]) -> dict[str, Heat]:
    """A map a task; configurations whose images were dealt alike have it in common."""
    found: dict[str, Dealt] = {}
    for dealt in filter(None, map(_dealt, configurations)):
        found.setdefault(str([(task.class_counts, task.images) for task in dealt.tasks]), dealt)
    maps = {}
    for dealt in found.values():
        of = f"{dealt.configuration.name}, " if len(found) > 1 else ""
        for name, figure in _maps(dealt).items():
            title = f"{figure.title}: {dealt.configuration.name}" if of else figure.title
            maps[of + name] = figure._replace(title=title, about=figure.about + dealt.note)
    return maps


def _dealt(configuration: Configuration) -> Dealt | None:
    for run in configuration.runs:
        tasks = {event.task: event for event in run.of(TaskOpened) if event.class_counts or event.images}
        if tasks and run.metrics.agents <= MAX_AGENTS:
            return Dealt(configuration, run.metrics.seed, [tasks[task] for task in sorted(tasks)])
    return None


def _maps(dealt: Dealt) -> dict[str, Heat]:
    known = {task.task: task.class_counts for task in dealt.tasks if task.class_counts}
    if not known:
        return {"all tasks": _sizes(dealt)}
    return {
        f"{task.task + 1}: {task.name}": _classes(task.name, known[task.task])
        for task in dealt.tasks
        if task.task in known
    }


def _classes(task: str, counts: Mapping[str, Sequence[int | None]]) -> Heat:
    """Of one task: a row an agent, a column a class."""
    rows: list[list[Number]] = [list(row) for row in zip(*counts.values(), strict=True)]
    known = [[int(value) for value in row if value is not None] for row in rows if None not in row]
    sums, some = [sum(row) for row in known], [sum(value > 0 for value in row) for row in known]
    said = [
        "Row: an agent. Column: a class. Colour: training images.",
        f"An agent has {_span(sums)} images, of {_span(some)} of the {len(counts)} classes.",
    ]
    if len(sums) < len(rows):
        said.append(f"Not recorded: {len(rows) - len(sums)} of the {len(rows)} agents.")
    return _heat(f"Who holds which classes of “{task}”", said, "class", list(counts), rows)


def _sizes(dealt: Dealt) -> Heat:
    """Of all tasks, where classes are not known before images are read."""
    columns = {f"{task.task + 1}: {task.name}": task.images or () for task in dealt.tasks}
    rows: list[list[Number]] = [list(row) for row in zip(*columns.values(), strict=True)]
    said = [
        "Row: an agent. Column: a task. Colour: training images.",
        f"An agent has {_span([int(value or 0) for row in rows for value in row])} images of a task.",
    ]
    return _heat("How many images agents have", said, "task", list(columns), rows)


def _heat(title: str, said: Sequence[str], x: str, columns: Sequence[str], rows: Sequence[Sequence[Number]]) -> Heat:
    return Heat(
        "held", title, " ".join(said), x, "agent", columns, [str(agent) for agent in range(len(rows))], rows, "images"
    )


def _span(counts: Sequence[int]) -> str:
    least, most = min(counts, default=0), max(counts, default=0)
    return str(most) if least == most else f"{least} to {most}"
