"""A network on paper: agents as circles, links as wide as what they carry, bent where another agent is in the way."""

from collections.abc import Sequence
from math import dist, hypot
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch

from codecl.report.figures import Network, Number
from codecl.report.formats import size

Point = tuple[float, float]
AGENT, LINK, INK = "#0072B2", "#7aa6c2", "#222222"
POINTS = 155  # of paper in a unit of the places, about
BEND = 0.25
MAX_NAMED = 24  # links; the numbers of more would hide each other
TRIES = (0.5, 0.36, 0.64, 0.26, 0.74)  # where on a link its number may stand, if no other does


class Link(NamedTuple):
    """Between two agents; `both`: either hears the other, and bytes are those of both ways."""

    start: int
    end: int
    bytes: Number
    both: bool


def draw_network(axes: Axes, figure: Network) -> None:
    """Arrows for links one way, plain lines for both ways with what they carry together."""
    across = min(21.0, 440 / max(len(figure.places), 1))  # of an agent, in points
    links = links_of(figure)
    known = [link.bytes for link in links if link.bytes is not None]
    named = len(links) <= MAX_NAMED
    said: list[Point] = []
    for link in links:
        ends = figure.places[link.start], figure.places[link.end]
        bend = _bend(figure, link, across / 2 / POINTS)
        _draw(axes, ends, bend, across, 0.8 + 2.4 * (link.bytes or 0) / (max(known, default=0) or 1), link.both)
        if named and link.bytes is not None:
            tried = [_on(ends, bend, share) for share in TRIES]
            free = [at for at in tried if all(dist(at, other) > 0.24 for other in said)]
            said.append((free or tried)[0])
            look: dict[str, Any] = {"ha": "center", "va": "center", "size": 7.5, "color": INK, "zorder": 2}
            behind = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.9}
            axes.text(*said[-1], size(link.bytes), bbox=behind, **look)
    if known and not named:
        low, high = size(min(known)), size(max(known))
        text = f"each link carries {low}" if low == high else f"links carry {low} to {high}"
        axes.text(0.5, -0.02, text, transform=axes.transAxes, ha="center", va="top")
    _agents(axes, figure.places, across)


def _agents(axes: Axes, places: Sequence[Point], across: float) -> None:
    letters: dict[str, Any] = {"color": "white", "ha": "center", "va": "center_baseline", "weight": "bold", "zorder": 4}
    for agent, (x, y) in enumerate(places):
        axes.plot([x], [y], "o", color=AGENT, markersize=across, markeredgecolor="white", zorder=3)
        axes.text(x, y, str(agent), size=min(9.0, 0.56 * across), **letters)
    xs, ys = zip(*places, strict=True)
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.set_xlim(min(xs) - 0.3, max(xs) + 0.3)
    axes.set_ylim(min(ys) - 0.35, max(ys) + 0.35)


def links_of(figure: Network) -> list[Link]:
    """The edges, a pair of them as one link both ways."""
    carried = {(sender, hearer): count for sender, hearer, count in figure.edges}
    out = []
    for (sender, hearer), count in carried.items():
        if (hearer, sender) not in carried:
            out.append(Link(sender, hearer, count, False))
        elif sender < hearer:
            back = carried[hearer, sender]
            out.append(Link(sender, hearer, None if count is None or back is None else count + back, True))
    return out


def _draw(axes: Axes, ends: tuple[Point, Point], bend: float, across: float, width: float, both: bool) -> None:
    style = "-" if both else "-|>"
    gap = across / 2 + 1
    curve = f"arc3,rad={bend}"
    arrow = FancyArrowPatch(*ends, arrowstyle=style, connectionstyle=curve, mutation_scale=11, shrinkA=gap, shrinkB=gap)
    arrow.set(linewidth=width, color=LINK, zorder=1)
    axes.add_patch(arrow)


def _bend(figure: Network, link: Link, radius: float) -> float:
    """0, or as far as it takes to pass by an agent that is in the way, on the outer side."""
    ends = figure.places[link.start], figure.places[link.end]
    others = (place for agent, place in enumerate(figure.places) if agent not in (link.start, link.end))
    if all(_away(place, *ends) >= radius for place in others):
        return 0.0
    return max((BEND, -BEND), key=lambda bend: hypot(*_on(ends, bend, 0.5)))


def _away(point: Point, start: Point, end: Point) -> float:
    """Of a point from a straight link."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    along = ((point[0] - start[0]) * dx + (point[1] - start[1]) * dy) / (dx * dx + dy * dy)
    along = min(1.0, max(0.0, along))
    return hypot(point[0] - start[0] - along * dx, point[1] - start[1] - along * dy)


def _on(ends: tuple[Point, Point], bend: float, share: float) -> Point:
    """A point of a link as it is drawn, so far along it."""
    (ax, ay), (bx, by) = ends
    cx, cy = (ax + bx) / 2 + bend * (by - ay), (ay + by) / 2 - bend * (bx - ax)
    first, between, last = (1 - share) ** 2, 2 * share * (1 - share), share**2
    return first * ax + between * cx + last * bx, first * ay + between * cy + last * by
