"""One agent a process, linked to its neighbours and to nobody else. Training goes on when a neighbour is slow, cut off
or dead; whoever comes back takes up the others' task, chart and step.

Shapes: D numbers of a message; the one agent here is a row of its own, [1, D].
"""

import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import networkx as nx
import torch
from torch import Tensor

from codecl.exchange import charts
from codecl.exchange.base import Tensors, Traffic, digest, nbytes
from codecl.exchange.charts import Chart
from codecl.exchange.frames import Kind
from codecl.exchange.mailbox import Mailbox, Rules, Self, newest
from codecl.topology import Topology

TICK_S = 0.1
ASK_S = 0.5
TELL = 4  # steps between signs to those whom we hear and who do not hear us
JUMP = 4  # steps ahead of a neighbour's newest row at which a returning agent joins


class Behind(Exception):
    """The others went on without us, or another chart stands: take theirs up."""


class Joined(NamedTuple):
    """Where a returning agent takes part again: a step of the task, or its end, and coordinates to start from."""

    step: int
    row_D: Tensor
    agreed: bool = False  # the others are at the task's end


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
        self._announced, self._pools = (-1, -1), dict[tuple[int, int], int]()

    # rounds

    def start(self, rows_AD: Tensor, kind: Literal["train", "agree"]) -> Round:
        box, row_D = self.box, rows_AD[0].detach()
        with box.changed:
            self._pace()
            box.busy, box.size = False, len(row_D)
            weights, hearers = box.weights, set(box.hearers)
            live = {peer for peer, since in box.live.items() if since <= box.at}
            pairs = {peer: peer in live for peer in weights if peer in hearers}
            if self._announced != box.at:
                reached = box.say_row(row_D.cpu(), lambda peer: pairs.get(peer, True))
                self.traffic.count(kind, reached, nbytes(row_D))
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
            behind = [agent for agent in box.living if agent not in box.passed and self._far_behind(agent)]
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
        where = self.box.where.get(peer)
        if where is None or peer in self.box.dead or waited > self.box.rules.meet:
            return False
        return where.busy and where[:2] < self.box.at

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
            awaited = [peer for peer in round.weights if peer in box.live and box.live[peer] <= box.at]
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
            raise Behind
        for chart in box.arrived:
            if chart.facts["task"] < box.task and self._would_take(chart):
                raise Behind

    def _would_take(self, chart: Chart) -> bool:
        facts, ids, ours = chart.facts, self.box.archive.ids, self.box.archive.charts
        task = facts["task"]
        return (
            task < len(ours)
            and facts["before"] == ids[task].hex()
            and ours[task].id != chart.id
            and charts.preferred(ours[task], chart)
        )

    # a task's end

    def pool(self, root: int, parts: Sequence[Tensors]) -> dict[str, Tensor] | None:
        """Sums of those who are reached. Whoever does not answer is left out, which leaves a sum of fewer agents."""
        box, sums = self.box, dict(parts[0])
        with box.changed:
            number = self._pools[box.task, root] = self._pools.get((box.task, root), -1) + 1
            tree = list(nx.bfs_edges(box.graph.reverse(copy=False), root, sort_neighbors=sorted))
            for parent, child in reversed(tree):
                if parent == self.me:
                    arrived = self._sum_of(child, (box.task, root, number, child))
                    if arrived is None or {k: v.shape for k, v in arrived.items()} != {
                        k: v.shape for k, v in sums.items()
                    }:
                        self.missed.append((box.step, child))
                        continue
                    sums = {name: value + arrived[name].to(value) for name, value in sums.items()}
                elif child == self.me and box.send(parent, Kind.SUM, sums, root=root, number=number):
                    for tensor in sums.values():
                        self.traffic.count("pool", 1, nbytes(tensor))
        return sums if root == self.me else None

    def _sum_of(self, child: int, key: tuple[int, int, int, int]) -> Tensors | None:
        box, began = self.box, time.monotonic()
        while key not in box.sums:
            self._heed()
            waited = time.monotonic() - began
            if child in box.dead or (box.rules.deadline and waited > box.rules.silence):
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
                before, living = box.chart, box.living
                chart = charts.make(box.me.fleet, box.task, self.me, living, before, tensors, box.me.sign)
            else:
                found = self._await(root)
                if found is None:
                    return None
                chart = found
            self._take(chart)
            for child in box.children(chart.facts["grower"]):
                if box.hand(child, chart):
                    self.traffic.count("flood", 1, sum(map(nbytes, chart.tensors.values())))
        arrived = {name: value.to(self.device) for name, value in chart.tensors.items()}
        return arrived, digest(chart.tensors)

    def _await(self, root: int) -> Chart | None:
        box, asked = self.box, time.monotonic()
        while True:
            fitting = [chart for chart in box.arrived if self._follows(chart) and chart.whole]
            if fitting:
                best = fitting[0]
                for other in fitting[1:]:
                    best = other if charts.preferred(best, other) else best
                return best
            for chart in box.arrived:
                if self._would_take(chart):
                    raise Behind
            if root in box.dead:
                box.note("gone", root, "it should have grown this task's chart")
                return None
            if time.monotonic() - asked > ASK_S:
                asked = time.monotonic()
                box.want()
            box.changed.wait(TICK_S)

    def _follows(self, chart: Chart) -> bool:
        facts = chart.facts
        return bool(facts["task"] == self.box.task and facts["before"] == self.box.chart.hex())

    def _take(self, chart: Chart) -> None:
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
        for old in [one for one in box.arrived if one.facts["task"] < box.task and not self._would_take(one)]:
            box.arrived.remove(old)
        box.beat()

    # coming and going

    def meet(self) -> None:
        """Until all agents were heard of, and all neighbours are linked; or until it has taken too long."""
        box = self.box
        with box.changed:
            began = time.monotonic()
            while time.monotonic() - began < box.rules.meet:
                if not box.members.unheard and box.links.up >= box.neighbours:
                    break
                box.changed.wait(TICK_S)
            box.live, box.met = dict.fromkeys(set(box.weights) & box.links.up, (0, 0)), True
            for agent in sorted(box.neighbours - box.links.up):
                box.note("absent", agent, f"not met within {box.rules.meet:g} s")
            box.members.start()

    def rejoin(self, rounds: Callable[[int], tuple[int, int]]) -> Joined | None:
        """Take up the others' charts, then their step. None: this task from its start, or nothing is left to do.

        `rounds`: of a task, how many of training, and of those with agreement."""
        box, began, asked = self.box, time.monotonic(), 0.0
        with box.changed:
            box.late = None
            while True:
                while any(self._take_one(chart) for chart in list(box.arrived)):
                    pass
                whole = not box.archive.charts or box.archive.charts[-1].whole
                if whole and box.over:
                    return None
                found = self._place(*rounds(box.task)) if whole else None
                if found is not None:
                    return self._announce(found) if found.step else None
                if not box.links.up and time.monotonic() - began > box.rules.silence:
                    box.note("alone", self.me, "no neighbour is reached")
                    return None
                if time.monotonic() - asked > ASK_S:
                    asked = time.monotonic()
                    box.want(rows=True)
                box.changed.wait(TICK_S)

    def _take_one(self, chart: Chart) -> bool:
        if (self._follows(chart) or self._would_take(chart)) and chart in self.box.arrived:
            self._take(chart)
            return True
        return False

    def _place(self, training: int, with_agreement: int) -> Joined | None:
        """Where to join those who are in our task and chart, if that can be told yet; step 0: the task's start."""
        box = self.box
        there = {peer: box.where[peer] for peer in box.links.up if peer in box.where}
        same = [where for where in there.values() if (where.task, where.chart) == (box.task, box.chart)]
        if not same or any(where.task > box.task for where in there.values()):
            return None
        furthest = max(where.step for where in same)
        if furthest <= 1:
            return Joined(0, torch.empty(0))
        last = {peer: newest(rows, box.at, box.chart) for peer, rows in box.rows.items()}
        heard = [row for peer in box.weights if (row := last[peer]) is not None]
        others = [row for row in last.values() if row is not None]
        if not others:
            return None
        row = min(heard or others, key=lambda one: one[0])  # those who hear us wait for one that is a little behind
        if row[0] + JUMP < training:
            return Joined(row[0] + JUMP, row[1])
        return Joined(with_agreement, row[1], agreed=True) if furthest >= with_agreement else None

    def _announce(self, joined: Joined) -> Joined:
        """Our row of the step at which we join leaves at once: when the others get there, they wait for us again."""
        box = self.box
        box.step, box.size = joined.step, len(joined.row_D)
        self._announced = box.at
        box.live = {peer: box.at for peer in box.weights if peer in box.links.up}
        if not joined.agreed:
            reached = box.say_row(joined.row_D, lambda peer: True)
            self.traffic.count("train", reached, nbytes(joined.row_D))
        box.note("joined", self.me, f"at step {joined.step}")
        return joined

    def linger(self) -> None:
        """Stay for neighbours that still need the last chart."""
        box, began = self.box, time.monotonic()
        with box.changed:
            box.beat()
            while time.monotonic() - began < 2 * box.rules.silence:
                waiting = [peer for peer in box.links.up if box.where.get(peer, (0,))[0] < box.task]
                if not waiting:
                    return
                box.changed.wait(TICK_S)

    # watching

    def consensus_error(self, rows_AD: Tensor) -> float:
        """No peer knows the average: its mean squared distance to the neighbours that it heard last."""
        return self.spread

    def gather(self, rows_A: Tensor) -> Tensor:
        return rows_A
