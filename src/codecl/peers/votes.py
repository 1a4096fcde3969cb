"""Votes on what an agent grew. Everyone looks at it by its own images and signs what it finds. What at least half of
the living approve stands; what more than half object to is refused, and the next in the order grows.

A commit travels with the votes that approve it: whoever was away when it was voted on counts them itself.
"""

from collections.abc import Collection, Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from codecl.errors import printable
from codecl.exchange.base import OBJECTION, Votes
from codecl.peers.frames import BadFrame
from codecl.peers.history import Approval, Check, Commit
from codecl.peers.statements import Board, Signed, Vote, checked


class Outcome(Enum):
    STANDS = "at least half of the living approve"
    REFUSED = "more than half of them object"
    OPEN = "not enough have voted"


class Count(NamedTuple):
    """The votes on a commit so far."""

    approvals: tuple[Approval, ...]
    votes: Votes  # of the living

    @property
    def outcome(self) -> Outcome:
        """Law: never both, whoever votes; and when all of the living have voted, one of the two."""
        if self.votes.refused:
            return Outcome.REFUSED
        return Outcome.STANDS if approved(len(self.approvals), self.votes.voters) else Outcome.OPEN


def approved(approvals: int, living: int) -> bool:
    return 2 * approvals >= living


def vote_on(board: Board, commit: Commit, objection: str, life: int) -> Signed:
    """Our own vote, kept on the board. `life`: greater than of any vote that we gave before."""
    vote = Vote(
        fleet=board.identity.fleet,
        stage=commit.facts.stage,
        root=commit.facts.grower,
        number=0,
        agent=board.identity.agent,
        life=life,
        commit=commit.id.hex(),
        objection=objection[:OBJECTION],
    )
    return board.say(vote)


def count(board: Board, commit: Commit, living: Collection[int]) -> Count:
    """Of the living, by what the board has. Approvals of those who died since are kept: they were given."""
    votes = [(signed, vote) for signed, vote in board.votes(commit.id) if vote.agent in living]
    objections = {vote.agent: printable(vote.objection) for _, vote in votes if vote.objection}
    approvals = tuple(Approval(vote.agent, *signed) for signed, vote in votes if not vote.objection)
    return Count(approvals, Votes(len(living), dict(sorted(objections.items()))))


def with_approvals(commit: Commit, statements: Iterable[Signed], fleet: str, agents: int, check: Check) -> Commit:
    """The commit with these votes; BadFrame where one of them is none that approves it."""
    found = {}
    for signed in statements:
        vote, facts = checked(signed, fleet, agents, check), commit.facts
        of_it = isinstance(vote, Vote) and vote.commit == commit.id.hex() and not vote.objection
        if not of_it or (vote.stage, vote.root) != (facts.stage, facts.grower):
            raise BadFrame(f"a commit of stage {facts.stage + 1} with a vote that does not approve it")
        found[vote.agent] = Approval(vote.agent, *signed)
    return commit._replace(approvals=tuple(found.values()))


def raw(approvals: Sequence[Approval]) -> list[bytes]:
    """As they travel."""
    return [part for approval in approvals for part in (approval.text, approval.signature)]
