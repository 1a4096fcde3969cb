"""What noise on clipped gradients guarantees: (ε, δ) of one image of an agent, by Google's dp-accounting.

Two data sets of an agent are neighbours where one image is replaced by another: that changes the sum of a batch's
clipped gradients by 2 · clip at most, so the accountant is given noise / 2.
"""

from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from codecl.errors import ConfigError


class Spending(NamedTuple):
    """How an agent's images of a task were used."""

    noise: float  # in units of the clipping norm
    sampling: str  # subsets, or shuffle
    images: int  # of the agent: the fewest, where there are several
    batch: int
    steps: int  # all that were taken
    steps_per_epoch: int


def needed() -> Any:
    """The library, or how to get it."""
    try:
        return import_module("dp_accounting")
    except ImportError as error:
        raise ConfigError("privacy.noise: ε needs dp-accounting: pip install 'codecl[privacy]'") from error


@cache
def epsilon(spent: Spending, delta: float) -> float:
    """ε for this δ.

    subsets: every step draws its images anew, which the accountant counts in favour of privacy (sampling without
    replacement, Wang et al. 2019). shuffle: nothing is counted in favour; an image is in one batch of each epoch."""
    dp, rdp = needed(), import_module("dp_accounting.rdp")
    event = dp.GaussianDpEvent(spent.noise / 2)
    times = -(-spent.steps // spent.steps_per_epoch)
    if spent.sampling == "subsets":
        event = dp.SampledWithoutReplacementDpEvent(spent.images, min(spent.batch, spent.images), event)
        times = spent.steps
    accountant = rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp.SelfComposedDpEvent(event, times))
    return float(accountant.get_epsilon(delta))
