"""All figures of some runs, in the order in which a reader meets them."""

from collections.abc import Callable, Sequence

from codecl.report.configurations import Configuration, configurations
from codecl.report.epochs import consensus, loss, mu
from codecl.report.figure import Section
from codecl.report.gather import Run
from codecl.report.learned import forgetting, free, matrix, mean
from codecl.report.sending import amount, compression, network, time

SECTIONS: Sequence[Callable[[Sequence[Configuration]], Section | None]] = (
    forgetting,
    mean,
    matrix,
    compression,
    consensus,
    loss,
    free,
    network,
    amount,
    time,
    mu,
)


def sections(runs: Sequence[Run]) -> list[Section]:
    """Those that have something to show."""
    found = configurations(runs)
    return [section for make in SECTIONS if (section := make(found))]
