"""Table 1 of the paper, as it is printed there, and our rows beside it."""

import csv
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import NamedTuple

from codecl.errors import ConfigError
from codecl.report.configurations import Configuration, Score
from codecl.runs.config import preset
from codecl.runs.schema import Metrics

ORDER = ("stl", "d-ewc", "codec-full", "codec")  # of the methods in the paper; others follow
OURS: Mapping[str, Callable[[Metrics], float | None]] = {
    "acc": lambda run: run.acc,
    "bwt": lambda run: run.bwt,
    "cc": lambda run: run.traffic.cc_reference,  # counted as the authors do
}
Key = tuple[str, str, int, str]  # benchmark, topology, agents, method


class Beside(NamedTuple):
    """A score of ours, the paper's, and ours − the paper's where both tell of the same tasks."""

    ours: Score
    paper: Score
    difference: float | None


def beside(configuration: Configuration) -> dict[str, Beside]:
    """acc, bwt and cc of a configuration beside the paper's."""
    printed = _table().get(_key(configuration.metrics), {})
    out = {}
    for name, value in OURS.items():
        ours, paper = configuration.score(value), printed.get(name, Score())
        difference = None
        if configuration.metrics.status != "partial" and ours.mean is not None and paper.mean is not None:
            difference = ours.mean - paper.mean
        out[name] = Beside(ours, paper, difference)
    return out


def in_order(configurations: Sequence[Configuration]) -> list[Configuration]:
    """As the paper has them: benchmark, agents, topology, method."""

    def place(configuration: Configuration) -> tuple[str, int, str, int, str]:
        run = configuration.metrics
        method = ORDER.index(run.method) if run.method in ORDER else len(ORDER)
        return run.benchmark, run.agents, run.topology, method, run.method

    return sorted(configurations, key=place)


def has(name: str) -> bool:
    """Whether a preset is one of the paper's."""
    try:
        return any(key is not None and key[0] == preset(name).paper for key in _table())
    except ConfigError:
        return False


def _key(run: Metrics) -> Key | None:
    """Where the paper's table has a run; None for a preset that is not here."""
    try:
        benchmark = preset(run.benchmark).paper
    except ConfigError:
        return None
    return benchmark, run.topology, run.agents, run.method


@cache
def _table() -> dict[Key | None, dict[str, Score]]:
    text = (resources.files("codecl") / "report" / "table1.csv").read_text(encoding="utf-8")
    return {
        (line["benchmark"], line["topology"], int(line["agents"]), line["method"]): {
            name: Score(_number(line[name]), _number(line.get(f"{name}_std", ""))) for name in OURS
        }
        for line in csv.DictReader(text.splitlines())
    }


def _number(text: str) -> float | None:
    return float(text) if text else None
