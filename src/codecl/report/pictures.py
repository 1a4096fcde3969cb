"""Figures -> files: SVG and PNG by matplotlib, and their numbers as CSV. The same figure gives the same files."""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import AutoLocator, LogLocator, NullLocator, StrMethodFormatter

from codecl.errors import ConfigError
from codecl.report.figures import Bars, Figure, Heat, Lines, Network, Points, Series, numbers
from codecl.report.graph import draw_network

# Okabe and Ito's colours, which colour-blind people can tell apart; when they run out, other dashes
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: Sequence[Any] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))
INK, PALE = "#222222", "#dddddd"
LOOK: Mapping[Any, Any] = {
    "svg.hashsalt": "codecl",
    "svg.fonttype": "none",  # text stays text
    "font.family": "sans-serif",
    "font.size": 9.0,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    "axes.edgecolor": "#888888",
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    "axes.titlelocation": "left",
    "axes.titlesize": 11.0,
    "axes.titleweight": "bold",
    "axes.titlepad": 12.0,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    **dict.fromkeys(("xtick.major.size", "ytick.major.size", "ytick.minor.size"), 0.0),
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.handlelength": 2.8,
}
SIZE = (7.2, 4.0)  # inches, without the legend
BESIDE = 4  # more entries than this stand beside the plot
ROWS = 24  # of a legend beside the plot
LETTER = 0.075  # inches
DPI = 150
SIDES = ((-8, 7), (8, -7), (8, 7), (-8, -7))  # of a point, where its number may stand


def write(figure: Figure, stem: Path) -> list[Path]:
    """`stem`.svg, .png and .csv; gives their paths."""
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("svg", "png", "csv")]
    svg, png, table = paths
    with mpl.rc_context({**mpl.rcParamsDefault, **LOOK}):
        canvas = draw(figure)
        canvas.draw_without_rendering()  # lays it out
        canvas.set_layout_engine("none")  # once: half of the time goes into that
        box = canvas.get_tightbbox().padded(0.1)
        try:
            stem.parent.mkdir(parents=True, exist_ok=True)
            canvas.savefig(svg, metadata={"Date": None, "Creator": None}, bbox_inches=box)
            canvas.savefig(png, dpi=DPI, bbox_inches=box)
            with table.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                behind = numbers(figure)
                writer.writerows([behind.columns, *behind.rows])
        except OSError as error:
            raise ConfigError(f"out: {stem.parent} cannot be written ({error.strerror or error})") from error
    return paths


