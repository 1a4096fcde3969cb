"""What was learned and what was forgotten: figures from the accuracy matrix and from the free space."""

from collections.abc import Mapping, Sequence

from codecl.report.configurations import Configuration, common_tasks
from codecl.report.figures import Curve, Heat, Lines, Number, Series
from codecl.report.score_words import ScoreWords
from codecl.runs.reader import Run

SAVES = 1.001  # times as much would have been sent
A_POINT = 1.0  # of accuracy in %


def forgetting(configuration: Configuration) -> Lines | None:
    if configuration.metrics.each_task_alone or _after(configuration) < 2:
        return None
    tasks, words = configuration.tasks, configuration.words
    series = [_accuracy(configuration, task, name) for task, name in enumerate(tasks)]
    return Lines(
        "forgetting",
        f"{words.put('Accuracy')} of each task: {configuration.name}",
        " ".join(["A line begins when its task has been learned.", _lost(series, words), *_notes(configuration)]),
        "after task",
        words.axis,
        [line for line in series if line.x],
        ticks=tasks,
    )


def _lost(series: Sequence[Series], words: ScoreWords) -> str:
    """What later tasks have cost, of the task that it cost most."""
    ends = [(line.y[0] or 0.0, line.y[-1] or 0.0, line.name) for line in series if line.y]
    first, last, name = max(ends, key=lambda end: end[0] - end[1], default=(0.0, 0.0, ""))
    if first - last < words.some(A_POINT, first):
        lost = "a point" if words.percent else "a hundredth of its score"
        return f"All lines stay level: no task has lost as much as {lost}."
    from_first = f"{first:.1f}" if words.percent else words.said(first)
    return f"What falls was forgotten: most of all “{name}”, from {from_first} to {words.said(last)}."


def _stopped(configuration: Configuration) -> list[str]:
    if not configuration.partial:
        return []
    return [f"Not finished: {_after(configuration)} of {configuration.metrics.tasks} tasks so far."]


def _notes(configuration: Configuration) -> list[str]:
    said = _stopped(configuration)
    if any(run.metrics.not_scored for run in configuration.runs):
        said.append("Where a value is missing, the task was not scored again: its test data was not there.")
    return said


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
    words = ScoreWords.of(configuration.metrics for configuration in shown)
    said = ["After each task, the mean over all tasks that have been seen: the last point is ACC."]
    if len(shown) > 1:
        said.append("The higher a line ends, the more is known of all tasks together.")
    if any(run.metrics.not_scored for configuration in shown for run in configuration.runs):
        said.append("Where test data was not there, it is the mean over the tasks that were scored.")
    if any(configuration.partial for configuration in shown):
        said.append("A dotted line, marked partial, is of some of the tasks only: do not compare its end with others.")
    return Lines(
        "mean",
        words.put("Mean accuracy over the tasks so far"),
        " ".join(said),
        "after task",
        words.axis,
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
    tasks, words = configuration.tasks, configuration.words
    columns = [_accuracy(configuration, task, name) for task, name in enumerate(tasks)]
    points = [dict(zip(column.x, column.y, strict=True)) for column in columns]
    return Heat(
        "matrix",
        f"{words.put('Accuracy')}{' in %' * words.percent}: {configuration.name}",
        " ".join(
            [
                words.put(
                    "Row: after this task. Column: accuracy of that task. Read a column downwards to see what becomes"
                    " of a task as others are learned; the last row is what is known at the end."
                ),
                *_notes(configuration),
            ]
        ),
        f"{words.word} of task",
        "after task",
        tasks,
        tasks[:rows],
        [[column.get(after) for column in points] for after in range(rows)],
        words.unit,
    )


def free(configuration: Configuration) -> Lines | None:
    shares = [_shares(run) for run in configuration.runs]
    layers = dict.fromkeys(layer for of_run in shares for layer in of_run)
    series = [Series.over_seeds(layer, [of_run.get(layer, {}) for of_run in shares]) for layer in layers]
    if all(share == 1 for line in series for share in line.y):
        return None
    by_task = [ratio for ratio in configuration.metrics.traffic.cc_by_task if ratio is not None]
    saves = bool(by_task) and max(by_task) > SAVES
    return Lines(
        "free",
        f"Free space of each layer: {configuration.name}",
        "The share of a layer's inputs in which a task could still learn; the core space, which earlier tasks keep, is"
        f" 1 − free. The less is free, {'the less is sent, and ' if saves else ''}the less can still be learned.",
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
