"""A node's rounds: its row leaves, those of whom it waits for arrive, and nobody runs away from the others.

Shapes: D numbers of a row of coordinates, B bytes of a packed one; the one agent here is a row of its own, [1, D].
"""

import time
from collections.abc import Mapping, Sequence
from typing import Literal

from torch import Tensor

from codecl.exchange.base import Turn
from codecl.peers import decisions, frames
from codecl.peers.frames import FrameKind, Position
from codecl.peers.receiving import Receiving
from codecl.peers.rounds import GossipRound, PackedRound, SentRow

BEAT_STEPS = 4  # between signs to those whom we hear and who do not hear us


class Gossiping(Receiving):
    """A node, as a step sees it."""

    def start(self, rows_AD: Tensor, kind: Literal["train", "agree"], turn: Turn = None) -> GossipRound:
        return GossipRound(self, self._send_row(rows_AD[0].detach(), kind, turn))

    def swap(
        self, packed_AB: Tensor, kind: Literal["train", "agree"], rows_AD: Tensor, turn: Turn = None
    ) -> PackedRound:
        row_D = rows_AD[0].detach()
        return PackedRound(self, self._send_row(packed_AB[0], kind, turn, row_D), row_D)

    def _send_row(
        self, row: Tensor, kind: Literal["train", "agree"], turn: Turn, full_D: Tensor | None = None
    ) -> SentRow:
        """Our row of this step, to all who hear it. `full_D`: what it stands for, where it is bytes."""
        with self._changed:
            self._keep_pace()
            self.busy = False
            self.rows.expect(row)
            weights, hearers = self.neighbours.in_turn(0 if turn is None else int(turn))
            live = {peer for peer, since in self.live.items() if since <= self.position}
            pairs = {peer: peer in live for peer in weights if peer in hearers}
            tensors, header, flags = {"row": row.cpu()}, self._header(), {True, *pairs.values()}
            encoded = {flag: frames.encode(FrameKind.ROW, tensors, **header, hears=flag) for flag in flags}
            links = {peer: link for peer in hearers if (link := self.links.link_to(peer))}
            for peer, link in links.items():
                link.put(encoded[pairs.get(peer, True)], may_drop=True)
            self._last_row, self._last_pairs, self._last_full = encoded[True], pairs, full_D
            self.traffic.count(kind, len(links), row.nbytes)
            if self.position.step % BEAT_STEPS == 0:
                for peer in set(self.neighbours.weights) - set(hearers):  # they hear nothing else of ours
                    self.outbox.send(peer, FrameKind.BEAT)
        return SentRow(row, weights, pairs)

    def _keep_pace(self) -> None:
        """Wait for those who are many steps behind: one who hears nobody would run away from all. Whoever stands still
        is passed."""
        before = 0.0
        for waited in self._ticks():
            self._check_sync()
            others = {*self.neighbours.living} - self.passed - {self.agent}
            positions = {agent: self.membership.positions[agent] for agent in others}
            behind = self._behind(decisions.far_behind(positions, self.position, self.max_ahead))
            if not behind:
                return
            self.patience.charge(behind, waited - before)
            before = waited
            if self.rules.deadline and waited > self.rules.silence:
                self.passed.update(behind)

    def _behind(self, agents: Sequence[int]) -> list[int]:
        """Of those who are said to be far behind, whom we wait for: a neighbour knows best where it is itself."""
        up = self.links.up if agents else set()
        said = {agent: self.status[agent].position for agent in agents if agent in up and agent in self.status}
        near = set(said) - set(decisions.far_behind(said, self.position, self.max_ahead))
        return [agent for agent in agents if agent not in near and not self.patience.is_over(agent)]

    def collect(self, sent: SentRow) -> dict[int, Tensor]:
        """Of those whom a round hears, the rows that came and fit. Ends the step."""
        with self._changed:
            self._await_rows(sent.weights)
            heard = self.rows.take(self.position, sent, self.history.newest_id)
            self.journal.miss(self.position.step, [peer for peer in sent.weights if peer not in heard])
            self._move_to(self.position.next)
        return heard

    def _await_rows(self, weights: Mapping[int, float]) -> None:
        """Until all whom we wait for are heard, or late. Who is late is not waited for again before it is heard."""
        deadline, before, missing = self.rules.deadline, 0.0, list[int]()
        for waited in self._ticks(deadline):
            self._check_sync()
            self.patience.charge(missing, waited - before)
            before = waited
            peers = [peer for peer in weights if peer in self.neighbours.weights]  # the graph may have healed
            missing = decisions.awaited(peers, self.live, self.position, self.rows.arrived(self.position))
            if not missing:
                return
            if deadline and waited > deadline / 4 and not self.busy:
                self.busy = True  # those who wait for us should know that we wait for others
                self.outbox.beat()
            for peer in filter(self.patience.is_over, missing):
                del self.live[peer]
                self.journal.note(self.position, "lost", peer, self.patience.why(peer))
            late = [peer for peer in missing if peer in self.live and deadline and waited > deadline]
            for peer in late:
                status = self.status.get(peer) if peer in self.links.up else None
                if not decisions.is_excused(status, self.position, time.monotonic(), waited, self.rules):
                    del self.live[peer]
                    self.journal.note(self.position, "lost", peer, f"no row within {waited:.3g} s")

    def _move_to(self, position: Position) -> None:
        self.position = position
        self.rows.forget_before(position)
