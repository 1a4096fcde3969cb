"""A network on paper: agents as circles, links as wide as what they carry, bent where another agent is in the way."""

from math import hypot

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch

from codecl.report.figure import Network, Number
from codecl.report.table import size

Point = tuple[float, float]
AGENT, LINK, INK = "#0072B2", "#7aa6c2", "#222222"
BEND = 0.25
MOST_NAMED = 24  # links; the numbers of more would hide each other


def draw_network(axes: Axes, figure: Network) -> None:
    """Arrows for links one way, plain lines for both ways with what they carry together."""
    radius = min(0.13, 1.6 / max(len(figure.places), 1))
    links = _links(figure)
    most = max((carried or 0 for _, _, carried, _ in links), default=0) or 1
    same = len({carried for _, _, carried, _ in links}) == 1 and len(links) > MOST_NAMED / 2
    for sender, hearer, carried, both in links:
        start, end = figure.places[sender], figure.places[hearer]
        bend = _bend(figure, sender, hearer, radius)
        width = 0.8 + 2.4 * (carried or 0) / most
        _link(axes, start, end, (radius, bend, width), both)
        if carried is not None and len(links) <= MOST_NAMED and not same:
            _say(axes, _middle(start, end, bend), size(carried))
    if same and links[0][2] is not None:
        axes.text(0.5, -0.02, f"each link: {size(links[0][2])}", transform=axes.transAxes, ha="center", va="top")
    for agent, (x, y) in enumerate(figure.places):
        axes.plot([x], [y], "o", color=AGENT, markersize=200 * radius * 0.8, markeredgecolor="white", zorder=3)
        axes.text(x, y, str(agent), color="white", ha="center", va="center", weight="bold", size=9, zorder=4)
    axes.set_aspect("equal")
    axes.set_axis_off()
    xs, ys = zip(*figure.places, strict=True)
    axes.set_xlim(min(xs) - 0.3, max(xs) + 0.3)
    axes.set_ylim(min(ys) - 0.35, max(ys) + 0.35)


def _links(figure: Network) -> list[tuple[int, int, Number, bool]]:
    """(sender, hearer, bytes, both ways), a pair of edges as one."""
    carried = {(sender, hearer): count for sender, hearer, count in figure.edges}
    out: list[tuple[int, int, Number, bool]] = []
    for (sender, hearer), count in carried.items():
        if (hearer, sender) not in carried:
            out.append((sender, hearer, count, False))
        elif sender < hearer:
            back = carried[hearer, sender]
            out.append((sender, hearer, None if count is None or back is None else count + back, True))
    return out


def _link(axes: Axes, start: Point, end: Point, shape: tuple[float, float, float], both: bool) -> None:
    radius, bend, width = shape
    gap = 200 * radius * 0.4 + 1
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-" if both else "-|>",
            mutation_scale=11,
            connectionstyle=f"arc3,rad={bend}",
            shrinkA=gap,
            shrinkB=gap,
            linewidth=width,
            color=LINK,
            zorder=1,
        )
    )


def _bend(figure: Network, sender: int, hearer: int, radius: float) -> float:
    """0, or as far as it takes to pass by an agent that is in the way, on the outer side."""
    start, end = figure.places[sender], figure.places[hearer]
    others = (place for agent, place in enumerate(figure.places) if agent not in (sender, hearer))
    if all(_away(place, start, end) >= radius for place in others):
        return 0.0
    return max((BEND, -BEND), key=lambda bend: hypot(*_middle(start, end, bend)))


def _away(point: Point, start: Point, end: Point) -> float:
    """Of a point from a straight link."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    along = ((point[0] - start[0]) * dx + (point[1] - start[1]) * dy) / (dx * dx + dy * dy)
    along = min(1.0, max(0.0, along))
    return hypot(point[0] - start[0] - along * dx, point[1] - start[1] - along * dy)


def _middle(start: Point, end: Point, bend: float) -> Point:
    """Of a link as it is drawn."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    return (start[0] + end[0]) / 2 + bend * dy / 2, (start[1] + end[1]) / 2 - bend * dx / 2


def _say(axes: Axes, at: Point, text: str) -> None:
    behind = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.9}
    axes.text(*at, text, ha="center", va="center", size=7.5, color=INK, bbox=behind, zorder=2)
