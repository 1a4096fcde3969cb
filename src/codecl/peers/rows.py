"""The rows of neighbours that arrived and wait to be used. Their node calls this under its lock."""

from collections.abc import Mapping

import torch
from torch import Tensor

from codecl.peers import decisions
from codecl.peers.decisions import NewestRow, ReceivedRow, Rounds
from codecl.peers.frames import BadFrame, Frame, Position
from codecl.peers.rounds import SentRow

Rows = dict[Position, ReceivedRow]


class ReceivedRows:
    """Laws: what does not fit is refused before it is kept; of two rows of a step the first stays; of a neighbour no
    more than `max_rows` are kept, nor more bytes than so many of ours have, and one in full."""

    def __init__(self, agents: int, dtype: torch.dtype, max_rows: int) -> None:
        self.dtype, self.max_rows = dtype, max_rows
        self.of: dict[int, Rows] = {agent: {} for agent in range(agents)}
        self.full: dict[int, Rows] = {}  # of one who answers us while we join: rows may be bytes
        self.size = 0  # of a row of this stage, where it is known: numbers, or bytes
        self._sent: torch.dtype | None = None  # of our own rows, where it is known
        self.max_row_bytes = 1 << 40  # of any row
        self._row_bytes = 0  # of our newest row, where there was one

    def expect(self, own: Tensor) -> None:
        """From now on rows are like this one."""
        self.size, self._sent, self._row_bytes = len(own), own.dtype, own.nbytes

    def check(self, row: Tensor, of_this_stage: bool) -> None:
        if row.nbytes > self.max_row_bytes:
            raise BadFrame(f"a row of {row.nbytes} bytes; {self.max_row_bytes} are the most that a task's can have")
        if self._sent not in (None, row.dtype):
            raise BadFrame(f"a row of {row.dtype}; it should be of {self._sent}")
        if of_this_stage and self.size and len(row) != self.size:
            raise BadFrame(f"a row of {len(row)} numbers; it should have {self.size}")

    def keep(self, peer: int, frame: Frame) -> None:
        rows = self.of[peer]
        rows.setdefault(frame.position, ReceivedRow(frame.row, frame.header.hears, frame.header.commit))
        if len(rows) > self.max_rows:
            del rows[min(rows)]
        most = self.max_rows * (self._row_bytes or self.max_row_bytes)
        while len(rows) > 1 and sum(row.row_D.nbytes for row in rows.values()) > most:
            del rows[min(rows)]

    def keep_full(self, peer: int, frame: Frame) -> None:
        if frame.row.nbytes > self.max_row_bytes:
            raise BadFrame(f"a row in full of {frame.row.nbytes} bytes; {self.max_row_bytes} are the most that fit")
        if frame.row.dtype != self.dtype:
            raise BadFrame(f"a row in full of {frame.row.dtype}; it should be of {self.dtype}")
        self.full[peer] = {frame.position: ReceivedRow(frame.row, False, frame.header.commit)}

    def forget_of(self, peer: int) -> None:
        self.of[peer] = {}
        self.full.pop(peer, None)

    def arrived(self, at: Position) -> set[int]:
        """Whose row of this step is here."""
        return {peer for peer, rows in self.of.items() if at in rows}

    def take(self, at: Position, sent: SentRow, commit: bytes) -> dict[int, Tensor]:
        """Of this step, the rows that can be mixed with ours."""
        rows = {peer: self.of[peer].pop(at, None) for peer in sent.weights}
        return {
            peer: row.row_D.to(sent.row)
            for peer, row in rows.items()
            if row and decisions.is_usable(row, commit, sent.row, sent.pairs.get(peer))
        }

    def forget_before(self, position: Position) -> None:
        for peer, rows in self.of.items():
            self.of[peer] = {at: row for at, row in rows.items() if at >= position}

    def new_stage(self) -> None:
        """Rows will have another size."""
        self.size = 0
        self.full.clear()

    def newest(self, own: Position, commit: bytes, rounds: Rounds) -> Mapping[int, NewestRow]:
        """Of each neighbour, where it can be told, how far it is, with coordinates to start from."""
        known = {peer: {**rows, **self.full.get(peer, {})} for peer, rows in self.of.items()}
        found = {peer: decisions.newest_row(rows, own, commit, rounds) for peer, rows in known.items()}
        return {peer: row for peer, row in found.items() if row}
