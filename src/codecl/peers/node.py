"""What one peer knows of the others, kept up to date by the threads that read its links: rows that wait for their step,
charts, sums, where each neighbour is, and who lives.

Everything here is guarded by `changed`, on which the training thread waits.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from codecl.exchange.base import Tensors
from codecl.exchange.topology import Topology
from codecl.peers import frames
from codecl.peers import history as charts
from codecl.peers.frames import BadFrame, Frame, Kind
from codecl.peers.history import Archive, Chart
from codecl.peers.links import JOIN_S, Links
from codecl.peers.log import RateLimitedLog
from codecl.peers.membership import Members, Rules, Self
from codecl.peers.neighbours import Neighbours

log = logging.getLogger("codecl.peers")
MAX_CHARTS, MAX_SUMS, MAX_NOTES = 16, 32, 4096  # that wait to be looked at; sums by neighbour
LATE_S = 0.05  # between two answers to one neighbour that it is late
WANT_S = 0.5


class Where(NamedTuple):
    """Where a neighbour said it was."""

    task: int
    step: int
    chart: bytes
    busy: bool
    heard: float  # when


class Row(NamedTuple):
    """A neighbour's coordinates of a step."""

    row_D: Tensor
    hears: bool  # whether it counts us in
    chart: bytes


class Mailbox:
    """Law: what does not fit is refused before it is kept; what is kept is bounded."""

    def __init__(self, topology: Topology, me: Self, rules: Rules) -> None:
        self.me, self.rules, self.neighbours = me, rules, Neighbours(topology, me.agent)
        agents = topology.agents
        self.changed = threading.Condition(threading.RLock())
        self.task, self.step, self.busy = 0, 0, True
        self.rows: dict[int, dict[tuple[int, int], Row]] = {agent: {} for agent in range(agents)}
        self.where: dict[int, Where] = {}
        self.arrived: list[Chart] = []
        self.sums: dict[tuple[int, int, int, int], Tensors] = {}  # task, root, number, child
        self.late: tuple[int, int] | None = None  # where a hearer was that we came too late for
        self.live: dict[int, tuple[int, int]] = {}  # neighbours that are waited for, each from this step on
        self.passed: set[int] = set()  # who stands still: we no longer wait for them to keep up
        self.met = False  # whether the start is over
        self.degraded = False  # whether anybody, as far as we know, missed anything
        self.members = Members(agents, me.agent, rules.silence if rules.deadline else float("inf"))
        self.notes: deque[dict[str, Any]] = deque(maxlen=MAX_NOTES)  # for the record: changes in membership
        self.bytes: dict[int, dict[str, int]] = {}  # by neighbour: sent, received, and their headers
        self.ahead = 2 * agents + 8  # steps between the first and the last: as many as a ring needs with nothing lost
        self._say = RateLimitedLog(log)
        self._closing = threading.Event()
        self._told: dict[tuple[int, Kind], float] = {}
        self._last: bytes | None = None
        self.size, self.most = 0, 0

    def open(self, archive: Archive, tasks: int, most: int, connect: Callable[["Mailbox"], Links]) -> None:
        """`most`: bytes of tensors that any message may have."""
        self.archive, self.tasks, self.most = archive, tasks, most
        self.task = len(archive.charts)
        self.links = connect(self)
        self.links.want(self.neighbours.all)
        self._beats = threading.Thread(target=self._beating, name="beats", daemon=True)
        self._beats.start()

    def close(self) -> None:
        self._closing.set()
        self.links.close()
        self._beats.join(JOIN_S)

    @property
    def at(self) -> tuple[int, int]:
        return self.task, self.step

    @property
    def over(self) -> bool:
        """Whether all tasks are done."""
        return self.task >= self.tasks

    @property
    def chart(self) -> bytes:
        return self.archive.ids[-1]

    def forget(self) -> None:
        """Rows of steps that are over."""
        for kept in self.rows.values():
            for at in [at for at in kept if at < self.at]:
                del kept[at]

    def note(self, state: str, agent: int, why: str = "", **more: Any) -> None:
        task, step = self.at
        about = {"kind": "member", "task": task, "step": step, "agent": agent, "state": state}
        self.notes.append(about | ({"why": why} if why else {}) | more)
        self._say(logging.INFO, (agent, state), "agent %d: %s%s", agent, state, f" ({why})" if why else "")

    # out

    def send(self, peer: int, kind: Kind, tensors: Tensors | None = None, may_drop: bool = False, **more: Any) -> bool:
        size = sum(value.nbytes for value in (tensors or {}).values())
        return self.put(peer, self.encoded(kind, tensors, **more), size, may_drop)

    def encoded(self, kind: Kind, tensors: Tensors | None = None, **more: Any) -> bytes:
        about = {"fleet": self.me.fleet, "sender": self.me.agent, "task": self.task, "step": self.step}
        self.members.beat(self.at)
        about |= {"chart": self.chart, "busy": self.busy, "degraded": self.degraded, **self.members.known()}
        return frames.encode(kind, tensors, **(about | more))

    def put(self, peer: int, data: bytes, size: int, may_drop: bool = False) -> bool:
        if not self.links.send(peer, data, may_drop):
            return False
        count = self._count(peer)
        count["sent"] += size
        count["headers_sent"] += len(data) - size
        return True

    def _count(self, peer: int) -> dict[str, int]:
        return self.bytes.setdefault(peer, dict.fromkeys(("sent", "received", "headers_sent", "headers_received"), 0))

    def say_row(self, row_D: Tensor, hears: Callable[[int], bool]) -> int:
        """Our row of this step, to all who hear it: how many that are."""
        made, reached = dict[bool, bytes](), 0
        for peer in self.neighbours.hearers:
            flag = hears(peer)
            if flag not in made:
                made[flag] = self.encoded(Kind.ROW, {"row": row_D}, hears=flag)
            reached += self.put(peer, made[flag], row_D.nbytes, may_drop=True)
        self._last = next(iter(made.values()), None)
        if self._last is None:
            self._last = self.encoded(Kind.ROW, {"row": row_D}, hears=True)
        return reached

    def want(self, rows: bool = False) -> None:
        """Ask our neighbours for charts that we lack, and for their rows."""
        for peer in self.links.up:
            self.send(peer, Kind.WANT, history=self.archive.asked, number=int(rows))

    def hand(self, peer: int, chart: Chart) -> bool:
        return self.send(peer, Kind.CHART, chart.tensors, manifest=chart.manifest, signature=chart.signature)

    def beat(self) -> None:
        for peer in self.links.up:
            self.send(peer, Kind.BEAT)

    def _beating(self) -> None:
        every = min(0.5, self.rules.silence / 6)
        while True:
            with self.changed:
                self.heal()
                self.beat()
                self.changed.notify_all()
            if self._closing.wait(every):
                return

    def heal(self) -> None:
        """The links and weights of the living, where somebody died or came back."""
        dead = self.members.dead
        if dead == self.neighbours.dead or self.over or not self.met:  # who has finished may leave
            return
        changes = self.neighbours.heal(dead)
        for state, agents, why in (
            ("dead", changes.died, f"nothing heard of it for {self.rules.silence:g} s"),
            ("alive", changes.returned, ""),
            ("linked", changes.linked, "heals the graph"),
            ("unlinked", changes.unlinked, "the graph is whole again"),
        ):
            for agent in agents:
                self.note(state, agent, why)
        self.live = {peer: since for peer, since in self.live.items() if peer not in dead}
        self.links.want(self.neighbours.all)

    # in

    def link_changed(self, peer: int, up: bool, why: str) -> None:
        with self.changed:
            self.note("connected" if up else "disconnected", peer, why)
            if up:
                self.send(peer, Kind.BEAT)
            self.changed.notify_all()

    def admits(self, peer: int) -> bool:
        with self.changed:
            return peer in self.neighbours.all

    def heard(self, peer: int, data: bytes) -> None:
        """A frame of this neighbour, in the thread that reads its link."""
        frame = frames.decode(data, self.most)
        header = frame.header
        if header.fleet != self.me.fleet or header.sender != peer:
            raise BadFrame(f"it says it is of agent {header.sender} of fleet {header.fleet[:20]!r}")
        if header.task > self.tasks or len(header.chart) != len(self.chart):
            raise BadFrame(f"it says it is in task {header.task + 1} of {self.tasks}, in a chart that is none")
        chart = Chart(header.manifest, header.signature, frame.tensors)
        if frame.kind is Kind.CHART:
            charts.checked(chart, self.me.fleet, len(self.rows), self.me.check)
        with self.changed:
            self.degraded |= header.degraded
            self.passed.difference_update(self.members.merge(header.beats, header.places))
            self.where[peer] = Where(header.task, header.step, header.chart, header.busy, time.monotonic())
            count = self._count(peer)
            count["received"] += frame.size
            count["headers_received"] += len(data) - frame.size
            if frame.kind is Kind.ROW:
                self._row(peer, frame)
            elif frame.kind is Kind.CHART:
                self._chart(chart)
            elif frame.kind is Kind.SUM:
                self._sum(peer, frame)
            elif frame.kind is Kind.LATE:
                self.late = max(self.late or (0, 0), frame.at)
            elif frame.kind is Kind.WANT:
                self._wanted(peer, frame)
            self._compare(peer)
            self.changed.notify_all()

    def _row(self, peer: int, frame: Frame) -> None:
        row_D = frame.tensors.get("row")
        if row_D is None or row_D.ndim != 1 or len(frame.tensors) != 1:
            raise BadFrame("a row that is none")
        ours = frame.at[0] == self.task and frame.header.chart == self.chart
        if ours and self.size and len(row_D) != self.size:
            raise BadFrame(f"a row of {len(row_D)} numbers; the chart has {self.size}")
        if frame.at[0] == self.task and not ours:
            return  # of another chart: never mixed
        if frame.at < self.at and (not ours or self.step - frame.at[1] > self.ahead):
            if self._due(peer, Kind.LATE, LATE_S):
                said = "agent %d: its row of task %d, step %d is late; dropped"
                self._say(logging.INFO, (peer, "late"), said, peer, *frame.at)
                self.send(peer, Kind.LATE)
            return
        if self.met and peer not in self.live and peer not in self.neighbours.dead and peer in self.neighbours.weights:
            self.live[peer] = max(frame.at, (self.task, self.step + 1))  # a little behind: it is waited for again
            self.note("back", peer)
        if frame.at >= self.at:
            kept = self.rows[peer]
            kept.setdefault(frame.at, Row(row_D, frame.header.hears, frame.header.chart))
            if len(kept) > 2 * self.ahead:
                del kept[min(kept)]

    def _chart(self, chart: Chart) -> None:
        """Kept once, whole rather than in part."""
        known = {one.id: one for one in self.arrived if one.whole or not chart.whole}
        if chart.id not in known and (chart.id not in self.archive.ids or self.archive.completes(chart)):
            others = [one for one in self.arrived if one.id != chart.id]
            self.arrived = [*others[1 - MAX_CHARTS :], chart]

    def _sum(self, peer: int, frame: Frame) -> None:
        if frame.header.task < self.task:
            return
        self.sums[frame.header.task, frame.header.root, frame.header.number, peer] = frame.tensors
        kept = [key for key in self.sums if key[3] == peer]
        if len(kept) > MAX_SUMS:  # of its own, never of others
            del self.sums[kept[0]]

    def _wanted(self, peer: int, frame: Frame) -> None:
        if list(frame.header.history)[:1] != [self.archive.start]:
            raise BadFrame("it started from another config, seed, code or initial weights")
        if self.links.waiting(peer) > 1:
            return  # it has not taken what it wanted before; it will ask again
        for chart in self.archive.lacks(list(frame.header.history)):
            self.hand(peer, chart)
        if frame.header.number and self._last is not None and self.archive.ids == list(frame.header.history):
            self.put(peer, self._last, 0)

    def _compare(self, peer: int) -> None:
        """A neighbour with another past: one of the two charts stands, so look at its own."""
        where, ids = self.where[peer], self.archive.ids
        if where.task < len(ids) and where.chart != ids[where.task] and self._due(peer, Kind.WANT, WANT_S):
            self.send(peer, Kind.WANT, history=ids)

    def _due(self, peer: int, kind: Kind, every: float) -> bool:
        now = time.monotonic()
        if now - self._told.get((peer, kind), -every) < every:
            return False
        self._told[peer, kind] = now
        return True
