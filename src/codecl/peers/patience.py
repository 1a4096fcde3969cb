"""How long one agent may make another wait in all, whatever it says of itself."""

import time
from collections import Counter
from collections.abc import Callable, Collection

MAX_LATES = 16  # times in a stage that we join again because one neighbour says that we are late


class Patience:
    """What each agent has cost a stage: the seconds in which it was waited for. Laws: no agent costs a stage's rounds
    more than `limit` seconds and as long again as they took without it; all wait for whoever should grow no longer than
    `limit` seconds and as long again as the rounds took, whatever it has cost before. None: no limit."""

    def __init__(self, limit: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit, self._clock = limit, clock
        self.new_stage()

    def new_stage(self) -> None:
        self._began, self.lates = self._clock(), Counter[int]()
        self.spent: dict[int, float] = {}
        self._rounds_took: float | None = None  # known when they are over

    def charge(self, agents: Collection[int], seconds: float) -> None:
        for agent in agents:
            self.spent[agent] = self.spent.get(agent, 0.0) + seconds

    def is_over(self, agent: int) -> bool:
        """Whether it is not waited for any longer."""
        if self.limit is None or agent not in self.spent:
            return False
        spent = self.spent[agent]
        return spent > self.limit + (self._clock() - self._began - spent)

    def is_over_for_commit(self, waited: float) -> bool:
        """Whether a commit, of whom it may be, is not waited for any longer."""
        if self._rounds_took is None:
            self._rounds_took = self._clock() - self._began
        return self.limit is not None and waited > self.limit + self._rounds_took

    def why(self, agent: int) -> str:
        return f"this task waited {self.spent[agent]:.3g} s for it, more than peers.patience allows"

    def joined_again(self, because_of: int | None) -> None:
        """We were told that we are late."""
        if because_of is not None:
            self.lates[because_of] += 1

    def heeds(self, agent: int) -> bool:
        """Whether it is believed when it says that we are late."""
        return self.lates[agent] < MAX_LATES
