"""Figures over epochs: how far agents are apart, the loss, how much of the gradient is left."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from codecl.report.configurations import Configuration, compared
from codecl.report.figures import Curve, Lines, Number, Series, finite
from codecl.train.events import EpochEnded

FAR = 10  # times as high: then a logarithmic axis
AS_NEAR = 1.25  # times as far apart, on average: then constraints do not hinder
ON_EACH_OTHER = 0.02  # of a value: then two lines lie on each other
TINY = 1e-12
MAX_POINTS = 400  # of a line; a longer one is thinned
Value = Callable[[EpochEnded], Number]


def consensus(configurations: Sequence[Configuration]) -> Lines:
    lines = _lines(configurations, {"": consensus_error})
    said = "How far agents are from their mean after each epoch."
    return Lines(
        "consensus",
        "Consensus error",
        " ".join([said, *_hindered(configurations, lines)]),
        "epoch",
        "consensus error",
        lines,
        log=True,
        marks=_marks(configurations),
    )


def _hindered(configurations: Sequence[Configuration], lines: Sequence[Series]) -> list[str]:
    """Whether agents agree less with constraints than without, where both are here."""
    pairs = [_pairs(lines, *both) for both in compared(configurations, "codec", "dpsgd")]
    ratios = [math.exp(fmean(math.log(one / other) for one, other in points)) for points in pairs if points]
    if not ratios:
        return []
    least, most = min(ratios), max(ratios)
    times = f"{most:.2f}" if f"{least:.2f}" == f"{most:.2f}" else f"{least:.2f} to {most:.2f}"
    verdict = (
        "constraints do not hinder the gossip" if most <= AS_NEAR else "with constraints agents stay further apart"
    )
    return [
        f"With constraints (codec) it is {times} times what it is without (dpsgd): {verdict}. The paper's Figure 2."
    ]


def _pairs(lines: Sequence[Series], one: Configuration, other: Configuration) -> list[tuple[float, float]]:
    """What two configurations have at the same epochs."""
    curves = [
        {x: y for line in lines if line.name == name for x, y in zip(line.x, line.y, strict=True) if y is not None}
        for name in (one.name, other.name)
    ]
    return [(curves[0][x], curves[1][x]) for x in curves[0] if x in curves[1]]


def consensus_error(epoch: EpochEnded) -> Number:
    """None for a peer, which does not know it, and for an agent that is alone."""
    return finite(epoch.consensus_error) or None  # 0 has no place on a logarithmic axis


def loss(configurations: Sequence[Configuration]) -> Lines:
    lines = _lines(configurations, {"": mean_loss})
    return Lines(
        "loss",
        "Training loss",
        " ".join(["Mean over agents after each epoch.", *_missed(configurations, lines)]),
        "epoch",
        "training loss",
        lines,
        log=_far_apart(lines),
        marks=_marks(configurations),
    )


def _missed(configurations: Sequence[Configuration], lines: Sequence[Series]) -> list[str]:
    """Whether what codec does not send is missed, where whole weights were sent as well."""
    points = [pair for both in compared(configurations, "codec", "codec-full") for pair in _pairs(lines, *both)]
    if not points:
        return []
    apart = max(abs(one - other) / max(abs(one), abs(other), TINY) for one, other in points)
    if apart <= ON_EACH_OTHER:
        return [
            f"codec and codec-full lie on each other (they differ by {_at_most(100 * apart)}): what codec does not send"
            " is not missed. The paper's Figure 7."
        ]
    return [f"codec and codec-full, which sends whole weights, differ by {_at_most(100 * apart)}."]


def _at_most(percent: float) -> str:
    return "less than 0.1 %" if percent < 0.1 else f"at most {percent:.1f} %"


def _far_apart(lines: Sequence[Series]) -> bool:
    """Whether one line would press all others flat: a start that went wrong, a penalty."""
    tops = sorted(max(y for y in line.y if y is not None) for line in lines)
    return bool(tops) and min(y for line in lines for y in line.y if y is not None) > 0 and tops[-1] > FAR * tops[0]


def mean_loss(epoch: EpochEnded) -> Number:
    values = [loss for loss in epoch.loss if math.isfinite(loss)]
    return fmean(values) if values else None


def mu(configurations: Sequence[Configuration]) -> Lines:
    lines = _lines(configurations, {"mean": lambda epoch: epoch.mu_mean, "most": lambda epoch: epoch.mu_max})
    constrained = [line for line in lines if set(line.y) != {1}]
    left_out = " Methods without constraints are left out." if len(constrained) < len(lines) else ""
    return Lines(
        "mu",
        "How much of the gradient is left",
        "‖projected gradient‖ / ‖gradient‖, mean and most of an epoch: 1 where nothing is constrained, less where"
        f" earlier tasks hold directions.{left_out} The μ of the paper's analysis bounds it.",
        "epoch",
        "share of the gradient",
        constrained,
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
