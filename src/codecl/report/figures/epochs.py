"""Figures over epochs: how far agents are apart, the loss, how much of the gradient is left."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from codecl.report.configurations import Configuration
from codecl.report.figures import Curve, Lines, Number, Series, finite
from codecl.train.events import EpochEnded

FAR = 10  # times as high: then a logarithmic axis
MAX_POINTS = 400  # of a line; a longer one is thinned
Value = Callable[[EpochEnded], Number]


def consensus(configurations: Sequence[Configuration]) -> Lines:
    return Lines(
        "consensus",
        "Consensus error",
        "How far agents are from their mean after each epoch. With constraints (codec) it falls in each task as fast as"
        " without (dpsgd): constraints do not hinder the gossip. The paper's Figure 2.",
        "epoch",
        "consensus error",
        _lines(configurations, {"": consensus_error}),
        log=True,
        marks=_marks(configurations),
    )


def consensus_error(epoch: EpochEnded) -> Number:
    """None for a peer, which does not know it, and for an agent that is alone."""
    return finite(epoch.consensus_error) or None  # 0 has no place on a logarithmic axis


def loss(configurations: Sequence[Configuration]) -> Lines:
    lines = _lines(configurations, {"": mean_loss})
    return Lines(
        "loss",
        "Training loss",
        "Mean over agents after each epoch. codec and codec-full lie on each other: what codec does not send is not"
        " missed. The paper's Figure 7.",
        "epoch",
        "training loss",
        lines,
        log=_far_apart(lines),
        marks=_marks(configurations),
    )


def _far_apart(lines: Sequence[Series]) -> bool:
    """Whether one line would press all others flat: a start that went wrong, a penalty."""
    tops = sorted(max(y for y in line.y if y is not None) for line in lines)
    return bool(tops) and min(y for line in lines for y in line.y if y is not None) > 0 and tops[-1] > FAR * tops[0]


def mean_loss(epoch: EpochEnded) -> Number:
    values = [loss for loss in epoch.loss if math.isfinite(loss)]
    return fmean(values) if values else None


def mu(configurations: Sequence[Configuration]) -> Lines:
    lines = _lines(configurations, {"mean": lambda epoch: epoch.mu_mean, "most": lambda epoch: epoch.mu_max})
    return Lines(
        "mu",
        "How much of the gradient is left",
        "‖projected gradient‖ / ‖gradient‖, mean and most of an epoch: 1 where nothing is constrained, less where"
        " earlier tasks hold directions. Methods without constraints are left out. The μ of the paper's analysis"
        " bounds it.",
        "epoch",
        "share of the gradient",
        [line for line in lines if set(line.y) != {1}],
        marks=_marks(configurations),
    )


def _lines(configurations: Sequence[Configuration], values: Mapping[str, Value]) -> list[Series]:
    """A line a configuration and value, thinned; those without a point are left out."""
    out = []
    for configuration in configurations:
        length = epochs_a_task(configuration)
        for what, value in values.items():
            name = f"{configuration.name}, {what}" if what else configuration.name
            curves: list[Curve] = [  # after the first epoch x is 1; what a peer did twice counts as it was done last
                {event.task * length + event.epoch + 1: value(event) for event in run.of(EpochEnded)}
                for run in configuration.runs
            ]
            out.append(thinned(Series.over_seeds(name, curves), length))
    return [line for line in out if line.x]


def epochs_a_task(configuration: Configuration) -> int:
    counts = [event.epoch + 1 for run in configuration.runs for event in run.of(EpochEnded)]
    return max(counts, default=1)


def thinned(line: Series, length: int) -> Series:
    """At most about `MAX_POINTS` points: every k-th, and the last of each task."""
    if len(line.x) <= MAX_POINTS:
        return line
    step = math.ceil(len(line.x) / MAX_POINTS)
    kept = [place for place, x in enumerate(line.x) if place % step == 0 or x % length == 0 or x == line.x[-1]]
    std = [line.std[place] for place in kept] if line.std else None
    return Series(line.name, [line.x[place] for place in kept], [line.y[place] for place in kept], std)


def _marks(configurations: Sequence[Configuration]) -> list[tuple[float, str]]:
    """Where tasks begin, if they begin at the same epochs in all configurations."""
    starts: list[list[tuple[float, str]]] = []
    for configuration in configurations:
        length = epochs_a_task(configuration)
        begun = {event.task for run in configuration.runs for event in run.of(EpochEnded)}
        names = enumerate(configuration.tasks)
        starts.append([(task * length, name) for task, name in names if task in begun])
    longest = max(starts, key=len, default=[])
    same = all(own == longest[: len(own)] for own in starts)
    return longest if same and len(longest) > 1 else []
