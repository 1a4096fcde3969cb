"""One agent a process, linked to its neighbours and to nobody else. Training goes on when a neighbour is slow, cut off
or dead; whoever comes back takes up the others' stage, commit and step.

A node is written in four files, each class with what the one before can do: `receiving` (what its links bring),
`gossiping` (a round), `committing` (a stage's end), and here coming and going.

Shapes: D numbers of a row of coordinates, B bytes of a packed one; the one agent here is a row of its own, [1, D].
"""

from collections.abc import Callable
from typing import final

from torch import Tensor

from codecl.peers import decisions
from codecl.peers.committing import Committing
from codecl.peers.decisions import JoinPoint, Rounds
from codecl.peers.frames import FrameKind, Position
from codecl.peers.receiving import REQUEST_S


@final
class Node(Committing):
    """The exchange of one peer. Law: with nobody missing, gives what `simulated` gives to this agent, and counts what
    leaves it; what does not fit is refused before it is kept, and what is kept is bounded."""

    def meet(self) -> None:
        """Until all agents were heard of, and all neighbours are linked; or until it has taken too long."""
        with self._changed:
            stage = self.position.stage
            trained = stage + (stage in self.history.openings)  # who opens a task may be in it before we are met
            late = Position(trained, self.max_ahead)
            for waited in self._ticks():
                everybody = (
                    not self.membership.unheard and self.links.up >= self.neighbours.all - self.membership.revoked
                )
                under_way = any(status.position > late for status in self.status.values())
                if everybody or under_way or waited >= self.rules.meet:
                    break
            self.live = dict.fromkeys(set(self.neighbours.weights) & self.links.up, Position(0, 0))
            self.met = True
            for agent in sorted(self.neighbours.all - self.links.up):
                self.journal.note(self.position, "absent", agent, f"not met yet, after {waited:.3g} s")
            self.membership.start()
            self.patience.new_stage()

    def rejoin(self, rounds_of: Callable[[int], Rounds]) -> JoinPoint | None:
        """Take up the others' commits, then their step. None: this stage from its start, or nothing is left to do."""
        with self._changed:
            if self.late:
                self.patience.joined_again(self._late_for)
            self.journal.degraded, self.late = True, None
            self._last_row = self._last_full = None
            self.rows.full.clear()
            self.sums.begin_again()
            asked_at, before = -REQUEST_S, 0.0
            for waited in self._ticks():
                self.patience.charge(self.links.up, waited - before)
                before, self._believes_parts = waited, waited > self.rules.silence
                while commit := next(filter(self.history.accepts, self.history.candidates), None):
                    self._adopt(commit)
                if self.history.is_complete and self.position.stage >= self.stages:
                    return None
                point = self._join_point(rounds_of) if self.history.is_complete else None
                if point is not None:
                    break
                helpers = [peer for peer in self.links.up if not self.patience.is_over(peer)]
                if not helpers and waited > self.rules.silence:
                    self.journal.note(self.position, "alone", self.agent, "no neighbour is reached")
                    break
                if waited - asked_at >= REQUEST_S:
                    asked_at = waited
                    self.outbox.request_commits(self.history.held, rows=True)
            self._believes_parts = False
            self.position = self.position._replace(step=point.step if point else 0)
            if not point or not point.step:
                return None
            self._announce(point)
            return point

    def _join_point(self, rounds_of: Callable[[int], Rounds]) -> JoinPoint | None:
        own, commit, rounds = self.position, self.history.newest_id, rounds_of(self.position.stage)
        others = [
            self.status[peer] for peer in self.links.up if peer in self.status and not self.patience.is_over(peer)
        ]
        newest = self.rows.newest(own, commit, rounds)
        heard = [row for peer, row in newest.items() if peer in self.neighbours.weights]
        return decisions.join_point(own, commit, others, heard or list(newest.values()), rounds)

    def _announce(self, point: JoinPoint) -> None:
        """In the step at which we join we listen: we may not be able to send yet what others can read. When they get to
        the one after it, they wait for us again."""
        self.live = {peer: self.position for peer in self.neighbours.weights if peer in self.links.up}
        for peer in self.links.up if not point.agreed else ():
            self.outbox.send(peer, FrameKind.JOIN)
        self.journal.note(self.position, "joined", self.agent, f"at step {point.step}")

    def linger(self) -> None:
        """Stay for neighbours that still need the last commit."""
        with self._changed:
            self.outbox.beat()
            for waited in self._ticks():
                stages = [self.status[peer].position.stage if peer in self.status else 0 for peer in self.links.up]
                if waited >= 2 * self.rules.silence or all(stage >= self.position.stage for stage in stages):
                    return

    def consensus_error(self, rows_AD: Tensor) -> float:
        """No peer knows the average: its mean squared distance to the neighbours that it heard last; with few bits, its
        squared distance to their weighted mean."""
        return self.spread

    def gather(self, rows_A: Tensor) -> Tensor:
        return rows_A
