"""One agent a process, linked to its neighbours and to nobody else. Training goes on when a neighbour is slow, cut off
or dead; whoever comes back takes up the others' stage, commit and step.

The training thread calls the verbs of a node, the threads that read its links hand in frames; each verb takes the lock
itself, and nobody else does.

Shapes: D numbers of a row of coordinates, B bytes of a packed one; the one agent here is a row of its own, [1, D].
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from codecl.exchange.base import Check, Flood, Tensors, Traffic, Turn, Votes, digest
from codecl.exchange.topology import Topology
from codecl.peers import decisions, frames, limits, votes
from codecl.peers import history as histories
from codecl.peers.decisions import JoinPoint, PeersConfig, PeerStatus, Rounds, RowFate
from codecl.peers.frames import BadFrame, Frame, FrameKind, Position
from codecl.peers.history import Commit, History, NodeIdentity
from codecl.peers.keys import Untrusted
from codecl.peers.links import JOIN_S, Links, Outbox
from codecl.peers.membership import Journal, Membership, Neighbours
from codecl.peers.patience import Patience
from codecl.peers.pooling import MaskedSum, Seen
from codecl.peers.rounds import GossipRound, PackedRound, SentRow
from codecl.peers.rows import ReceivedRows
from codecl.peers.statements import Board, Signed, in_pairs
from codecl.peers.sums import ReceivedSums, SumKey
from codecl.peers.votes import Outcome
from codecl.train.events import LinkBytes

TICK_S = 0.1
LATE_S = 0.05  # between two answers to one neighbour that it is late
REQUEST_S = 0.5  # between two requests for commits
HEALED = {"dead": "nothing heard of it for {:g} s", "linked": "heals the graph", "unlinked": "the graph is whole again"}
BEAT_STEPS = 4  # between signs to those whom we hear and who do not hear us


class OutOfSync(Exception):
    """The others went on without us, or another commit than ours stands: rejoin."""


class Node:
    """The exchange of one peer. Law: with nobody missing, gives what `simulated` gives to this agent, and counts what
    leaves it; what does not fit is refused before it is kept, and what is kept is bounded."""

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

    def open(self, history: History, stages: int, max_bytes: int, connect: Callable[["Node"], Links]) -> None:
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

    # rounds

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

    def _move_to(self, position: Position) -> None:
        self.position = position
        self.rows.forget_before(position)

    def start(self, rows_AD: Tensor, kind: Literal["train", "agree"], turn: Turn = None) -> GossipRound:
        return GossipRound(self, self._send_row(rows_AD[0].detach(), kind, turn))

    def swap(
        self, packed_AB: Tensor, kind: Literal["train", "agree"], rows_AD: Tensor, turn: Turn = None
    ) -> PackedRound:
        row_D = rows_AD[0].detach()
        return PackedRound(self, self._send_row(packed_AB[0], kind, turn, row_D), row_D)

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

    # a stage's end

    def reduce(self, root: int, parts: Sequence[Tensors]) -> dict[str, Tensor] | None:
        """Sums of those who are reached, which may be fewer than all agents."""
        sums = dict(parts[0])
        shapes = {name: value.shape for name, value in sums.items()}
        with self._changed:
            pool = self.sums.next_of(self.position.stage, root)
            for parent, child in reversed(self.neighbours.tree_to(root)):
                if parent == self.agent:
                    arrived = self._await_sum(SumKey(*pool, child))
                    if arrived is None or {name: value.shape for name, value in arrived.items()} != shapes:
                        self.journal.miss(self.position.step, [child])
                    else:
                        sums = {name: value + arrived[name].to(value) for name, value in sums.items()}
                elif child == self.agent and self.outbox.send(
                    parent, FrameKind.SUM, sums, root=root, number=pool.number
                ):
                    for tensor in sums.values():
                        self.traffic.count("reduce", 1, tensor.nbytes)
        return sums if root == self.agent else None

    def pool(self, root: int, parts: Sequence[Tensors]) -> dict[str, Tensor] | None:
        """Sums of all who take part to the end; None also where `root` is gone, or the stage is over."""
        with self._changed:
            pool = self.sums.next_of(self.position.stage, root)
            known = self.sums.total(pool)
            if known is not None:  # we have begun the stage again
                return known
            self._header()  # a new sign of life: no other sum of ours has its number
            life, said_at = self.membership.beats[self.agent], 0.0
            masked = MaskedSum(self.board, pool, parts[0], life, self.rules.silence)
            self._pass_on([masked.offer])
            for waited in self._ticks():
                self._check_sync()
                if root in self.neighbours.dead or any(map(self.history.accepts, self.history.candidates)):
                    return None
                turn = masked.advance(self._seen(masked, waited))
                self._pass_on(turn.say)
                for agent in turn.lost:
                    self.journal.note(self.position, "missed", agent, "not in the masked sum")
                if turn.send:
                    self._send_sum(masked, *turn.send)
                if turn.total is not None:
                    self.sums.keep_total(pool, turn.total)
                if turn.over:
                    return self.sums.total(pool)
                if waited - said_at > REQUEST_S:  # to those who missed it
                    said_at = waited
                    self._pass_on(self.board.of(pool))
        return None

    def _seen(self, masked: MaskedSum, waited: float) -> Seen:
        tree = self.neighbours.tree_to(masked.pool.root)
        return Seen(waited, self.neighbours.living, tree, self.sums.of_roster(masked.roster_id))

    def _send_sum(self, masked: MaskedSum, parent: int, sums: Tensors) -> None:
        about = {"root": masked.pool.root, "number": masked.pool.number, "roster": masked.roster_id}
        if self.outbox.send(parent, FrameKind.SUM, sums, **about):  # else again later: its link may come back
            masked.sent()
            for tensor in sums.values():
                self.traffic.count("reduce", 1, tensor.nbytes)

    def _pass_on(self, signed: Sequence[Signed], but: int | None = None) -> None:
        """To all neighbours but the one that it came from."""
        raw = [part for one in signed for part in one]
        for peer in self.links.up if raw else ():
            if peer != but:
                self.outbox.send(peer, FrameKind.POOL, history=raw)

    def _await_sum(self, key: SumKey) -> Tensors | None:
        before = 0.0
        for waited in self._ticks():
            self.patience.charge([key.child], waited - before)
            before = waited
            if self.sums.of(key) is not None:
                break
            self._check_sync()
            is_over = waited > self.rules.silence or self.patience.is_over(key.child)
            if key.child in self.neighbours.dead or (self.rules.deadline and is_over):
                self.journal.note(self.position, "missed", key.child, f"no sum within {waited:.3g} s")
                break
        return self.sums.of(key)

    def flood(self, root: int, payload: Tensors | None, check: Check | None = None) -> Flood | None:
        """What `root` grew, signed, along its tree or from any neighbour that is asked; None where it is gone. With a
        check it is voted on before it is taken, unless enough others have approved it already."""
        with self._changed:
            commit = self._await_commit(root) if payload is None else self._signed(payload)
            if commit is None:
                return None
            if check is None or self.history.accepts(commit):
                self._adopt(commit)
                self._pass_down(commit)
                return self._flood_of(commit)
            self._pass_down(commit)  # the others look at it too
        (objection,) = check(self._flood_of(commit).tensors)  # without the lock: signs of life go on
        with self._changed:
            return self._vote(commit, objection)

    def _signed(self, payload: Tensors) -> Commit:
        tensors = {name: value.detach().cpu().contiguous() for name, value in payload.items()}
        living, before = self.neighbours.living, self.history.newest_id
        return histories.sign_commit(self.identity, self.position.stage, living, before, tensors)

    def _pass_down(self, commit: Commit) -> None:
        """To those below us in its grower's tree."""
        for parent, child in self.neighbours.tree(commit.facts.grower):
            if parent == self.agent and self.outbox.send_commit(child, commit):
                self.traffic.count("flood", 1, sum(value.nbytes for value in commit.tensors.values()))

    def _flood_of(self, commit: Commit, found: Votes | None = None) -> Flood:
        tensors = {name: value.to(self.device) for name, value in commit.tensors.items()}
        return Flood(tensors, digest(commit.tensors), found)

    def _await_commit(self, root: int) -> Commit | None:
        """One that stands, or, where it is voted on, one that `root` grew."""
        asked_at = 0.0
        for waited in self._ticks():
            found = self._standing()
            if found is None and self.voting:
                grown = (commit for commit in self.history.candidates if commit.facts.grower == root)
                found = histories.best(one for one in grown if self.history.follows(one) and one.is_complete)
            if found:
                return found
            if root in self.neighbours.dead:
                self.journal.note(self.position, "gone", root, "it should have grown this stage's commit")
                break
            if self.patience.is_over_for_commit(waited):
                why = f"no commit within {waited:.3g} s, as long as peers.patience allows"
                self.journal.note(self.position, "gone", root, why)
                break
            if waited - asked_at > REQUEST_S:
                asked_at = waited
                self.outbox.request_commits(self.history.held)
        return None

    def _standing(self) -> Commit | None:
        """A commit that we can take as this stage's."""
        useful = [commit for commit in self.history.candidates if self.history.accepts(commit)]
        best = histories.best(commit for commit in useful if self.history.follows(commit) and commit.is_complete)
        if useful and best is None:
            raise OutOfSync  # to take another past, or one of which only some is still to be had
        return best

    def _vote(self, commit: Commit, objection: str) -> Flood | None:
        """Ours, and what all make of it; None where that cannot be told, and the next should grow."""
        self._header()  # a new sign of life: no other vote of ours has its number
        self._pass_on([votes.vote_on(self.board, commit, objection, self.membership.beats[self.agent])])
        said_at, grower = 0.0, commit.facts.grower
        for waited in self._ticks():
            self._check_sync()
            count = votes.count(self.board, commit, self.neighbours.living)
            approved = commit._replace(approvals=count.approvals)
            standing = approved if count.outcome is Outcome.STANDS else self._standing()
            if standing:
                self._adopt(standing)
                return self._flood_of(standing, count.votes if standing is approved else None)
            if count.outcome is Outcome.REFUSED:
                who, why = len(count.votes.objections), next(iter(count.votes.objections.values()))
                line = "agent %d: what it grew is refused by %d of %d (%s)"
                self.journal.log(logging.WARNING, (grower, "refused"), line, grower, who, count.votes.voters, why)
                return self._flood_of(commit, count.votes)
            if self.patience.is_over_for_commit(waited):
                why = f"neither half approved nor more objected to what it grew within {waited:.3g} s"
                self.journal.note(self.position, "gone", grower, why)
                break
            if waited - said_at > REQUEST_S:  # to those who missed it
                said_at = waited
                self._pass_on([signed for signed, _ in self.board.votes(commit.id)])
                self.outbox.request_commits(self.history.held)
        return None

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

    def _adopt(self, commit: Commit) -> None:
        """The next stage, after this commit."""
        replaced = self.history.take(commit)
        if replaced:
            stages = list(range(commit.facts.stage, commit.facts.stage + replaced))
            why = "the commit of another part of the fleet stands"
            self.journal.note(self.position, "discarded", self.agent, why, stages)
        self.busy, self.late, self._last_full = True, None, None
        self.patience.new_stage()
        self.rows.new_stage()
        self._move_to(Position(len(self.history.commits), 0))
        self.sums.new_stage(self.position.stage)
        self.board.forget_before(self.position.stage - 1)  # votes on this commit may still come
        self.outbox.beat()

    # coming and going

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