def draw(figure: Figure) -> Canvas:
    """A canvas of matplotlib's with the figure on it."""
    canvas = Canvas(figsize=_size(figure), facecolor="white", layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.add_subplot()
    DRAW[type(figure)](axes, figure)
    axes.set_title(figure.title, wrap=True)
    return canvas


def _size(figure: Figure) -> tuple[float, float]:
    match figure:
        case Heat():
            return max(5.0, 0.5 * len(figure.columns) + 2), max(3.4, 0.36 * len(figure.rows) + 1.6)
        case Network():
            return 5.6, 5.0
        case Bars() if _lies(figure):
            names = max(map(len, figure.categories))
            return SIZE[0] + LETTER * names, 1.4 + len(figure.categories) * (0.12 + 0.1 * len(figure.series))
        case Bars() | Lines() | Points() if len(figure.series) > BESIDE:  # room for the legend beside it
            longest = max(len(series.name) for series in figure.series)
            columns = math.ceil(len(figure.series) / ROWS)
            rows = min(len(figure.series), ROWS)
            return SIZE[0] + columns * (0.6 + LETTER * longest), max(SIZE[1], 0.19 * rows + 0.6)
        case _:
            return SIZE


def _lines(axes: Axes, figure: Lines) -> None:
    axes.grid(axis="y")
    if figure.log:
        axes.set_yscale("log")
    for place, series in enumerate(figure.series):
        hides = any(_same(series, other) for other in figure.series[:place])  # then dashes let the other be seen
        partial = series.name.endswith("(partial)")
        dashes = DASHES[2] if partial else DASHES[(place // len(COLOURS) + hides) % len(DASHES)]
        _line(axes, series, COLOURS[place % len(COLOURS)], dashes, figure.log)
    _marks(axes, figure.marks)
    if figure.log_x:
        places = sorted({x for series in figure.series for x in series.x})
        axes.set_xscale("log")
        axes.set_xticks(places, [f"{x:g}" for x in places])
        axes.xaxis.set_minor_locator(NullLocator())
    if figure.ticks:
        _name(axes, figure.ticks)
        axes.set_xlim(-0.25, len(figure.ticks) - 0.75)
    axes.set_xlabel(figure.x)
    axes.set_ylabel(figure.y)
    _legend(axes, len(figure.series))


def _same(one: Series, other: Series) -> bool:
    """Whether two lines lie on each other nearly everywhere."""
    values = dict(zip(other.x, other.y, strict=True))
    pairs = [(a, b) for x, a in zip(one.x, one.y, strict=True) if a is not None and (b := values.get(x)) is not None]
    close = sum(abs(a - b) <= 0.005 * max(abs(a), abs(b)) for a, b in pairs)
    return bool(pairs) and close >= 0.7 * len(pairs)


def _line(axes: Axes, series: Series, colour: str, dashes: Any, log: bool) -> None:
    dots = "o" if len(series.x) <= 25 else ""
    y = [math.nan if value is None else value for value in series.y]
    axes.plot(series.x, y, color=colour, ls=dashes, marker=dots, markersize=3.5, linewidth=1.6, label=series.name)
    if series.std is None:
        return
    spread = [value or 0.0 for value in series.std]
    low = [value - by if value > by or not log else value for value, by in zip(y, spread, strict=True)]
    high = [value + by for value, by in zip(y, spread, strict=True)]
    axes.fill_between(series.x, low, high, color=colour, alpha=0.15, linewidth=0)


def _marks(axes: Axes, marks: Sequence[tuple[float, str]]) -> None:
    """A thin line where something begins; on top its name, or its number where names have no room."""
    room = 80 // max(len(marks), 1)  # letters
    cut = room >= 8 or all(len(name) <= room for _, name in marks)
    for number, (x, name) in enumerate(marks, 1):
        axes.axvline(x, color="#bbbbbb", linewidth=0.8, linestyle=(0, (2, 2)), zorder=0.5)
        short = (name if len(name) <= room else name[: room - 1] + "…") if cut else str(number)
        at = axes.get_xaxis_transform()
        axes.annotate(short, (x, 1), (2, 1), at, textcoords="offset points", fontsize=7, color="#666666")


def _name(axes: Axes, names: Sequence[str]) -> None:
    """Names under the places 0, 1, …; aslant where they are long, steeper where there are many."""
    fits = max(map(len, names), default=0) <= 80 / max(len(names), 1)
    aslant = {"rotation": 30 if len(names) <= 12 else 60, "ha": "right", "rotation_mode": "anchor"}
    turned: dict[str, Any] = {} if fits else aslant
    axes.set_xticks(range(len(names)), names, **turned)


def _bars(axes: Axes, figure: Bars) -> None:
    """Upright, or lying where there are many long names."""
    lying = _lies(figure)
    width = 0.8 / max(len(figure.series), 1)
    axes.grid(axis="x" if lying else "y")
    for place, series in enumerate(figure.series):
        x = [at + (place - (len(figure.series) - 1) / 2) * width for at in series.x]
        y = [math.nan if value is None else value for value in series.y]
        spread = [value or math.nan for value in series.std] if series.std else None
        look: dict[str, Any] = {"color": COLOURS[place % len(COLOURS)], "label": series.name}
        look["error_kw"] = {"elinewidth": 0.8, "ecolor": INK, "capsize": 1.5}
        if lying:
            axes.barh(x, y, 0.92 * width, xerr=spread, **look)
        else:
            axes.bar(x, y, 0.92 * width, yerr=spread, **look)
    if lying:
        axes.set_yticks(range(len(figure.categories)), figure.categories)
        axes.set_ylim(len(figure.categories) - 0.4, -0.6)
        axes.set_xlabel(figure.y)
    else:
        _name(axes, figure.categories)
        axes.set_xlim(-0.6, len(figure.categories) - 0.4)
        axes.set_ylabel(figure.y)
    _legend(axes, len(figure.series))


def _lies(figure: Bars) -> bool:
    return len(figure.categories) > 8 and max(map(len, figure.categories)) > 16


def _legend(axes: Axes, entries: int) -> None:
    """None for one; over the plot for a few; beside it for many."""
    if entries < 2:
        return
    if entries <= BESIDE:
        axes.figure.legend(loc="outside lower center", ncols=entries)
    else:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), ncols=math.ceil(entries / ROWS))


def _heat(axes: Axes, figure: Heat) -> None:
    values = [[math.nan if value is None else value for value in row] for row in figure.values]
    sides = [[place - 0.5 for place in range(len(names) + 1)] for names in (figure.columns, figure.rows)]
    axes.pcolormesh(*sides, values, cmap="YlGnBu", edgecolors="white", linewidth=1)
    axes.invert_yaxis()
    known = [value for row in figure.values for value in row if value is not None]
    position = min(known) + 0.55 * (max(known) - min(known))
    _name(axes, figure.columns)
    axes.set_yticks(range(len(figure.rows)), figure.rows)
    axes.spines[:].set_visible(False)
    for row, cells in enumerate(figure.values):
        for column, value in enumerate(cells):
            if value is not None:
                ink = "white" if value > position else INK
                digits = {"%": ".1f", "images": "g"}.get(figure.unit, ".3g")
                text = f"{value:{digits}}"
                axes.text(column, row, text, ha="center", va="center", color=ink, size=8)
    axes.set_xlabel(figure.x)
    axes.set_ylabel(figure.y)


def _points(axes: Axes, figure: Points) -> None:
    """Numbered, as the legend has them."""
    axes.grid(axis="y")
    axes.plot(*zip(*figure.joined, strict=True), color="#aaaaaa", linewidth=1.2, zorder=1)
    for place, (series, best) in enumerate(zip(figure.series, figure.best, strict=True)):
        colour = COLOURS[place % len(COLOURS)]
        look: dict[str, Any] = {"color": colour, "mfc": colour if best else "white", "elinewidth": 0.9, "capsize": 2}
        spread = [value or 0.0 for value in series.std] if series.std else None
        y = [value or 0.0 for value in series.y]
        axes.errorbar(series.x, y, spread, fmt="o", label=f"{place + 1}  {series.name}", **look)
    if figure.log_x:
        at = [x for series in figure.series for x in series.x]
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if max(at) > 10 * min(at) else AutoLocator())
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(0.08)
    axes.set_xlabel(figure.x)
    axes.set_ylabel(figure.y)
    _number(axes, [(series.x[0], series.y[0] or 0.0) for series in figure.series])
    _legend(axes, len(figure.series))


def _number(axes: Axes, points: Sequence[tuple[float, float]]) -> None:
    """A number beside each point, on the side with the most room."""
    axes.get_xlim()  # the axes take up what was drawn
    taken = [tuple(place) for place in axes.transData.transform(points)]  # pixels
    scale = axes.figure.dpi / 72
    for number, point in enumerate(points, 1):
        x, y = axes.transData.transform(point)

        def room(side: tuple[int, int], x: float = x, y: float = y) -> float:
            return min(math.hypot(x + side[0] * scale - a, y + side[1] * scale - b) for a, b in taken)

        side = max(SIDES, key=room)
        taken.append((x + side[0] * scale, y + side[1] * scale))
        axes.annotate(str(number), point, side, textcoords="offset points", ha="center", va="center", fontsize=8)


DRAW: dict[type, Callable[[Axes, Any], None]] = {
    Lines: _lines,
    Bars: _bars,
    Heat: _heat,
    Network: draw_network,
    Points: _points,
}
