"""Two groups of values -> their difference, and whether it is more than the spread over seeds."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from codecl.report.rows import Score

Verdict = Literal["equal", "more", "less", "no difference seen", "one seed: cannot say", "not known"]
SURE = 0.95

BySeed = Mapping[int, float]


class Difference(NamedTuple):
    """b − a, with the interval that holds the true one in 95 of 100 cases."""

    a: Score
    b: Score
    mean: float | None
    low: float | None
    high: float | None
    way: Literal["paired", "Welch"] | None  # how the interval was made
    verdict: Verdict


def difference(a: BySeed, b: BySeed) -> Difference:
    """Of the same seeds: of each seed, then their mean (paired). Of other seeds: of the means (Welch)."""
    scores = Score.of(list(a.values())), Score.of(list(b.values()))
    if not a or not b:
        return Difference(*scores, None, None, None, None, "not known")
    mean = statistics.fmean(b.values()) - statistics.fmean(a.values())
    if ({*a.values()} == {*b.values()} and len({*a.values()}) == 1) or a == b:
        return Difference(*scores, 0.0, 0.0, 0.0, None, "equal")
    if len(a) < 2 or len(b) < 2:
        return Difference(*scores, mean, None, None, None, "one seed: cannot say")
    if a.keys() == b.keys():
        low, high = paired([b[seed] - a[seed] for seed in a])
        return Difference(*scores, mean, low, high, "paired", _verdict(low, high))
    low, high = welch(list(a.values()), list(b.values()))
    return Difference(*scores, mean, low, high, "Welch", _verdict(low, high))


def paired(differences: Sequence[float]) -> tuple[float, float]:
    """d̄ ± t_{n-1} s_d / √n"""
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return _interval(statistics.fmean(differences), error, len(differences) - 1)


def welch(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """b̄ − ā ± t_ν √(s_a²/n_a + s_b²/n_b), ν = (s_a²/n_a + s_b²/n_b)² / Σ (s²/n)² / (n − 1)"""
    mean = statistics.fmean(b) - statistics.fmean(a)
    parts = [statistics.variance(values) / len(values) for values in (a, b)]
    if not sum(parts):
        return mean, mean
    shares = [part / sum(parts) for part in parts]  # small variances squared would vanish
    freedom = 1 / sum(share**2 / (len(values) - 1) for share, values in zip(shares, (a, b), strict=True))
    return _interval(mean, math.sqrt(sum(parts)), freedom)


def _interval(mean: float, error: float, freedom: float) -> tuple[float, float]:
    from scipy.special import stdtrit

    reach = float(stdtrit(freedom, (1 + SURE) / 2)) * error if error else 0.0
    return mean - reach, mean + reach


def _verdict(low: float, high: float) -> Verdict:
    return "more" if low > 0 else "less" if high < 0 else "no difference seen"
