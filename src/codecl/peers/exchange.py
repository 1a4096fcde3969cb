"""One agent a process, linked to its neighbours and to nobody else. Training goes on when a neighbour is slow, cut off
or dead; whoever comes back takes up the others' task, chart and step.

Shapes: D numbers of a message; the one agent here is a row of its own, [1, D].
"""

import time
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from codecl.exchange.base import Tensors, Traffic, digest
from codecl.exchange.topology import Topology
from codecl.peers import history as charts
from codecl.peers.frames import Kind
from codecl.peers.history import Chart
from codecl.peers.membership import Rules, Self
from codecl.peers.node import Mailbox

TICK_S = 0.1
ASK_S = 0.5
FRESH_S = 2.0  # signs come twice a second
TELL = 4  # steps between signs to those whom we hear and who do not hear us
JUMP = 4  # steps ahead of a neighbour's newest row at which a returning agent joins


class OutOfSync(Exception):
    """The others went on without us, or another chart stands: take theirs up."""


class Round(NamedTuple):
    """A gossip round on its way."""

    peers: "Peers"
    rows_1D: Tensor
    weights: dict[int, float]
    pairs: dict[int, bool]  # neighbours whose link goes both ways -> whether we told them that we hear them

    def wait(self) -> Tensor:
        """The weighted sum; the weight of whoever is not heard goes to ourselves."""
        return self.peers.mixed(self)


