"""What was learned and what was forgotten: figures from the accuracy matrix and from the free space."""

from collections.abc import Mapping, Sequence
from functools import partial

from codecl.report.configurations import Configuration, Curve, common_tasks
from codecl.report.figure import Figure, Heat, Lines, Number, Section
from codecl.report.gather import Run

Found = Sequence[Configuration]


def forgetting(found: Found) -> Section | None:
    return each("forgetting", "Forgetting", {configuration.name: _forgetting(configuration) for configuration in found})


def _forgetting(configuration: Configuration) -> Lines | None:
    if configuration.first.alone or _after(configuration) < 2:
        return None
    tasks = configuration.tasks
    series = [configuration.series(name, partial(_column, task)) for task, name in enumerate(tasks)]
    return Lines(
        "forgetting",
        f"Accuracy of each task: {configuration.name}",
        "A line begins when its task has been learned. A line that stays level means that nothing is forgotten; one"
        " that falls shows what later tasks have cost.",
        "after task",
        "accuracy in %",
        [line for line in series if line.x],
        ticks=tasks,
    )


def _after(configuration: Configuration) -> int:
    """After how many tasks something was scored."""
    return max(len(run.metrics["accuracy_matrix"]) for run in configuration.runs)


def _column(task: int, run: Run) -> Curve:
    rows = run.metrics["accuracy_matrix"]
    return {after: row[task] for after, row in enumerate(rows) if after >= task and task < len(row)}


def mean(found: Found) -> Section | None:
    """Of tasks alone, the mean of the diagonal, as their ACC is."""
    shown = [configuration for configuration in found if _after(configuration)]
    if not any(_after(configuration) > 1 for configuration in shown):
        return None
    figure = Lines(
        "mean",
        "Mean accuracy over the tasks so far",
        "After each task, the mean over all tasks that have been seen: the last point is ACC. The higher a line ends,"
        " the more is known of all tasks together.",
        "after task",
        "accuracy in %",
        [configuration.series(configuration.name, _mean) for configuration in shown],
        ticks=common_tasks(shown),
    )
    return Section("mean", "Mean accuracy", {"": figure})


def _mean(run: Run) -> Curve:
    out: dict[float, Number] = {}
    rows = run.metrics["accuracy_matrix"]
    for after, row in enumerate(rows):
        scores = [rows[task][task] for task in range(after + 1)] if run.alone else row[: after + 1]
        seen = [score for score in scores if score is not None]
        out[after] = sum(seen) / len(seen) if seen else None
    return out


def matrix(found: Found) -> Section | None:
    return each("matrix", "Accuracy matrix", {configuration.name: _matrix(configuration) for configuration in found})


def _matrix(configuration: Configuration) -> Heat | None:
    rows = _after(configuration)
    if rows < 2:
        return None
    tasks = configuration.tasks
    columns = [configuration.series("", partial(_column, task)) for task in range(len(tasks))]
    points = [dict(zip(column.x, column.y, strict=True)) for column in columns]
    return Heat(
        "matrix",
        f"Accuracy in %: {configuration.name}",
        "Row: after this task. Column: accuracy of that task. Read a column downwards to see a task being forgotten;"
        " the last row is what is known at the end.",
        "accuracy of task",
        "after task",
        tasks,
        tasks[:rows],
        [[column.get(after) for column in points] for after in range(rows)],
    )


def free(found: Found) -> Section | None:
    return each("free", "Free space", {configuration.name: _free(configuration) for configuration in found})


def _free(configuration: Configuration) -> Lines | None:
    layers = dict.fromkeys(layer for run in configuration.runs for layer in _shares(run))
    series = [configuration.series(layer, partial(_share, layer)) for layer in layers]
    if all(share == 1 for line in series for share in line.y):
        return None
    return Lines(
        "free",
        f"Free space of each layer: {configuration.name}",
        "The share of a layer's inputs in which a task could still learn; the core space, which earlier tasks keep, is"
        " 1 − free. The less is free, the less is sent, and the less can still be learned.",
        "while learning task",
        "free share",
        series,
        ticks=configuration.tasks,
    )


def _share(layer: str, run: Run) -> Curve:
    return _shares(run).get(layer, {})


def _shares(run: Run) -> Mapping[str, Curve]:
    """By layer, free / whole of each task; before the first task all is free."""
    by_task = dict(zip(run.opened, run.metrics["free_by_task"], strict=False))
    whole = by_task.get(0, {})
    return {
        layer: {task: free[layer] / size for task, free in by_task.items() if layer in free}
        for layer, size in whole.items()
        if size
    }


def each(key: str, title: str, figures: Mapping[str, Figure | None]) -> Section | None:
    """A figure a configuration, of those that have something to show."""
    shown = {name: figure for name, figure in figures.items() if figure}
    return Section(key, title, shown) if shown else None
