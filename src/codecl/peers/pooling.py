"""A sum under masks between peers: who takes part is agreed first, with a new key of each, and it is read only when all
of them are in it. If one is lost on the way, the sum is made again without it, under other masks.

What is said of it goes to all (statements.py). Numbers travel up the roster's tree and nowhere else.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from codecl.errors import RunFailed
from codecl.exchange import masks
from codecl.exchange.base import Tensors
from codecl.peers.statements import Board, Offer, PoolId, Report, Roster, Signed

LEAST = 3  # agents of a masked sum: of two, each could subtract its own part
MAX_REPORTS = 3  # that an agent was missed, before the sum is made without it


class Seen(NamedTuple):
    """What an agent sees when it looks whether a sum can go on."""

    waited: float  # seconds since it began
    living: Collection[int]
    tree: Sequence[tuple[int, int]]  # (parent, child), parents first: how sums of the living travel
    sums: Mapping[int, Tensors]  # by child: what arrived of the current attempt


class Turn(NamedTuple):
    """What to do then."""

    say: Sequence[Signed] = ()
    send: tuple[int, Tensors] | None = None  # to the parent
    lost: Collection[int] = ()  # without whom the sum is made
    total: Tensors | None = None  # at the root, when all are in it
    over: bool = False


class MaskedSum:
    """A sum under masks, as one of its agents goes through it: no lock, no clock, no network.

    Laws: an agent's numbers leave it under masks of a key that is used in this sum alone, once an attempt; the total is
    of exactly those whom the last roster names. `patience`: seconds to wait for an agent."""

    def __init__(self, board: Board, pool: PoolId, values: Tensors, life: int, patience: float) -> None:
        self.board, self.pool, self.values, self.patience = board, pool, values, patience
        self.me, self.key = board.identity.agent, masks.new_key()
        self._about = {"fleet": board.identity.fleet, **pool._asdict(), "agent": self.me, "life": life}
        self.offer = board.say(Offer(**self._about, key=masks.public(self.key).hex()))
        self.roster_id, self.roster = "", Roster(**self._about) if self.me == pool.root else None
        self._keys: dict[int, bytes] | None = None  # that the roster names, when all have arrived
        self._ready: dict[str, Tensor] | None = None  # to be sent
        self._order = (-1, -1)
        self._active = False  # whether we still owe something to the current attempt
        self._since = 0.0
        self._attempt = 0
        self._missed: dict[int, int] = {}  # how often each was
        self._blamed: set[int] = set()  # who was in the last attempt: it may be dead, and the graph heal around it

    def advance(self, seen: Seen) -> Turn:
        if self.me == self.pool.root:
            return self._collect(seen) if self._active else self._invite(seen)
        return self._follow(seen)

    # the agent that the sum is for

    def _invite(self, seen: Seen) -> Turn:
        """A roster, when all who live have offered a key, or have had time to."""
        if not self._blamed.isdisjoint(seen.living) and seen.waited - self._since < self.patience / 2:
            return Turn()
        offers = self.board.offers(self.pool)
        wanted = [agent for agent in seen.living if self._missed.get(agent, 0) < MAX_REPORTS]
        if not all(agent in offers for agent in wanted) and seen.waited - self._since < self.patience:
            return Turn()
        tree = _reached(seen.tree, self.me, [agent for agent in wanted if agent in offers])
        agents = sorted({self.me, *(child for _, child in tree)})
        if len(agents) < LEAST:
            raise RunFailed(
                f"growth.pool: masked needs {LEAST} agents, and {len(agents)} are left; start the others again, then"
                " this one"
            )
        ids, self._keys = {str(agent): offers[agent][0] for agent in agents}, {a: offers[a][1] for a in agents}
        self.roster = Roster(**self._about, attempt=self._attempt, offers=ids, tree=[list(edge) for edge in tree])
        signed = self.board.say(self.roster)
        self.roster_id, self._active, self._since = signed.id, True, seen.waited
        return Turn(say=[signed], lost=[agent for agent in seen.living if agent not in agents])

    def _collect(self, seen: Seen) -> Turn:
        """The total, when all children have sent theirs; another attempt, where that cannot be any more."""
        assert self.roster is not None
        children = self.roster.children(self.me)
        missing = [child for child in children if not self._fits(seen.sums.get(child))]
        if not missing:
            self._active = False
            self._attempt += 1
            done = Roster(**self._about, attempt=self._attempt, done=True)
            return Turn(say=[self.board.say(done)], total=self._summed(seen.sums), over=True)
        reports = self.board.reports(self.roster_id)
        late = missing if seen.waited - self._since > self.patience else [c for c in missing if c not in seen.living]
        if reports or late:
            self._blamed = {*late, *(agent for report in reports for agent in report.without)} - {self.me}
            for agent in self._blamed:
                self._missed[agent] = self._missed.get(agent, 0) + 1
            self._active, self._since = False, seen.waited
            self._attempt += 1
            if self._attempt > 4 * self.board.agents:
                raise RunFailed(f"growth.pool: {self._attempt} attempts at a masked sum failed; start the fleet again")
        return Turn()

    # all others

    def _follow(self, seen: Seen) -> Turn:
        """Take part in the newest attempt, once; until the root says that it has the sum."""
        newest = self.board.roster(self.pool)
        if newest is not None and newest[1].order > self._order:
            self.roster_id, self.roster = newest
            self._order, self._since = self.roster.order, seen.waited
            self._keys = self._ready = None
            self._active = self.me in self.roster.agents and len(self.roster.agents) >= LEAST
        if self.roster is not None and self.roster.done:
            return Turn(over=True)
        if self.roster is None or not self._active:
            return Turn()
        if self.roster.offers[str(self.me)] != self.offer.id:  # from before we began again
            return self._report([])
        parent, children = self.roster.parent(self.me), self.roster.children(self.me)
        missing = [child for child in children if not self._fits(seen.sums.get(child))]
        if parent is None:
            return self._report([])
        late = seen.waited - self._since > self.patience / 2  # before the root gives us up
        gone = [agent for agent in (parent, *missing) if agent not in seen.living]
        if late or gone:
            return self._report(gone or missing or [parent])
        self._keys = self._keys or self._named_keys(self.roster)
        if missing or self._keys is None:
            return Turn()
        self._ready = self._ready or self._summed(seen.sums)
        return Turn(send=(parent, self._ready))

    def sent(self) -> None:
        """Our sum has left: nothing more is due in this attempt."""
        self._active = False

    def _report(self, without: Iterable[int]) -> Turn:
        assert self.roster is not None
        self._active = False
        about = {**self._about, "attempt": self.roster.attempt, "roster": self.roster_id}
        return Turn(say=[self.board.say(Report(**about, without=list(without)))])

    def _named_keys(self, roster: Roster) -> dict[int, bytes] | None:
        offers = self.board.offers(self.pool)
        found = {agent: offers[agent] for agent in roster.agents if agent in offers}
        same = {str(agent): id for agent, (id, _) in found.items()} == roster.offers
        return {agent: key for agent, (_, key) in found.items()} if same else None

    def _summed(self, sums: Mapping[int, Tensors]) -> dict[str, Tensor]:
        """Our numbers under our masks, and what our children sent."""
        assert self.roster is not None
        assert self._keys is not None
        total = masks.masked(self.values, self.me, self.key, self._keys, self.roster_id.encode())
        for child in self.roster.children(self.me):
            total = {name: value + sums[child][name].to(value) for name, value in total.items()}
        return total

    def _fits(self, sums: Tensors | None) -> bool:
        def form(tensors: Tensors) -> dict[str, Any]:
            return {name: (value.shape, value.dtype) for name, value in tensors.items()}

        return sums is not None and form(sums) == form(self.values)


def _reached(tree: Sequence[tuple[int, int]], root: int, agents: Collection[int]) -> list[tuple[int, int]]:
    """The edges of a tree that lead from its root to these agents through these agents."""
    reached, edges = {root}, []
    for parent, child in tree:
        if parent in reached and child in agents:
            reached.add(child)
            edges.append((parent, child))
    return edges
