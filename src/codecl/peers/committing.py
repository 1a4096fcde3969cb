"""What ends a stage: sums of all agents, and the commit that one of them grew, which others may vote on."""

import logging
from collections.abc import Sequence

from torch import Tensor

from codecl.exchange.base import Check, Flood, Tensors, Votes, digest
from codecl.peers import history as histories
from codecl.peers import votes
from codecl.peers.frames import FrameKind, Position
from codecl.peers.gossiping import Gossiping
from codecl.peers.history import Commit
from codecl.peers.pooling import MaskedSum, Seen
from codecl.peers.receiving import REQUEST_S, OutOfSync
from codecl.peers.sums import SumKey
from codecl.peers.votes import Outcome


class Committing(Gossiping):
    """A node, as a task's end sees it."""

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
