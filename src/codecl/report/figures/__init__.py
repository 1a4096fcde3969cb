"""All figures of some runs, in the order in which a reader meets them."""

from collections.abc import Callable, Sequence

from codecl.report.configurations import Configuration, group
from codecl.report.figures.epochs import consensus, loss, mu
from codecl.report.figures.figure import Section
from codecl.report.figures.learned import forgetting, free, matrix, mean
from codecl.report.figures.sending import amount, compression, network, time
from codecl.runs.reader import Run

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
    configurations = group(runs)
    return [section for make in SECTIONS if (section := make(configurations))]
