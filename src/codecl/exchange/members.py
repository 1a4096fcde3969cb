"""Who is alive, as one agent sees it: signs of life travel from neighbour to neighbour, so that an agent counts as dead
only where nobody hears from it any more, not where one link is cut."""

import time
from collections.abc import Callable, Sequence

from codecl.exchange.frames import BadFrame


class Members:
    """Law: an agent whose sign of life reaches us again is alive again."""

    def __init__(self, agents: int, me: int, silence: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.me, self.silence, self._clock = me, silence, clock
        self.beats = [0] * agents  # the newest sign of life of each: milliseconds of its own clock
        self._since = [clock()] * agents  # when it came

    def beat(self) -> list[int]:
        """All that is known, with a new sign of our own: to be sent."""
        self.beats[self.me] = max(self.beats[self.me] + 1, int(time.time() * 1000))
        self._since[self.me] = self._clock()
        return self.beats

    def merge(self, beats: Sequence[int]) -> None:
        """What a neighbour knows."""
        if len(beats) != len(self.beats):
            raise BadFrame(f"signs of life of {len(beats)} agents; the fleet has {len(self.beats)}")
        now = self._clock()
        for agent, beat in enumerate(beats):
            if beat > self.beats[agent]:
                self.beats[agent], self._since[agent] = beat, now

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
