"""What was sent, along which links, and what a step took."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean

from codecl.report.configurations import Configuration, Curve, common_tasks, known, over_seeds
from codecl.report.figure import Bars, Figure, Lines, Network, Number, Section, Series
from codecl.report.gather import Run
from codecl.report.learned import each
from codecl.report.units import unit_for

MAX_BARS = 4  # configurations side by side; more are lines
MAX_AGENTS = 64  # of a network that can still be looked at
Found = Sequence[Configuration]
Places = list[tuple[float, float]]


def compression(found: Found) -> Section | None:
    lines = [configuration.series(configuration.name, _cc) for configuration in found]
    shown = [(line, configuration) for line, configuration in zip(lines, found, strict=True) if line.x]
    if not shown:
        return None
    tasks, series = common_tasks([configuration for _, configuration in shown]), [line for line, _ in shown]
    title, y = "Compression of each task", "full communication / sent"
    about = (
        "How many times less is sent while a task is learned than with full communication (CC). It grows as the core"
        " space does. The paper's Figures 3, 5 and 6, whose messages also carry every head: there it grows less."
    )
    figure: Figure
    if len(series) <= MAX_BARS:
        bars = [in_categories(line, len(tasks)) for line in series]
        figure = Bars("compression", title, about, y, tasks, bars)
    else:
        figure = Lines("compression", title, about, "task", y, series, ticks=tasks)
    return Section("compression", "Compression", {"": figure})


def _cc(run: Run) -> Curve:
    return dict(zip(run.opened, run.metrics["traffic"]["cc_by_task"], strict=False))


def in_categories(line: Series, count: int) -> Series:
    """A value for each of `count` categories, None where there is none."""
    values = dict(zip(line.x, line.y, strict=True))
    spread = dict(zip(line.x, line.std, strict=True)) if line.std else None
    places = range(count)
    return Series(
        line.name, places, [values.get(x) for x in places], [spread.get(x) for x in places] if spread else None
    )


def network(found: Found) -> Section | None:
    return each("network", "Network", {configuration.name: _network(configuration) for configuration in found})


def _network(configuration: Configuration) -> Network | None:
    """Seeds with another graph than the first's are not shown."""
    first = configuration.first
    edges = _edges(first)
    if not edges or int(first.metrics["agents"]) > MAX_AGENTS:
        return None
    totals: dict[tuple[int, int], list[float]] = {edge: [] for edge in edges}
    for run in configuration.runs:
        for sender, hearer, count in _carried(run) if _edges(run) == edges else ():
            totals.setdefault((sender, hearer), []).append(count)
    agents, topology = int(first.metrics["agents"]), str(first.metrics["topology"])
    counted = "all that agents sent to each other" if first.links else "training and agreement"
    left_out = "" if first.links else " What floods or is reduced at a task's end goes along trees and is not in it."
    return Network(
        "network",
        f"Who hears whom: {configuration.name}",
        f"Bytes along each link, {counted}. An arrow is a link one way; a plain line goes both ways.{left_out}",
        PLACES.get(topology, circle)(agents),
        [(sender, hearer, fmean(counts) if counts else None) for (sender, hearer), counts in totals.items()],
    )


def _edges(run: Run) -> list[tuple[int, int]]:
    facts = run.facts("run")
    return [(int(sender), int(hearer)) for sender, hearer in facts[0]["edges"]] if facts else []


def _carried(run: Run) -> Sequence[tuple[int, int, float]]:
    """Links as a fleet recorded them; simulated, every edge carries the same in training and agreement."""
    if run.links:
        return [link for link in run.links if link[2]]
    edges = _edges(run)
    count = sum(fact["bytes"] for fact in (*run.facts("epoch"), *run.facts("agree"))) / len(edges)
    return [(sender, hearer, count) for sender, hearer in edges]


def circle(agents: int) -> Places:
    """The first on top, then clockwise."""
    turns = [2 * math.pi * agent / agents for agent in range(agents)]
    return [(math.sin(turn), math.cos(turn)) for turn in turns]


def grid(agents: int) -> Places:
    """As `topology.torus` has it: the most square one, row by row."""
    rows = max(r for r in range(1, math.isqrt(agents) + 1) if agents % r == 0)
    columns = agents // rows
    step, side = 2 / (columns - 1), (rows - 1) / (columns - 1)
    return [(column * step - 1, side - row * step) for row in range(rows) for column in range(columns)]


def star(agents: int) -> Places:
    return [(0.0, 0.0), *circle(agents - 1)]


PLACES: Mapping[str, Callable[[int], Places]] = {"torus": grid, "star": star}


def amount(found: Found) -> Section | None:
    """Bytes that were sent, beside full communication."""
    sent = {
        "sent in training": "train_bytes",
        "sent at tasks' ends": "boundary_bytes",
        "full communication": "full_bytes",
    }
    shown = [configuration for configuration in found if configuration.first.metrics["traffic"]["train_bytes"]]
    if not shown:
        return None
    traffic = [run.metrics["traffic"] for configuration in shown for run in configuration.runs]
    unit, power = unit_for(max(max(one[key] for key in sent.values()) for one in traffic))
    figure = Bars(
        "bytes",
        f"{unit} sent",
        "By all agents in a whole run: in training, and at the ends of tasks (agreement, growth, flood). Full"
        " communication is what whole weights would have taken in the same rounds.",
        unit,
        [configuration.name for configuration in shown],
        [_bars(name, shown, partial(_bytes, key, power)) for name, key in sent.items()],
    )
    return Section("bytes", "Traffic", {"": figure})


def _bytes(key: str, power: int, run: Run) -> float:
    return float(run.metrics["traffic"][key]) / 1000**power


def time(found: Found) -> Section | None:
    bars = _bars("a step", found, lambda run: known(run.metrics["timing"].get("ms_per_iteration")))
    shown = [configuration for configuration, value in zip(found, bars.y, strict=True) if value is not None]
    if not shown:
        return None
    figure = Bars(
        "time",
        "Time of a step",
        "Milliseconds that a training step of all agents took, each run on the machine where it was made: compare runs"
        " of the same machine only.",
        "ms a step",
        [configuration.name for configuration in shown],
        [_bars("a step", shown, lambda run: known(run.metrics["timing"].get("ms_per_iteration")))],
    )
    return Section("time", "Time", {"": figure})


def _bars(name: str, found: Found, value: Callable[[Run], Number]) -> Series:
    """A bar a configuration."""
    points = [over_seeds(name, [{0: value(run)} for run in configuration.runs]) for configuration in found]
    means = [point.y[0] if point.y else None for point in points]
    stds = [point.std[0] if point.std else None for point in points]
    return Series(name, range(len(found)), means, stds if any(std is not None for std in stds) else None)
