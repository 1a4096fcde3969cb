"""What was sent, along which links, and what a step took."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from codecl.report.configurations import Configuration, common_tasks, ms_per_step
from codecl.report.figures import Bars, Curve, Lines, Network, Series
from codecl.report.formats import unit_for
from codecl.runs.reader import Run
from codecl.runs.schema import Metrics, Traffic
from codecl.train.events import Agreed, EpochEnded, RunStarted

GROWS = 1.01  # times its first value
MAX_BARS = 4  # configurations side by side; more are lines
MAX_AGENTS = 64  # of a network that can still be looked at
Places = list[tuple[float, float]]


def compression(configurations: Sequence[Configuration]) -> Bars | Lines | None:
    lines = [Series.over_seeds(one.name, map(_cc, one.runs)) for one in configurations]
    series = [line for line in lines if line.x]
    if not series:
        return None
    tasks = common_tasks([one for line, one in zip(lines, configurations, strict=True) if line.x])
    title, y = "Compression of each task", "full communication / sent"
    said = (
        "What full communication sends, divided by what is sent, while each task is learned: 1 where nothing is saved."
    )
    finished = {one.name for one in configurations if not one.partial}
    about = " ".join([said, *_growing([line for line in series if line.name in finished])])
    if len(series) > MAX_BARS:
        return Lines("compression", title, about, "task", y, series, ticks=tasks)
    return Bars("compression", title, about, y, tasks, [in_categories(line, len(tasks)) for line in series])


def _growing(lines: Sequence[Series]) -> list[str]:
    """Whether later tasks send less, and how much less where that is most."""
    ends = [(line.y[-1] or 0.0, line.y[0] or 0.0, line.name) for line in lines]
    last, first, name = max(ends, default=(0.0, 1.0, ""))
    if last < GROWS * first:
        return []
    return [
        f"It grows as the core space does: {name} begins at {first:.2f} and ends at {last:.2f}. In the paper's Figures"
        " 3, 5 and 6 messages also carry every head, which makes it grow less."
    ]


def _cc(run: Run) -> Curve:
    return dict(zip(run.opened, run.metrics.traffic.cc_by_task, strict=False))


def in_categories(line: Series, count: int) -> Series:
    """A value for each of `count` categories, None where there is none."""
    values = dict(zip(line.x, line.y, strict=True))
    spread = dict(zip(line.x, line.std, strict=True)) if line.std else None
    places = range(count)
    std = [spread.get(x) for x in places] if spread else None
    return Series(line.name, places, [values.get(x) for x in places], std)


def network(configuration: Configuration) -> Network | None:
    """Seeds with another graph than the first's are not shown."""
    first = configuration.runs[0]
    edges = _edges(first)
    if not edges or first.metrics.agents > MAX_AGENTS:
        return None
    totals: dict[tuple[int, int], list[float]] = {edge: [] for edge in edges}
    for run in configuration.runs:
        for sender, hearer, count in _carried(run) if _edges(run) == edges else ():
            totals.setdefault((sender, hearer), []).append(count)
    counted = "all that agents sent to each other" if first.links else "training and agreement"
    left_out = "" if first.links else " What floods or is reduced at a task's end goes along trees and is not in it."
    return Network(
        "network",
        f"Who hears whom: {configuration.name}",
        f"Bytes along each link, {counted}. An arrow is a link one way; a plain line goes both ways.{left_out}",
        PLACES.get(first.metrics.topology, circle)(first.metrics.agents),
        [(sender, hearer, fmean(counts) if counts else None) for (sender, hearer), counts in totals.items()],
    )


def _edges(run: Run) -> list[tuple[int, int]]:
    started = run.of(RunStarted)
    return list(started[0].edges) if started else []


def _carried(run: Run) -> Sequence[tuple[int, int, float]]:
    """Links as a fleet recorded them; simulated, every edge carries the same in training and agreement."""
    if run.links:
        return [link for link in run.links if link[2]]
    edges = _edges(run)
    count = sum(event.bytes for event in (*run.of(EpochEnded), *run.of(Agreed))) / len(edges)
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


PLACES: Mapping[str, Callable[[int], Places]] = {
    "torus": grid,
    "star": lambda agents: [(0.0, 0.0), *circle(agents - 1)],
}


def amount(configurations: Sequence[Configuration]) -> Bars | None:
    """Bytes that were sent, beside full communication."""
    sent: dict[str, Callable[[Traffic], int]] = {
        "sent in training": lambda traffic: traffic.train_bytes,
        "sent between tasks": lambda traffic: traffic.boundary_bytes,
        "full communication": lambda traffic: traffic.full_bytes,
    }
    shown = [configuration for configuration in configurations if configuration.metrics.traffic.train_bytes]
    if not shown:
        return None
    runs = [run for configuration in shown for run in configuration.runs]
    unit, power = unit_for(max(count(run.metrics.traffic) for run in runs for count in sent.values()))

    some = any(configuration.partial for configuration in shown)
    so_far = " One that is marked partial has sent less because it has done less." if some else ""

    def bars(name: str, count: Callable[[Traffic], int]) -> Series:
        return _bars(name, shown, lambda run: count(run.traffic) / 1000**power)

    return Bars(
        "bytes",
        f"{unit} sent",
        "By all agents in a whole run: in training, and at the ends of tasks (agreement, growth, flood). Full"
        f" communication is what whole weights would have taken in the same rounds.{so_far}",
        unit,
        [configuration.name for configuration in shown],
        [bars(name, count) for name, count in sent.items()],
    )


def time(configurations: Sequence[Configuration]) -> Bars | None:
    shown = [configuration for configuration in configurations if configuration.score(ms_per_step).mean is not None]
    if not shown:
        return None
    return Bars(
        "time",
        "Time of a step",
        "Milliseconds that a training step of all agents took, each run on the machine where it was made: compare runs"
        " of the same machine only.",
        "ms a step",
        [configuration.name for configuration in shown],
        [_bars("a step", shown, ms_per_step)],
    )


def _bars(name: str, configurations: Sequence[Configuration], value: Callable[[Metrics], float | None]) -> Series:
    """A bar a configuration."""
    scores = [configuration.score(value) for configuration in configurations]
    spread = any(score.std is not None for score in scores)
    std = [score.std for score in scores] if spread else None
    return Series(name, range(len(scores)), [score.mean for score in scores], std)
