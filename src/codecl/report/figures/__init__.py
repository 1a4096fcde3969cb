"""What a figure says, before anything draws it: the page, the picture files and the tables are made from this."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from codecl.report.configurations import Score

Number = float | int | None  # None: not known
Curve = Mapping[float, Number]  # x -> y, of one run


def finite(value: Number) -> Number:
    """A number as it is; None where there is none, or one that no figure can show."""
    return value if value is not None and math.isfinite(value) else None


class Series(NamedTuple):
    """A line, or the bars of one colour. `std`: over seeds, where there are more than one."""

    name: str
    x: Sequence[float]
    y: Sequence[Number]
    std: Sequence[Number] | None = None

    @classmethod
    def over_seeds(cls, name: str, curves: Iterable[Curve]) -> "Series":
        """A point is the mean of the seeds that have it; std where at least two do. Law: x rises."""
        points: dict[float, list[float]] = {}
        for curve in curves:
            for x, y in curve.items():
                if (value := finite(y)) is not None:
                    points.setdefault(x, []).append(value)
        xs = sorted(points)
        scores = [Score.of(points[x]) for x in xs]
        spread = any(score.std is not None for score in scores)
        return cls(name, xs, [score.mean for score in scores], [score.std for score in scores] if spread else None)


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


class Points(NamedTuple):
    """Points, each a series of its own; `best`: whether each is filled. `joined`: the places of a line behind them."""

    key: str
    title: str
    about: str
    x: str
    y: str
    series: Sequence[Series]
    best: Sequence[bool]
    joined: Sequence[tuple[float, float]]
    log_x: bool = False


Figure = Lines | Bars | Heat | Network | Points


class Section(NamedTuple):
    """A part of the page: one figure, or one for each configuration or task, of which a reader chooses."""

    key: str
    title: str
    figures: Mapping[str, Figure]  # by the name of what it is of; "" where one figure shows all
    choice: str = "configuration"  # what there is one of for each


class Numbers(NamedTuple):
    """The numbers behind a figure, for a table or a CSV file."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str | Number]]


def numbers(figure: Figure) -> Numbers:
    """A row a point: everything that the figure shows, and nothing else."""
    match figure:
        case Lines():
            return _points(figure.series, figure.x, figure.y, figure.ticks)
        case Bars():
            return _points(figure.series, "category", figure.y, figure.categories)
        case Heat():
            named = zip(figure.rows, figure.values, strict=True)
            return Numbers([figure.y, *figure.columns], [[name, *values] for name, values in named])
        case Points():
            points = _points(figure.series, figure.x, figure.y, ())
            rows = [[*row, "yes" if best else ""] for row, best in zip(points.rows, figure.best, strict=True)]
            return Numbers([*points.columns, "best"], rows)
        case Network():
            return Numbers(["sender", "hearer", "bytes"], [list(edge) for edge in figure.edges])


def _points(series: Sequence[Series], x: str, y: str, names: Sequence[str]) -> Numbers:
    """`names`: of x = 0, 1, 2, …, where they have some."""
    spread = any(line.std for line in series)
    rows: list[list[str | Number]] = []
    for line in series:
        for place, value in enumerate(line.y):
            at = names[int(line.x[place])] if names else line.x[place]
            std = [line.std[place] if line.std else None] if spread else []
            rows.append([line.name, at, value, *std])
    return Numbers(["series", x, y, *(["std"] if spread else [])], rows)
