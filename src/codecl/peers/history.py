"""What each task left, signed by the agent that grew it: a relay can hand it on but not alter it, and whoever was away
gets it from any neighbour.

A manifest names every tensor of a flood with its digest, so that finished heads can be handed on without the rest.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from codecl.exchange.base import digest
from codecl.peers.frames import BadFrame

Sign = Callable[[bytes], bytes]
Check = Callable[[int, bytes, bytes], bool]  # agent, what it should have signed, signature


class Chart(NamedTuple):
    """A task's flood: the manifest, its grower's signature, and tensors (all of them, or the finished head's)."""

    manifest: bytes
    signature: bytes
    tensors: Mapping[str, Tensor]

    @property
    def id(self) -> bytes:
        return hashlib.sha256(self.manifest).digest()

    @property
    def facts(self) -> dict[str, Any]:
        out: dict[str, Any] = json.loads(self.manifest)
        return out

    @property
    def whole(self) -> bool:
        return len(self.tensors) == len(self.facts["tensors"])


def make(
    fleet: str, task: int, grower: int, part: Sequence[int], before: bytes, tensors: Mapping[str, Tensor], sign: Sign
) -> Chart:
    """`part`: the agents that live, as the grower sees it; `before`: the chart that this one follows."""
    facts = {
        "fleet": fleet,
        "task": task,
        "grower": grower,
        "part": sorted(part),
        "before": before.hex(),
        "tensors": {name: digest({name: value}) for name, value in tensors.items()},
    }
    manifest = json.dumps(facts, sort_keys=True).encode()
    return Chart(manifest, sign(manifest), dict(tensors))


def checked(chart: Chart, fleet: str, agents: int, check: Check) -> Chart:
    """The chart, if it is of this fleet, signed by its grower, and its tensors are those that the manifest names."""
    try:
        facts = chart.facts
        task, grower, part, named = facts["task"], facts["grower"], facts["part"], facts["tensors"]
        fits = facts["fleet"] == fleet and _number(task, 1 << 32) and _number(grower, agents)
        fits = fits and isinstance(named, dict) and isinstance(facts["before"], str)
        fits = fits and bool(part) and all(_number(agent, agents) for agent in part) and len({*part}) == len(part)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadFrame(f"a chart whose manifest cannot be read ({error})") from error
    if not fits:
        raise BadFrame("a chart whose manifest does not fit this fleet")
    if not check(grower, chart.manifest, chart.signature):
        raise BadFrame(f"a chart of task {task + 1} without the signature of agent {grower}, who should have grown it")
    for name, value in chart.tensors.items():
        if named.get(name) != digest({name: value}):
            raise BadFrame(f"a chart of task {task + 1} whose tensor {name[:80]!r} is not what agent {grower} signed")
    return chart


def _number(value: Any, below: int) -> bool:
    return isinstance(value, int) and 0 <= value < below


def preferred(ours: Chart, theirs: Chart) -> bool:
    """Whether theirs stands, of two charts of one task: the larger part's; of equal parts the one with the lowest
    agent. Everyone decides alike."""

    def place(chart: Chart) -> tuple[Any, ...]:
        part = chart.facts["part"]
        return -len(part), min(part), chart.facts["grower"], chart.id

    return place(theirs) < place(ours)


class Archive:
    """The charts of all tasks so far, each following the one before. All of the newest is kept, of others the `kept`
    tensors (finished heads)."""

    def __init__(self, start: bytes, kept: Collection[str]) -> None:
        self.start, self.kept, self.charts = start, frozenset(kept), list[Chart]()

    @property
    def ids(self) -> list[bytes]:
        """Law: one more than tasks that are finished; agents with equal ids hold equal states."""
        return [self.start, *(chart.id for chart in self.charts)]

    def lacks(self, ids: Sequence[bytes]) -> list[Chart]:
        """The charts that one with these ids does not have."""
        return [chart for chart, before in zip(self.charts, self._after(ids), strict=True) if not before]

    def _after(self, ids: Sequence[bytes]) -> list[bool]:
        same, out = True, []
        for number, chart in enumerate(self.charts, 1):
            same = same and number < len(ids) and ids[number] == chart.id
            out.append(same)
        return out

    def follows(self, chart: Chart) -> bool:
        """Whether it is the next task's."""
        facts = chart.facts
        return bool(facts["task"] == len(self.charts) and facts["before"] == self.ids[-1].hex())

    def rivals(self, chart: Chart) -> bool:
        """Whether it stands in the place of one of ours."""
        facts, task = chart.facts, chart.facts["task"]
        if task >= len(self.charts) or facts["before"] != self.ids[task].hex() or self.charts[task].id == chart.id:
            return False
        return preferred(self.charts[task], chart)

    def completes(self, chart: Chart) -> bool:
        """Whether we hold a part of it, as our newest."""
        return bool(self.charts) and self.charts[-1].id == chart.id and chart.whole and not self.whole

    @property
    def whole(self) -> bool:
        """Whether the newest is all there: a state can be made from it."""
        return not self.charts or self.charts[-1].whole

    @property
    def asked(self) -> list[bytes]:
        """The ids of what need not be sent to us."""
        return self.ids if self.whole else self.ids[:-1]

    def take(self, chart: Chart) -> int | None:
        """Add a chart. Gives the number of charts that it replaces (0: it is new), or None where it is not taken: it is
        known, less preferred, or does not follow one that we have."""
        if self.completes(chart):
            self.charts[-1] = chart
            return 0
        if not self.follows(chart) and not self.rivals(chart):
            return None
        task = chart.facts["task"]
        replaced = len(self.charts) - task
        self.charts = [self._slim(old) for old in self.charts[:task]] + [chart]
        return replaced

    def _slim(self, chart: Chart) -> Chart:
        return chart._replace(tensors={name: value for name, value in chart.tensors.items() if name in self.kept})
