"""What a figure says, before anything draws it: the page, the picture files and the tables are made from this."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Number = float | int | None  # None: not known


class Series(NamedTuple):
    """A line, or the bars of one colour. `std`: over seeds, where there are more than one."""

    name: str
    x: Sequence[float]
    y: Sequence[Number]
    std: Sequence[Number] | None = None


class Lines(NamedTuple):
    """Curves over x; `ticks` names x = 0, 1, 2, … where x is a place and not a quantity (tasks). `marks`: x where
    something begins, with its name (a task)."""

    key: str
    title: str
    about: str  # one or two sentences: what to see in it
    x: str
    y: str
    series: Sequence[Series]
    log: bool = False
    ticks: Sequence[str] = ()
    marks: Sequence[tuple[float, str]] = ()
    log_x: bool = False


class Bars(NamedTuple):
    """Groups of bars, one a category; every series has a value for each."""

    key: str
    title: str
    about: str
    y: str
    categories: Sequence[str]
    series: Sequence[Series]


class Heat(NamedTuple):
    """A matrix of numbers as colours."""

    key: str
    title: str
    about: str
    x: str
    y: str
    columns: Sequence[str]
    rows: Sequence[str]
    values: Sequence[Sequence[Number]]
    unit: str = "%"


class Network(NamedTuple):
    """Agents and the links between them: (sender, hearer, bytes). `places`: where each agent is drawn, in [-1, 1]²."""

    key: str
    title: str
    about: str
    places: Sequence[tuple[float, float]]
    edges: Sequence[tuple[int, int, Number]]


Figure = Lines | Bars | Heat | Network


class Section(NamedTuple):
    """A part of the page: one figure, or one for each configuration, of which a reader chooses."""

    key: str
    title: str
    figures: Mapping[str, Figure]  # by the name of the configuration; "" where one figure shows all


class Numbers(NamedTuple):
    """The numbers behind a figure, for a table or a CSV file."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str | Number]]


def numbers(figure: Figure) -> Numbers:
    """A row a point: everything that the figure shows, and nothing else."""
    match figure:
        case Lines():
            spread = any(series.std for series in figure.series)
            names = ["series", figure.x, figure.y, *(["std"] if spread else [])]
            return Numbers(names, [row for series in figure.series for row in _points(series, figure.ticks, spread)])
        case Bars():
            spread = any(series.std for series in figure.series)
            names = ["series", "category", figure.y, *(["std"] if spread else [])]
            points = (row for series in figure.series for row in _points(series, figure.categories, spread))
            return Numbers(names, list(points))
        case Heat():
            named = zip(figure.rows, figure.values, strict=True)
            return Numbers([figure.y, *figure.columns], [[name, *values] for name, values in named])
        case Network():
            return Numbers(["sender", "hearer", "bytes"], [list(edge) for edge in figure.edges])


def _points(series: Series, names: Sequence[str], spread: bool) -> list[list[str | Number]]:
    out: list[list[str | Number]] = []
    for place, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
        at = names[int(x)] if names else x
        out.append([series.name, at, y, *([series.std[place] if series.std else None] if spread else [])])
    return out
