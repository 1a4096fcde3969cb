"""What arrived at a node and waits to be used: rows of steps, sums, commits."""

from typing import NamedTuple

from codecl.exchange.base import Tensors
from codecl.peers import decisions
from codecl.peers.decisions import NewestRow, ReceivedRow
from codecl.peers.frames import Position
from codecl.peers.history import Commit, History

MAX_COMMITS, MAX_SUMS = 16, 32  # sums by neighbour


class SumKey(NamedTuple):
    """Which of the sums at a task's end."""

    task: int
    root: int
    number: int
    child: int


class Inbox:
    """Law: what is kept is bounded; a neighbour's rows and sums push out its own alone."""

    def __init__(self, agents: int, max_rows: int) -> None:
        self.max_rows = max_rows
        self.rows: dict[int, dict[Position, ReceivedRow]] = {agent: {} for agent in range(agents)}
        self.sums: dict[SumKey, Tensors] = {}
        self.commits: list[Commit] = []

    def senders(self, position: Position) -> set[int]:
        """Those whose row of this step is here."""
        return {peer for peer, rows in self.rows.items() if position in rows}

    def trim_rows(self, peer: int) -> None:
        """The oldest makes room."""
        rows = self.rows[peer]
        if len(rows) > self.max_rows:
            del rows[min(rows)]

    def newest_rows(self, own: Position, commit: bytes) -> dict[int, NewestRow]:
        """By neighbour that sent any of our task after our commit."""
        newest = {peer: decisions.newest_row(rows, own, commit) for peer, rows in self.rows.items()}
        return {peer: row for peer, row in newest.items() if row}

    def add_sum(self, key: SumKey, tensors: Tensors) -> None:
        self.sums[key] = tensors
        of_child = [known for known in self.sums if known.child == key.child]
        if len(of_child) > MAX_SUMS:
            del self.sums[of_child[0]]

    def add_commit(self, commit: Commit, history: History) -> None:
        """Kept once, all of it rather than some."""
        is_known = any(known.id == commit.id and known.is_complete >= commit.is_complete for known in self.commits)
        if not is_known and (commit.id not in history.ids or history.is_completed_by(commit)):
            others = [known for known in self.commits if known.id != commit.id]
            self.commits = [*others[1 - MAX_COMMITS :], commit]

    def forget_rows(self, position: Position) -> None:
        """Those of steps before this one."""
        for rows in self.rows.values():
            for past in [known for known in rows if known < position]:
                del rows[past]

    def forget_task(self, task: int, history: History) -> None:
        """What is of no use from this task on."""
        self.sums = {key: tensors for key, tensors in self.sums.items() if key.task >= task}
        self.commits = [
            commit for commit in self.commits if commit.facts.task >= task or history.is_replaced_by(commit)
        ]
