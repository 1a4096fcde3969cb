"""Who is alive and how far, as one agent sees it. Signs of life travel from neighbour to neighbour, so that an agent
counts as dead only where nobody hears from it any more, not where one link is cut."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from codecl.peers.frames import BadFrame
from codecl.peers.history import Check, Sign


class Rules(NamedTuple):
    """Seconds: how long a step waits for a neighbour, an agent may be silent, the start waits for all."""

    deadline: float | None
    silence: float
    meet: float


class Self(NamedTuple):
    """Who we are in the fleet, and how we prove it."""

    agent: int
    fleet: str
    sign: Sign
    check: Check


At = tuple[int, int]  # task, step
STEPS = 1 << 32  # a place travels as task · STEPS + step
CLOCKS_MS = 86_400_000  # by which clocks may differ


class Members:
    """Law: an agent whose sign of life reaches us again is alive again."""

    def __init__(self, agents: int, me: int, silence: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.me, self.silence, self._clock = me, silence, clock
        self.beats = [0] * agents  # the newest sign of life of each: milliseconds of its own clock
        self.places: list[At] = [(0, 0)] * agents  # where it was then
        self._since = [clock()] * agents  # when it came

    def beat(self, at: At) -> None:
        """A new sign of our own."""
        self.beats[self.me] = max(self.beats[self.me] + 1, int(time.time() * 1000))
        self.places[self.me], self._since[self.me] = at, self._clock()

    def known(self) -> dict[str, list[int]]:
        """What is sent of it."""
        return {"beats": self.beats, "places": [task * STEPS + step for task, step in self.places]}

    def merge(self, beats: Sequence[int], places: Sequence[int]) -> list[int]:
        """What a neighbour knows; gives those who have moved on."""
        if not len(beats) == len(places) == len(self.beats):
            raise BadFrame(f"signs of life of {len(beats)} agents; the fleet has {len(self.beats)}")
        now, moved = self._clock(), []
        latest = int(time.time() * 1000) + CLOCKS_MS  # whoever lies about a sign silences nobody for good
        for agent, (said, place) in enumerate(zip(beats, places, strict=True)):
            beat = min(said, latest)
            if beat > self.beats[agent] and agent == self.me:
                self.beats[agent] = beat  # of an earlier life: ours go on from there
            elif beat > self.beats[agent]:
                at = divmod(place, STEPS)
                moved += [agent] if at != self.places[agent] else []
                self.beats[agent], self.places[agent], self._since[agent] = beat, at, now
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
