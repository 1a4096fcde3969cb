"""What was learned and what was forgotten: figures from the accuracy matrix and from the free space."""

from collections.abc import Mapping, Sequence

from codecl.report.configurations import Configuration, common_tasks
from codecl.report.figures import Curve, Heat, Lines, Number, Series
from codecl.runs.reader import Run


def forgetting(configuration: Configuration) -> Lines | None:
    if configuration.metrics.each_task_alone or _after(configuration) < 2:
        return None
    tasks = configuration.tasks
    series = [_accuracy(configuration, task, name) for task, name in enumerate(tasks)]
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
    return max(len(run.metrics.accuracy_matrix) for run in configuration.runs)


def _accuracy(configuration: Configuration, task: int, name: str) -> Series:
    """Of a task, after it and each later one: a column of the accuracy matrix."""

    def column(run: Run) -> Curve:
        rows = enumerate(run.metrics.accuracy_matrix)
        return {after: row[task] for after, row in rows if after >= task and task < len(row)}

    return Series.over_seeds(name, map(column, configuration.runs))


def mean(configurations: Sequence[Configuration]) -> Lines | None:
    """Of tasks alone, the mean of the diagonal, as their ACC is."""
    shown = [configuration for configuration in configurations if _after(configuration)]
    if not any(_after(configuration) > 1 for configuration in shown):
        return None
    return Lines(
        "mean",
        "Mean accuracy over the tasks so far",
        "After each task, the mean over all tasks that have been seen: the last point is ACC. The higher a line ends,"
        " the more is known of all tasks together.",
        "after task",
        "accuracy in %",
        [Series.over_seeds(configuration.name, map(_mean, configuration.runs)) for configuration in shown],
        ticks=common_tasks(shown),
    )


def _mean(run: Run) -> Curve:
    out: dict[float, Number] = {}
    rows = run.metrics.accuracy_matrix
    for after, row in enumerate(rows):
        alone = run.metrics.each_task_alone
        scores = [rows[task][task] for task in range(after + 1)] if alone else row[: after + 1]
        seen = [score for score in scores if score is not None]
        out[after] = sum(seen) / len(seen) if seen else None
    return out


def matrix(configuration: Configuration) -> Heat | None:
    rows = _after(configuration)
    if rows < 2:
        return None
    tasks = configuration.tasks
    columns = [_accuracy(configuration, task, name) for task, name in enumerate(tasks)]
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


def free(configuration: Configuration) -> Lines | None:
    shares = [_shares(run) for run in configuration.runs]
    layers = dict.fromkeys(layer for of_run in shares for layer in of_run)
    series = [Series.over_seeds(layer, [of_run.get(layer, {}) for of_run in shares]) for layer in layers]
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


def _shares(run: Run) -> Mapping[str, Curve]:
    """By layer, free / all of each task; before the first task all is free."""
    by_task = dict(zip(run.opened, run.metrics.free_by_task, strict=False))
    return {
        layer: {task: free[layer] / size for task, free in by_task.items() if layer in free}
        for layer, size in by_task.get(0, {}).items()
        if size
    }
