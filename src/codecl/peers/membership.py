"""Who is alive and how far, as one agent sees it, whom it hears then, and the journal of both. Signs of life travel
from neighbour to neighbour: an agent counts as dead only where nobody hears from it, not where one link is cut."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, NamedTuple

import networkx as nx

from codecl.exchange.topology import Topology, healed
from codecl.peers.frames import BadFrame, Position
from codecl.train.events import MemberChanged

STEPS = 1 << 32  # a position travels as stage · STEPS + step
CLOCKS_MS = 86_400_000  # by which clocks may differ
MAX_NOTES = 4096  # that wait to be recorded
QUIET_S = 5.0  # between two lines of the log about one thing
HARMLESS = {"connected", "disconnected", "refused"}  # changes that cost nothing by themselves
log = logging.getLogger("codecl.peers")


class Membership:
    """Law: an agent whose sign of life reaches us again is alive again."""

    def __init__(self, agents: int, me: int, silence: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.me, self.silence, self._clock = me, silence, clock
        self.beats = [0] * agents  # the newest sign of life of each: milliseconds of its own clock
        self.positions = [Position(0, 0)] * agents  # where it was then
        self._since = [clock()] * agents  # when it came
        self.revoked = frozenset[int]()  # who counts as dead whatever is heard of it

    def beat(self, position: Position) -> None:
        """A new sign of our own."""
        self.beats[self.me] = max(self.beats[self.me] + 1, int(time.time() * 1000))
        self.positions[self.me] = position
        self._since[self.me] = self._clock()

    def fields(self) -> dict[str, list[int]]:
        """What is sent of it, in the header of every frame."""
        return {"beats": self.beats, "positions": [stage * STEPS + step for stage, step in self.positions]}

    def merge(self, beats: Sequence[int], positions: Sequence[int]) -> list[int]:
        """What a neighbour knows; gives those who have moved on."""
        if not len(beats) == len(positions) == len(self.beats):
            raise BadFrame(f"signs of life of {len(beats)} agents; the fleet has {len(self.beats)}")
        moved = []
        latest = int(time.time() * 1000) + CLOCKS_MS  # whoever lies about a sign silences nobody for good
        for agent, (claimed, encoded) in enumerate(zip(beats, positions, strict=True)):
            beat = min(claimed, latest)
            if beat <= self.beats[agent] or agent in self.revoked:
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
        """Those of whom nothing was ever heard, and may be."""
        return [agent for agent, beat in enumerate(self.beats) if not beat and agent not in {self.me, *self.revoked}]

    @property
    def dead(self) -> frozenset[int]:
        """Those who have been silent for too long, and those who are revoked."""
        late = self._clock() - self.silence
        silent = frozenset(agent for agent, since in enumerate(self._since) if since < late and agent != self.me)
        return silent | self.revoked


class Changes(NamedTuple):
    """What the death or return of agents changed."""

    dead: list[int]
    alive: list[int]
    linked: list[int]
    unlinked: list[int]


class Neighbours:
    """Whom an agent hears and who hears it, by the topology and by what heals it where agents have died. Law: with
    nobody dead, the topology's; the weights of the living sum to 1 whoever died."""

    def __init__(self, topology: Topology, me: int) -> None:
        self.topology, self.me = topology, me
        self.dead, self.all = frozenset[int](), set[int]()
        self.heal(())

    @property
    def living(self) -> list[int]:
        return [agent for agent in range(self.topology.agents) if agent not in self.dead]

    def tree(self, root: int) -> list[tuple[int, int]]:
        """(parent, child): how a flood of the living travels."""
        return self._healed.tree(root) if root in self._healed.graph else []

    def tree_to(self, root: int) -> list[tuple[int, int]]:
        """(parent, child): how sums of the living travel."""
        return self._healed.tree_to(root) if root in self._healed.graph else []

    def heal(self, dead: Collection[int]) -> Changes:
        """From now on these are dead."""
        known, before, me = self.dead, self.all, self.me
        self.dead, self._healed = frozenset(dead), self.topology
        if dead:
            turns = [healed(mixing, dead) for mixing in self.topology.turns]
            heard = [(j, i) for mixing in turns for i in self.living for j in mixing[i].nonzero()[0].tolist() if i != j]
            graph = nx.DiGraph(heard)
            graph.add_nodes_from(self.living)
            self._healed = Topology(self.topology.name, graph, turns)
        base, mixing = self.topology.mixing, self._healed.mixing
        others = [agent for agent in range(self.topology.agents) if agent != me]
        self.weights = {j: float(mixing[me, j]) for j in others if mixing[me, j]}  # whom we hear, and how much
        self.hearers = [i for i in others if mixing[i, me]]
        ours = {j for j in others if base[me, j] or base[j, me]}
        self.all = ours | set(self.weights) | set(self.hearers)  # whoever was lost may come back
        return Changes(*map(sorted, (self.dead - known, known - self.dead, self.all - before, before - self.all)))

    def in_turn(self, number: int) -> tuple[dict[int, float], list[int]]:
        """(whom we hear, and how much; who hears us) in a round with so many before it."""
        turns = self._healed.turns
        if len(turns) == 1:
            return self.weights, self.hearers
        mixing = turns[number % len(turns)]
        weights = {j: float(mixing[self.me, j]) for j in self.weights if mixing[self.me, j]}
        return weights, [i for i in self.hearers if mixing[i, self.me]]


class RateLimitedLog:
    """A log that one who does the same over and over does not fill. Law: a line a topic in QUIET_S seconds."""

    def __init__(self) -> None:
        self._logged, self._lock = dict[Hashable, float](), threading.Lock()

    def __call__(self, level: int, topic: Hashable, line: str, *about: Any) -> None:
        now = time.monotonic()
        with self._lock:
            self._logged = {known: when for known, when in self._logged.items() if now - when < QUIET_S}
            if topic in self._logged:
                return
            self._logged[topic] = now
        log.log(level, line, *about)


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
        self.log = RateLimitedLog()

    def note(self, at: Position, state: str, agent: int, why: str = "", tasks: list[int] | None = None) -> None:
        # the agent says of which task the stage is
        note = MemberChanged(task=at.stage, step=at.step, agent=agent, state=state, why=why or None, tasks=tasks)
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