class Peers:
    """Law: with nobody missing, gives what `simulated` gives to this agent, and counts what leaves it."""

    on_device = False

    def __init__(self, topology: Topology, dtype: torch.dtype, device: torch.device, me: Self, rules: Rules) -> None:
        self.topology, self.device, self.me = topology, device, me.agent
        self.agents: Sequence[int] = (me.agent,)
        self.traffic = Traffic()
        self.box = Mailbox(topology, me, rules)
        self.missed: list[tuple[int, int]] = []  # step, neighbour: since the last look
        self.spread = 0.0  # mean squared distance to the neighbours heard in the last round
        self.announced, self._pools = (-1, -1), dict[tuple[int, int], int]()

    # rounds

    def start(self, rows_AD: Tensor, kind: Literal["train", "agree"]) -> Round:
        box, row_D = self.box, rows_AD[0].detach()
        with box.changed:
            self._pace()
            box.busy, box.size = False, len(row_D)
            weights, hearers = box.neighbours.weights, set(box.neighbours.hearers)
            live = {peer for peer, since in box.live.items() if since <= box.at}
            pairs = {peer: peer in live for peer in weights if peer in hearers}
            if self.announced != box.at:
                reached = box.say_row(row_D.cpu(), lambda peer: pairs.get(peer, True))
                self.traffic.count(kind, reached, row_D.nbytes)
            if box.step % TELL == 0:
                for peer in set(weights) - hearers:  # they hear nothing else of ours
                    box.send(peer, Kind.BEAT)
        return Round(self, rows_AD, weights, pairs)

    def _pace(self) -> None:
        """Wait for those who are many steps behind: one who hears nobody would run away from all. Whoever stands still
        is passed."""
        box, began = self.box, time.monotonic()
        while True:
            self._heed()
            behind = [agent for agent in box.neighbours.living if agent not in box.passed and self._far_behind(agent)]
            if not behind:
                return
            if box.rules.deadline and time.monotonic() - began > box.rules.silence:
                box.passed.update(behind)
            box.changed.wait(TICK_S)

    def _far_behind(self, agent: int) -> bool:
        task, step = self.box.members.places[agent]
        if agent == self.me or task > self.box.task:
            return False
        return self.box.step > self.box.ahead + (step if task == self.box.task else 0)

    def _excused(self, peer: int, waited: float) -> bool:
        """Whether a neighbour is alive, has not come to our step yet, and says that this is not its own fault: it waits
        for others, or grows, or tests."""
        box, where = self.box, self.box.where.get(peer)
        if where is None or peer in box.neighbours.dead or peer not in box.links.up or waited > box.rules.meet:
            return False
        fresh = time.monotonic() - where.heard < max(FRESH_S, box.rules.silence / 3)
        return fresh and where.busy and where[:2] < box.at

    def mixed(self, round: Round) -> Tensor:
        box, row_D = self.box, round.rows_1D[0].detach()
        with box.changed:
            self._wait_for(round)
            used = {
                peer: row.row_D.to(row_D)
                for peer in round.weights
                if (row := box.rows[peer].pop(box.at, None)) is not None
                and row.chart == box.chart
                and len(row.row_D) == len(row_D)
                and bool(row.row_D.isfinite().all())
                and (peer not in round.pairs or (row.hears and round.pairs[peer]))
            }
            self.missed += [(box.step, peer) for peer in round.weights if peer not in used]
            box.step += 1
            box.forget()
        own = 1 - sum(round.weights[peer] for peer in used)
        mixed_D = own * row_D
        for peer, other_D in used.items():
            mixed_D = mixed_D.add(other_D, alpha=round.weights[peer])
        self.spread = sum(float((row_D - other_D).square().sum()) for other_D in used.values()) / max(1, len(used))
        return mixed_D[None]

    def _wait_for(self, round: Round) -> None:
        """Until all whom we wait for are heard, or late. Who is late is not waited for again before it is heard."""
        box, rules, began = self.box, self.box.rules, time.monotonic()
        while True:
            self._heed()
            still = [peer for peer in round.weights if peer in box.neighbours.weights]  # the graph may have healed
            awaited = [peer for peer in still if peer in box.live and box.live[peer] <= box.at]
            missing = [peer for peer in awaited if box.at not in box.rows[peer]]
            if not missing:
                return
            waited = time.monotonic() - began
            if rules.deadline and waited > rules.deadline / 4 and not box.busy:
                box.busy = True  # those who wait for us should know that we wait for others
                box.beat()
            for peer in missing if rules.deadline and waited > rules.deadline else ():
                if not self._excused(peer, waited):
                    del box.live[peer]
                    box.note("lost", peer, f"no row within {waited:.3g} s")
            left = rules.deadline - waited if rules.deadline and rules.deadline > waited else TICK_S
            box.changed.wait(min(left, TICK_S))

    def _heed(self) -> None:
        """Whether the others went on without us, or another chart than ours stands."""
        box = self.box
        if box.late and box.late > box.at:
            raise OutOfSync
        for chart in box.arrived:
            if box.archive.rivals(chart):
                raise OutOfSync

    # a task's end

    def reduce(self, root: int, parts: Sequence[Tensors]) -> dict[str, Tensor] | None:
        """Sums of those who are reached. Whoever does not answer is left out, which leaves a sum of fewer agents."""
        box, sums = self.box, dict(parts[0])
        with box.changed:
            number = self._pools[box.task, root] = self._pools.get((box.task, root), -1) + 1
            for parent, child in reversed(box.neighbours.tree_to(root)):
                if parent == self.me:
                    arrived = self._sum_of(child, (box.task, root, number, child))
                    if arrived is None or _shapes(arrived) != _shapes(sums):
                        self.missed.append((box.step, child))
                    else:
                        sums = {name: value + arrived[name].to(value) for name, value in sums.items()}
                elif child == self.me and box.send(parent, Kind.SUM, sums, root=root, number=number):
                    for tensor in sums.values():
                        self.traffic.count("reduce", 1, tensor.nbytes)
        return sums if root == self.me else None

    def _sum_of(self, child: int, key: tuple[int, int, int, int]) -> Tensors | None:
        box, began = self.box, time.monotonic()
        while key not in box.sums:
            self._heed()
            waited = time.monotonic() - began
            if child in box.neighbours.dead or (box.rules.deadline and waited > box.rules.silence):
                box.note("missed", child, f"no sum within {waited:.3g} s")
                return None
            box.changed.wait(TICK_S)
        return box.sums.pop(key)

    def flood(self, root: int, payload: Tensors | None) -> tuple[dict[str, Tensor], str] | None:
        """What `root` grew, signed; None where it is gone. It arrives along its tree, or from any neighbour that is
        asked."""
        box = self.box
        with box.changed:
            if payload is not None:
                tensors = {name: value.detach().cpu().contiguous() for name, value in payload.items()}
                before, living = box.chart, box.neighbours.living
                chart = charts.make(box.me.fleet, box.task, self.me, living, before, tensors, box.me.sign)
            else:
                found = self._await(root)
                if found is None:
                    return None
                chart = found
            self.take(chart)
            for parent, child in box.neighbours.tree(chart.facts["grower"]):
                if parent == self.me and box.hand(child, chart):
                    self.traffic.count("flood", 1, sum(value.nbytes for value in chart.tensors.values()))
        arrived = {name: value.to(self.device) for name, value in chart.tensors.items()}
        return arrived, digest(chart.tensors)

    def _await(self, root: int) -> Chart | None:
        box, asked = self.box, time.monotonic()
        while True:
            fitting = [chart for chart in box.arrived if box.archive.follows(chart) and chart.whole]
            if fitting:
                best = fitting[0]
                for other in fitting[1:]:
                    best = other if charts.preferred(best, other) else best
                return best
            if any(box.archive.rivals(chart) or box.archive.follows(chart) for chart in box.arrived):
                raise OutOfSync  # to take another past, or one of which only a part is still to be had
            if root in box.neighbours.dead:
                box.note("gone", root, "it should have grown this task's chart")
                return None
            if time.monotonic() - asked > ASK_S:
                asked = time.monotonic()
                box.want()
            box.changed.wait(TICK_S)

    def take(self, chart: Chart) -> None:
        """The next task, in this chart."""
        box = self.box
        replaced = box.archive.take(chart)
        if replaced:
            tasks = list(range(chart.facts["task"], chart.facts["task"] + replaced))
            box.note("discarded", self.me, "the chart of another part of the fleet stands", tasks=tasks)
        box.task, box.step, box.busy = len(box.archive.charts), 0, True
        box.size, box.late = 0, None
        box.forget()
        box.sums = {key: value for key, value in box.sums.items() if key[0] >= box.task}
        box.arrived = [one for one in box.arrived if one.facts["task"] >= box.task or box.archive.rivals(one)]
        box.beat()

    # watching

    def consensus_error(self, rows_AD: Tensor) -> float:
        """No peer knows the average: its mean squared distance to the neighbours that it heard last."""
        return self.spread

    def gather(self, rows_A: Tensor) -> Tensor:
        return rows_A


def _shapes(tensors: Tensors) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in tensors.items()}
