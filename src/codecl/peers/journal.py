"""What a node has to tell: to the log, and to the record of its run."""

import logging
import threading
import time
from collections import deque
from collections.abc import Hashable
from typing import Any, NamedTuple

from codecl.peers.frames import Position
from codecl.train.events import MemberChanged

MAX_NOTES = 4096  # that wait to be recorded
QUIET_S = 5.0  # between two lines of the log about one thing
HARMLESS = {"connected", "disconnected"}  # changes that cost nothing by themselves
log = logging.getLogger("codecl.peers")


class RateLimitedLog:
    """A log that one who does the same over and over does not fill. Law: a line a topic in QUIET_S seconds."""

    def __init__(self, log: logging.Logger) -> None:
        self._log, self._logged, self._lock = log, dict[Hashable, float](), threading.Lock()

    def __call__(self, level: int, topic: Hashable, line: str, *about: Any) -> None:
        now = time.monotonic()
        with self._lock:
            self._logged = {known: when for known, when in self._logged.items() if now - when < QUIET_S}
            if topic in self._logged:
                return
            self._logged[topic] = now
        self._log.log(level, line, *about)


class Missed(NamedTuple):
    """A neighbour that was not heard in a step."""

    step: int
    peer: int


class Journal:
    """Changes in membership, and who was not heard when. Law: notes that nobody takes are bounded."""

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
