"""What a node has to tell the record of its run: changes in membership, and who was not heard when."""

import logging
from collections import deque
from typing import NamedTuple

from codecl.peers.frames import Position
from codecl.peers.links import RateLimitedLog
from codecl.train.events import MemberChanged

MAX_NOTES = 4096  # that wait to be recorded
HARMLESS = {"connected", "disconnected"}  # changes that cost nothing by themselves
log = logging.getLogger("codecl.peers")


class Missed(NamedTuple):
    """A neighbour that was not heard in a step."""

    step: int
    peer: int


class Journal:
    """Law: what nobody takes is bounded."""

    def __init__(self) -> None:
        self.degraded = False  # whether anybody, as far as we know, missed anything
        self._notes: deque[MemberChanged] = deque(maxlen=MAX_NOTES)
        self._missed: deque[Missed] = deque()
        self.log = RateLimitedLog(log)

    def note(self, at: Position, state: str, agent: int, why: str = "", tasks: list[int] | None = None) -> None:
        note = MemberChanged(task=at.task, step=at.step, agent=agent, state=state, why=why or None, tasks=tasks)
        self._notes.append(note)
        self.degraded |= state not in HARMLESS
        self.log(logging.INFO, (agent, state), "agent %d: %s%s", agent, state, f" ({why})" if why else "")

    def miss(self, step: int, peers: list[int]) -> None:
        self._missed += [Missed(step, peer) for peer in peers]
        self.degraded |= bool(peers)

    def take_notes(self) -> list[MemberChanged]:
        """Those since the last look."""
        return [self._notes.popleft() for _ in range(len(self._notes))]

    def take_missed(self) -> list[Missed]:
        return [self._missed.popleft() for _ in range(len(self._missed))]
