"""The page's table: finished configurations, and below them, marked in words, those that are not."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from codecl.report.configurations import Configuration, group, remarks
from codecl.report.score_words import ScoreWords
from codecl.report.tables import in_order, results
from codecl.runs.reader import Run

NAMES = ("preset", "method", "agents", "variant", "status")  # columns that a row's head says
LAST = ("sent", "ms a step", "seeds")  # columns that matter less where there is little room
EXPLAINED: Mapping[str, str] = {  # by the first word of a column's title
    "ACC": "the accuracy on test images at the end, as a mean over all tasks: the higher the better.",
    "BWT": "how the accuracy of a task has changed since it was learned, as a mean over tasks: below 0 is forgetting.",
    "sent": "all bytes that left the agents, in training and between tasks.",
    "cc": "what full communication would have sent in the same rounds, divided by all that was sent: 2 is half the"
    " bytes, below 1 is more than full communication.",
    "cc_reference": "the same ratio as the authors count it, to set beside the paper's: every head and norm in every"
    " message, nothing of what is sent between tasks.",
    "kept": "the most that a task keeps for itself (its head, norms and directions of its own), in % of the body that"
    " all tasks share.",
    "Δ": "ours minus the paper's.",
}


class Title(NamedTuple):
    text: str
    words: bool


class Row(NamedTuple):
    """A configuration: what it is called, how it ended, and its scores as they are shown."""

    name: str
    variant: str  # what is special about it
    status: str
    cells: Sequence[str]


class Rows(NamedTuple):
    title: str  # empty: needs none
    rows: Sequence[Row]


class Scores(NamedTuple):
    columns: Sequence[Title]
    groups: Sequence[Rows]
    terms: Sequence[tuple[str, str]]  # what columns mean, in a sentence each
    notes: Sequence[str]

    @property
    def spread(self) -> bool:
        return any("±" in cell for rows in self.groups for row in rows.rows for cell in row.cells)


def scores(runs: Sequence[Run], paper: bool) -> Scores:
    """All runs in one table, so that columns are the same for all."""
    configurations = in_order(group(runs)) if paper else group(runs)
    sheet = results(runs, paper)
    columns = [column for column in sheet.columns if column.title not in NAMES]
    columns.sort(key=lambda column: LAST.index(column.title) if column.title in LAST else -1)
    cells = list(zip(*(column.cells for column in columns), strict=True))
    rows = [(one, _row(one, values)) for one, values in zip(configurations, cells, strict=True)]
    groups = [
        Rows("", [row for one, row in rows if not one.partial]),
        Rows("Not finished: scores of the tasks so far, not to be compared", [row for one, row in rows if one.partial]),
    ]
    titles = [Title(column.title, column.words) for column in columns]
    words = ScoreWords.of(run.metrics for run in runs)
    explained = [(name, words.put(meaning)) for name, meaning in terms(titles)]
    return Scores(titles, [one for one in groups if one.rows], explained, remarks(run.metrics for run in runs))


def _row(configuration: Configuration, cells: Sequence[str]) -> Row:
    name, *words = configuration.name.removesuffix(f" ({configuration.metrics.status})").split(", ")
    whole = [word for word in words if not word.endswith("…")]  # a variant is not cut here
    others = [word for word in configuration.variant.split(", ") if word not in whole]
    return Row(name, ", ".join(filter(None, [*whole, *others])), status(configuration), cells)


def status(configuration: Configuration) -> str:
    """`partial: 2 of 5 tasks`."""
    run = configuration.metrics
    done = max(len(one.metrics.accuracy_matrix) for one in configuration.runs)
    return f"partial: {done} of {run.tasks} tasks" if configuration.partial else run.status


def terms(titles: Sequence[Title]) -> list[tuple[str, str]]:
    """What the columns that are here mean; each once."""
    words = dict.fromkeys(title.text.split()[0] for title in titles)
    return [(word, EXPLAINED[word]) for word in words if word in EXPLAINED]
