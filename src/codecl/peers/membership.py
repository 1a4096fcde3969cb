"""Who is alive and how far, as one agent sees it. Signs of life travel from neighbour to neighbour, so that an agent
counts as dead only where nobody hears from it any more, not where one link is cut."""

import time
from collections.abc import Callable, Sequence

from codecl.peers.frames import BadFrame, Position

STEPS = 1 << 32  # a position travels as task · STEPS + step
CLOCKS_MS = 86_400_000  # by which clocks may differ


class Membership:
    """Law: an agent whose sign of life reaches us again is alive again."""

    def __init__(self, agents: int, me: int, silence: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.me, self.silence, self._clock = me, silence, clock
        self.beats = [0] * agents  # the newest sign of life of each: milliseconds of its own clock
        self.positions = [Position(0, 0)] * agents  # where it was then
        self._since = [clock()] * agents  # when it came

    def beat(self, position: Position) -> None:
        """A new sign of our own."""
        self.beats[self.me] = max(self.beats[self.me] + 1, int(time.time() * 1000))
        self.positions[self.me] = position
        self._since[self.me] = self._clock()

    def fields(self) -> dict[str, list[int]]:
        """What is sent of it, in the header of every frame."""
        return {"beats": self.beats, "positions": [task * STEPS + step for task, step in self.positions]}

    def merge(self, beats: Sequence[int], positions: Sequence[int]) -> list[int]:
        """What a neighbour knows; gives those who have moved on."""
        if not len(beats) == len(positions) == len(self.beats):
            raise BadFrame(f"signs of life of {len(beats)} agents; the fleet has {len(self.beats)}")
        moved = []
        latest = int(time.time() * 1000) + CLOCKS_MS  # whoever lies about a sign silences nobody for good
        for agent, (claimed, encoded) in enumerate(zip(beats, positions, strict=True)):
            beat = min(claimed, latest)
            if beat <= self.beats[agent]:
                continue
            self.beats[agent] = beat
            if agent == self.me:
                continue  # of an earlier life: ours go on from there
            position = Position(*divmod(encoded, STEPS))
            if position != self.positions[agent]:
                moved.append(agent)
            self.positions[agent] = position
            self._since[agent] = self._clock()
        return moved

    def start(self) -> None:
        """Silence counts from now on."""
        self._since = [self._clock()] * len(self.beats)

    @property
    def unheard(self) -> list[int]:
        """Those of whom nothing was ever heard."""
        return [agent for agent, beat in enumerate(self.beats) if not beat and agent != self.me]

    @property
    def dead(self) -> frozenset[int]:
        """Those who have been silent for too long."""
        late = self._clock() - self.silence
        return frozenset(agent for agent, since in enumerate(self._since) if since < late and agent != self.me)
