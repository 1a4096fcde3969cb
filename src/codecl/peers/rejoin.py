"""How a peer comes and goes: it waits for the others at the start, takes up their task, chart and step when they went
on without it, and stays at the end while somebody still needs the last chart."""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from codecl.peers.exchange import ASK_S, TICK_S, Peers
from codecl.peers.history import Chart
from codecl.peers.node import Mailbox, Row

JUMP = 4  # steps ahead of a neighbour's newest row at which a returning agent joins


class Joined(NamedTuple):
    """Where a returning agent takes part again: a step of the task, or its end, and coordinates to start from."""

    step: int
    row_D: Tensor
    agreed: bool = False  # the others are at the task's end


def meet(peers: Peers) -> None:
    """Until all agents were heard of, and all neighbours are linked; or until it has taken too long."""
    box = peers.box
    with box.changed:
        began = time.monotonic()
        while time.monotonic() - began < box.rules.meet:
            if not box.members.unheard and box.links.up >= box.neighbours.all:
                break
            if any(where[:2] > (box.task, box.ahead) for where in box.where.values()):
                break  # they are long under way
            box.changed.wait(TICK_S)
        box.live, box.met = dict.fromkeys(set(box.neighbours.weights) & box.links.up, (0, 0)), True
        for agent in sorted(box.neighbours.all - box.links.up):
            box.note("absent", agent, f"not met within {box.rules.meet:g} s")
        box.members.start()


def rejoin(peers: Peers, rounds: Callable[[int], tuple[int, int]]) -> Joined | None:
    """Take up the others' charts, then their step. None: this task from its start, or nothing is left to do.

    `rounds`: of a task, how many of training, and of those with agreement."""
    box, began, asked = peers.box, time.monotonic(), 0.0
    with box.changed:
        box.late = None
        while True:
            while any(_take(peers, chart) for chart in list(box.arrived)):
                pass
            if box.archive.whole and box.over:
                return None
            found = _place(box, *rounds(box.task)) if box.archive.whole else None
            if found is not None and found.step:
                return _announce(peers, found)
            alone = not box.links.up and time.monotonic() - began > box.rules.silence
            if alone:
                box.note("alone", peers.me, "no neighbour is reached")
            if found is not None or alone:
                box.step = 0
                return None
            if time.monotonic() - asked > ASK_S:
                asked = time.monotonic()
                box.want(rows=True)
            box.changed.wait(TICK_S)


def _take(peers: Peers, chart: Chart) -> bool:
    archive = peers.box.archive
    if not archive.follows(chart) and not archive.rivals(chart) and not archive.completes(chart):
        return False
    peers.take(chart)
    return True


def _place(box: Mailbox, training: int, with_agreement: int) -> Joined | None:
    """Where to join those who are in our task and chart, if that can be told yet; step 0: the task's start."""
    there = {peer: box.where[peer] for peer in box.links.up if peer in box.where}
    same = [where for where in there.values() if (where.task, where.chart) == (box.task, box.chart)]
    if not same or any(where.task > box.task for where in there.values()):
        return None
    furthest = max(where.step for where in same)
    if furthest <= 1:
        return Joined(0, torch.empty(0))
    last = {peer: _newest(rows, box.at, box.chart) for peer, rows in box.rows.items()}
    heard = [row for peer in box.neighbours.weights if (row := last[peer]) is not None]
    others = [row for row in last.values() if row is not None]
    if not others:
        return None
    row = min(heard or others, key=lambda one: one[0])  # those who hear us wait for one that is a little behind
    if row[0] + JUMP < training:
        return Joined(row[0] + JUMP, row[1])
    return Joined(with_agreement, row[1], agreed=True) if furthest >= with_agreement else None


def _announce(peers: Peers, joined: Joined) -> Joined:
    """Our row of the step at which we join leaves at once: when the others get there, they wait for us again."""
    box = peers.box
    box.step, box.size = joined.step, len(joined.row_D)
    peers.announced = box.at
    box.live = {peer: box.at for peer in box.neighbours.weights if peer in box.links.up}
    if not joined.agreed:
        reached = box.say_row(joined.row_D, lambda peer: True)
        peers.traffic.count("train", reached, joined.row_D.nbytes)
    box.note("joined", peers.me, f"at step {joined.step}")
    return joined


def linger(peers: Peers) -> None:
    """Stay for neighbours that still need the last chart."""
    box, began = peers.box, time.monotonic()
    with box.changed:
        box.beat()
        while time.monotonic() - began < 2 * box.rules.silence:
            waiting = [peer for peer in box.links.up if box.where.get(peer, (0,))[0] < box.task]
            if not waiting:
                return
            box.changed.wait(TICK_S)


def _newest(rows: dict[tuple[int, int], Row], at: tuple[int, int], chart: bytes) -> tuple[int, Tensor] | None:
    """The furthest row of this task and chart, not before this step."""
    fitting = [
        (step, row.row_D)
        for (task, step), row in rows.items()
        if task == at[0] and step >= at[1] and row.chart == chart and bool(torch.isfinite(row.row_D).all())
    ]
    return max(fitting, key=lambda one: one[0], default=None)
