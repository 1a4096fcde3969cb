"""What a node is and knows, and what its links bring it: rows, sums, commits, signs of life, keys. What does not fit is
refused before it is kept, and what is kept is bounded.

The training thread calls the verbs of a node, the threads that read its links hand in frames; each verb takes the lock
itself, and nobody else does.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from codecl.exchange.base import Traffic
from codecl.exchange.topology import Topology
from codecl.peers import decisions, frames, limits, votes
from codecl.peers import history as histories
from codecl.peers.decisions import PeersConfig, PeerStatus, RowFate
from codecl.peers.frames import BadFrame, Frame, FrameKind, Position
from codecl.peers.history import Commit, History, NodeIdentity
from codecl.peers.keys import Untrusted
from codecl.peers.links import JOIN_S, Links
from codecl.peers.membership import Journal, Membership, Neighbours
from codecl.peers.outbox import Outbox
from codecl.peers.patience import Patience
from codecl.peers.rows import ReceivedRows
from codecl.peers.statements import Board, Signed, in_pairs
from codecl.peers.sums import ReceivedSums, SumKey
from codecl.train.events import LinkBytes

TICK_S = 0.1
LATE_S = 0.05  # between two answers to one neighbour that it is late
REQUEST_S = 0.5  # between two requests for commits
HEALED = {"dead": "nothing heard of it for {:g} s", "linked": "heals the graph", "unlinked": "the graph is whole again"}


class OutOfSync(Exception):
    """The others went on without us, or another commit than ours stands: rejoin."""


class Receiving:
    """A node, as its links see it."""

    on_device = False
    lossy = True

    def __init__(
        self,
        topology: Topology,
        dtype: torch.dtype,
        device: torch.device,
        identity: NodeIdentity,
        rules: PeersConfig,
        voting: bool = False,
    ) -> None:
        """`voting`: commits stand only with enough votes."""
        agents, self.agent, self.device = topology.agents, identity.agent, device
        self.agents: Sequence[int] = (identity.agent,)
        self.identity, self.rules, self.traffic, self.journal = identity, rules, Traffic(), Journal()
        self.voting, self._believes_parts = voting, False
        self.neighbours = Neighbours(topology, self.agent)
        self.membership = Membership(agents, self.agent, rules.silence if rules.deadline else float("inf"))
        self.max_ahead = 2 * agents + 8  # steps between the first and the last: what a ring needs with nothing lost
        self.max_rows = 2 * self.max_ahead  # of a neighbour, that wait to be used
        self.rows = ReceivedRows(agents, dtype, self.max_rows)
        self.sums = ReceivedSums()
        self.position = Position(0, 0)
        self.busy = True  # with what those who wait for us should excuse
        self.met = False  # whether the start is over
        self.spread = 0.0  # squared distance to the neighbours heard in the last round
        self.status: dict[int, PeerStatus] = {}
        self.live: dict[int, Position] = {}  # neighbours that are waited for, each from this step on
        self.passed: set[int] = set()  # who stands still: we no longer wait for them to keep up
        self.patience = Patience(rules.patience if rules.deadline else None)
        self.late: Position | None = None  # where a hearer was that we came too late for
        self._late_for: int | None = None  # which hearer that was
        self._last_row: bytes | None = None
        self._last_pairs: Mapping[int, bool] = {}  # whom its round counts in: what a row says when it is sent again
        self._last_full: Tensor | None = None  # what that row stands for, where it is bytes
        self.board = Board(identity, agents)  # what was said to all
        self._changed = threading.Condition(threading.RLock())
        self._closing = threading.Event()
        self._heartbeat = threading.Thread(target=self._beat_regularly, name="beats", daemon=True)

    def open(self, history: History, stages: int, max_bytes: int, connect: Callable[["Receiving"], Links]) -> None:
        """`stages`: of all tasks. `max_bytes`: of tensors that any message may have."""
        self.history, self.stages, self.max_bytes = history, stages, max_bytes
        self.history.max_bytes, self.rows.max_row_bytes = limits.waiting_bytes(max_bytes), max_bytes // 2
        self.sums.max_bytes = max_bytes
        self.position = self.position._replace(stage=len(history.commits))
        if self.voting:
            history.is_approved = self._is_approved
        with self._changed:  # who dials us at once waits until we can answer
            self.links = connect(self)
            self.outbox = Outbox(self.links, self._header)
            self.links.connect_only(self.neighbours.all)
            self._keys_changed()
        self._heartbeat.start()

    def close(self) -> dict[str, LinkBytes]:
        """Gives what went over the links to each neighbour."""
        self._closing.set()
        if self._heartbeat.ident is None:  # it never was open
            return {}
        self.links.close()
        self._heartbeat.join(JOIN_S)
        return self.links.traffic

    def _header(self) -> dict[str, Any]:
        """What every frame says of its sender, with a new sign of life."""
        self.membership.beat(self.position)
        own = {"fleet": self.identity.fleet, "sender": self.agent, "commit": self.history.newest_id, "busy": self.busy}
        return {**own, "degraded": self.journal.degraded, **self.position._asdict(), **self.membership.fields()}

    def _beat_regularly(self) -> None:
        every = min(0.5, self.rules.silence / 6)
        while True:
            keys = self.identity.keys
            keys_changed = keys is not None and keys.look()
            with self._changed:
                if keys_changed:
                    self._keys_changed()
                elif keys is not None:
                    self.links.close_untrusted()  # a certificate may be over
                self._heal()
                self.outbox.beat()
                self._changed.notify_all()
            if self._closing.wait(every):
                return

    def _heal(self) -> None:
        """The links and weights of the living, where somebody died or came back."""
        dead = self.membership.dead
        finished = self.position.stage >= self.stages  # who has finished may leave
        if dead == self.neighbours.dead or finished or not self.met:
            return
        for state, agents in self.neighbours.heal(dead)._asdict().items():
            for agent in agents:
                why = HEALED.get(state, "").format(self.rules.silence)
                if state == "dead" and agent in self.membership.revoked:
                    why = "its certificate is revoked"
                self.journal.note(self.position, state, agent, why)
        self.live = {peer: since for peer, since in self.live.items() if peer not in dead}
        self.links.connect_only(self.neighbours.all)

    # keys

    def _keys_changed(self) -> None:
        """Whoever is revoked is dead at once, and nothing of it is used; neighbours are told what we were told."""
        keys = self.identity.keys
        if keys is None or not keys.revoked.number:
            return
        revoked, before = keys.revoked_agents, self.membership.revoked
        self.membership.revoked = revoked
        for agent in revoked:
            self.rows.forget_of(agent)
            self.live.pop(agent, None)
        self.sums.forget_of(revoked)
        self.history.forget_of(revoked)
        for agent in sorted(revoked - before):
            self.journal.note(self.position, "revoked", agent)
        self.links.close_untrusted()
        self._heal()
        for peer in self.links.up:
            self._pass_on_keys(peer)
        self._changed.notify_all()

    def _pass_on_keys(self, peer: int) -> None:
        if self.identity.keys is not None and self.identity.keys.revoked.number:
            pem, back = self.identity.keys.to_pass_on()
            self.outbox.send(peer, FrameKind.KEYS, manifest=pem, history=back)

    def _take_keys(self, header: Any) -> None:
        if self.identity.keys is None:
            return
        if len(header.history) > len(self.membership.beats):
            raise BadFrame(f"{len(header.history)} certificates; the fleet has {len(self.membership.beats)} agents")
        try:
            changed = self.identity.keys.take(header.manifest, header.history)
        except Untrusted as error:
            raise BadFrame(f"a list of revoked certificates that does not fit: {error}") from error
        if changed:
            self._keys_changed()

    # what arrives

    def link_changed(self, peer: int, up: bool, why: str, is_back: bool = False) -> None:
        """`is_back`: it was revoked, and has a new certificate."""
        with self._changed:
            self.journal.note(self.position, "connected" if up else "disconnected", peer, why)
            if up:
                self.outbox.send(peer, FrameKind.BEAT)
                self._pass_on_keys(peer)
            if is_back:
                self._keys_changed()
            self._changed.notify_all()

    def link_refused(self, peer: int, why: str) -> None:
        with self._changed:
            self.journal.note(self.position, "refused", peer, why)

    def admits(self, peer: int) -> bool:
        with self._changed:
            return peer in self.neighbours.all

    def receive(self, peer: int, data: bytes) -> None:
        """Take in a frame of this neighbour; BadFrame where it does not fit."""
        frame = frames.decode(data, self.max_bytes)
        header, commit = frame.header, Commit(frame.header.manifest, frame.header.signature, frame.tensors)
        if header.fleet != self.identity.fleet or header.sender != peer:
            raise BadFrame(f"it says it is of agent {header.sender} of fleet {header.fleet[:20]!r}")
        if header.stage > self.stages or len(header.commit) != len(self.history.start):
            raise BadFrame(f"it says it is in stage {header.stage + 1} of {self.stages}, after a commit that is none")
        if frame.kind is FrameKind.COMMIT:
            fleet = self.identity.fleet, len(self.membership.beats), self.identity.check
            commit = votes.with_approvals(histories.checked(commit, *fleet), in_pairs(header.history), *fleet)
        with self._changed:
            if peer in self.membership.revoked:
                return  # what was on its way when it was revoked
            self.journal.degraded |= header.degraded
            self.passed.difference_update(self.membership.merge(header.beats, header.positions))
            self.status[peer] = PeerStatus(frame.position, header.commit, header.busy, time.monotonic())
            if frame.kind is FrameKind.ROW:
                self._take_row(peer, frame)
            elif frame.kind is FrameKind.FULL:
                self.rows.keep_full(peer, frame)
            elif frame.kind is FrameKind.JOIN:
                self._heal()  # it is alive
                self._wait_for(peer, frame.position.next, self._fate(frame))
            elif frame.kind is FrameKind.COMMIT:
                self.history.add_candidate(commit, peer)
            elif frame.kind is FrameKind.SUM and header.roster:
                self.sums.keep_masked(peer, header.roster, frame.tensors)
            elif frame.kind is FrameKind.SUM and header.stage >= self.position.stage:
                self.sums.keep(SumKey(header.stage, header.root, header.number, peer), frame.tensors)
            elif frame.kind is FrameKind.POOL:
                self._pass_on(self.board.take(header.history, self.position.stage), but=peer)
                self._count_late_votes()
            elif frame.kind is FrameKind.KEYS:
                self._take_keys(header)
            elif frame.kind is FrameKind.LATE and self.patience.heeds(peer):
                self.late, self._late_for = max(self.late or Position(0, 0), frame.position), peer
            elif frame.kind is FrameKind.REQUEST:
                ids = list(header.history)
                if ids[:1] != [self.history.start]:
                    raise BadFrame("it started from another config, seed, code or initial weights")
                link = self.outbox.send_lacking(peer, ids, self.history)
                if link and header.number and self._last_row:
                    link.put(frames.with_hears(self._last_row, self._last_pairs.get(peer, False)))
                    if self._last_full is not None:
                        self.outbox.send(peer, FrameKind.FULL, {"row": self._last_full})
            own_ids = self.history.ids
            if header.stage < len(own_ids) and header.commit != own_ids[header.stage]:  # one of the two commits stands
                self.outbox.send_at_most_every(REQUEST_S, peer, FrameKind.REQUEST, history=own_ids)
            self._changed.notify_all()

    def _fate(self, frame: Frame) -> RowFate:
        own, newest = self.position, self.history.newest_id
        return decisions.row_fate(frame.position, frame.header.commit, own, newest, self.max_ahead)

    def _take_row(self, peer: int, frame: Frame) -> None:
        """Keep a row of this step or a later one; whoever is a little behind is waited for too."""
        fate, at = self._fate(frame), frame.position
        self.rows.check(frame.row, fate is not RowFate.FOREIGN and at.stage == self.position.stage)
        if peer not in self.live or fate is RowFate.LATE:
            self._wait_for(peer, at, fate)
        if fate is RowFate.KEEP:
            self.rows.keep(peer, frame)

    def _wait_for(self, peer: int, since: Position, fate: RowFate) -> None:
        """From this step on, and not before our next. One that is late is told so."""
        if fate is RowFate.LATE:
            if self.outbox.send_at_most_every(LATE_S, peer, FrameKind.LATE):
                line = "agent %d: its row of stage %d, step %d is late; dropped"
                self.journal.log(logging.INFO, (peer, "late"), line, peer, *since)
        elif fate is not RowFate.FOREIGN and self.met and peer in self.neighbours.weights:
            if self.patience.is_over(peer):
                return
            if peer not in self.live:
                self.journal.note(self.position, "back", peer)
            self.live[peer] = max(since, self.position.next)

    # waiting

    def _ticks(self, deadline: float | None = None) -> Iterator[float]:
        """Seconds waited so far: now, and again whenever something changed, a while passed or the deadline came."""
        began = time.monotonic()
        while True:
            waited = time.monotonic() - began
            yield waited
            left = deadline - waited if deadline and deadline > waited else TICK_S
            self._changed.wait(min(left, TICK_S))

    def _check_sync(self) -> None:
        """Raise where the others went on without us, or another commit than ours stands."""
        replaced = any(map(self.history.is_replaced_by, self.history.candidates))
        if replaced or (self.late and self.late > self.position):
            raise OutOfSync

    # what is said to all

    def _pass_on(self, signed: Sequence[Signed], but: int | None = None) -> None:
        """To all neighbours but the one that it came from."""
        raw = [part for one in signed for part in one]
        for peer in self.links.up if raw else ():
            if peer != but:
                self.outbox.send(peer, FrameKind.POOL, history=raw)

    def _is_approved(self, commit: Commit) -> bool:
        """By half of those whom we see living; where we have waited in vain for so many, of those whom its grower saw:
        they may have been all that was left of the fleet, and a larger part's commit takes its place."""
        living = commit.facts.living if self._believes_parts else self.neighbours.living
        return votes.approved(len(commit.approvals), len(living))

    def _count_late_votes(self) -> None:
        """For the newest commit: whoever comes back later counts them by who lives then."""
        if self.voting and self.history.commits:
            newest = self.history.commits[-1]
            approvals = votes.count(self.board, newest, range(len(self.membership.beats))).approvals
            self.history.add_approvals(len(self.history.commits) - 1, approvals)
