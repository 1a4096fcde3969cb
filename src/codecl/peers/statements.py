"""What agents say to all others, signed and passed on from neighbour to neighbour: a relay can pass it on but not alter
it. Of sums under masks: offers of a key (everyone), rosters (the agent that the sum is for), who was missed (anyone).
Of what an agent grew: votes (everyone)."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from codecl.exchange import masks
from codecl.exchange.base import OBJECTION
from codecl.peers.frames import BadFrame

if TYPE_CHECKING:
    from codecl.peers.history import Check, NodeIdentity

MAX_NUMBER = 8  # sums of a stage for one agent


class PoolId(NamedTuple):
    """Which sum: that of a stage for `root`, counted from 0."""

    stage: int
    root: int
    number: int


class _Said(BaseModel, frozen=True, strict=True, extra="forbid"):
    fleet: str
    stage: int = Field(ge=0, lt=1 << 32)
    root: int = Field(ge=0)  # the agent that a sum is for, or that grew what is voted on
    number: int = Field(ge=0, lt=MAX_NUMBER)
    agent: int = Field(ge=0)
    life: int = Field(ge=0)  # grows whenever an agent begins a sum, or votes, again
    attempt: int = Field(0, ge=0)

    @property
    def pool(self) -> PoolId:
        return PoolId(self.stage, self.root, self.number)

    @property
    def order(self) -> tuple[int, int]:
        """Of two things of a kind that an agent said of a sum or a growth, the later stands."""
        return self.life, self.attempt


class Offer(_Said):
    """A public key for this sum alone."""

    kind: Literal["offer"] = "offer"
    key: str = Field(pattern=r"^[0-9a-f]{64}$")


class Roster(_Said):
    """Who takes part in an attempt, each with the id of its offer, and the tree along which sums travel."""

    kind: Literal["roster"] = "roster"
    offers: dict[str, str] = {}
    tree: list[list[int]] = []  # (parent, child), parents first
    done: bool = False

    @property
    def agents(self) -> list[int]:
        return [int(agent) for agent in self.offers]

    def children(self, agent: int) -> list[int]:
        return [child for parent, child in self.tree if parent == agent]

    def parent(self, agent: int) -> int | None:
        return next((parent for parent, child in self.tree if child == agent), None)


class Report(_Said):
    """That an attempt (its roster's id) cannot come to an end, and who was missed."""

    kind: Literal["report"] = "report"
    roster: str
    without: list[int]


class Vote(_Said):
    """On a commit that `root` grew: what its images have against it; empty: they approve."""

    kind: Literal["vote"] = "vote"
    commit: str = Field(pattern=r"^[0-9a-f]{64}$")
    objection: str = Field(max_length=OBJECTION)


Said = Offer | Roster | Report | Vote
READ: TypeAdapter[Said] = TypeAdapter(Said)


class Signed(NamedTuple):
    """What an agent said, as it travels."""

    text: bytes
    signature: bytes

    @property
    def id(self) -> str:
        return hashlib.sha256(self.text).hexdigest()

    @property
    def said(self) -> Said:
        return READ.validate_json(self.text)


def in_pairs(raw: Sequence[bytes]) -> list[Signed]:
    """From how statements travel: texts and signatures in turn."""
    return [Signed(*pair) for pair in zip(raw[::2], raw[1::2], strict=False)]


def checked(signed: Signed, fleet: str, agents: int, check: "Check") -> Said:
    """What was said, if it is of this fleet and signed by who should have said it; BadFrame where it is not."""
    try:
        said = signed.said
    except ValidationError as error:
        raise BadFrame(f"a statement that cannot be read ({error.errors()[0]['msg']})") from error
    if said.fleet != fleet or max(said.agent, said.root) >= agents:
        raise BadFrame("a statement that does not fit this fleet")
    if isinstance(said, Roster) and said.agent != said.root:
        raise BadFrame(f"agent {said.agent} says who takes part in a sum for agent {said.root}")
    if isinstance(said, Offer) and not masks.is_key(bytes.fromhex(said.key)):
        raise BadFrame(f"agent {said.agent} offers a key that is none")
    if not check(said.agent, *signed):
        raise BadFrame(f"a statement without the signature of agent {said.agent}, who should have made it")
    return said


class Board:
    """What was said of this stage, the one before and the next. Laws: all of it is signed by who said it; of each
    agent, sum or growth, and kind the latest is kept; what one agent says in a stage is taken a bounded number of
    times."""

    def __init__(self, identity: "NodeIdentity", agents: int) -> None:
        self.identity, self.agents = identity, agents
        self.most = 16 * agents + 64  # statements of an agent in a stage
        self._kept: dict[tuple[PoolId, int, str], tuple[Signed, Said]] = {}
        self._taken = Counter[tuple[int, int]]()  # by stage and agent

    def say(self, said: Said) -> Signed:
        """Sign and keep it."""
        text = json.dumps(said.model_dump(), sort_keys=True).encode()
        signed = Signed(text, self.identity.sign(text))
        self._kept[said.pool, said.agent, said.kind] = signed, said
        return signed

    def take(self, raw: Sequence[bytes], stage: int) -> list[Signed]:
        """Keep what is new of what arrived in this stage, and give it; BadFrame where it does not fit."""
        known = {signed for signed, _ in self._kept.values()}
        news = []
        for signed in in_pairs(raw):
            if signed in known:
                continue
            said = checked(signed, self.identity.fleet, self.agents, self.identity.check)
            before = self._kept.get((said.pool, said.agent, said.kind))
            often = self._taken[said.stage, said.agent] >= self.most
            if not stage - 1 <= said.stage <= stage + 1 or (before and before[1].order >= said.order) or often:
                continue
            self._taken[said.stage, said.agent] += 1
            self._kept[said.pool, said.agent, said.kind] = signed, said
            news.append(signed)
        return news

    def of(self, pool: PoolId) -> list[Signed]:
        return [signed for (known, _, _), (signed, _) in self._kept.items() if known == pool]

    def offers(self, pool: PoolId) -> dict[int, tuple[str, bytes]]:
        """By agent: the id of its offer, and its key."""
        found = {}
        for signed, said in self._kept.values():
            if said.pool == pool and isinstance(said, Offer):
                found[said.agent] = signed.id, bytes.fromhex(said.key)
        return found

    def roster(self, pool: PoolId) -> tuple[str, Roster] | None:
        """The newest, and its id."""
        signed, said = self._kept.get((pool, pool.root, "roster"), (None, None))
        return (signed.id, said) if signed and isinstance(said, Roster) else None

    def reports(self, roster: str) -> list[Report]:
        said = (said for _, said in self._kept.values())
        return [one for one in said if isinstance(one, Report) and one.roster == roster]

    def votes(self, commit: bytes) -> list[tuple[Signed, Vote]]:
        """On the commit with this id, one of each agent that voted."""
        kept = ((signed, said) for signed, said in self._kept.values() if isinstance(said, Vote))
        return [(signed, vote) for signed, vote in kept if vote.commit == commit.hex()]

    def forget_before(self, stage: int) -> None:
        self._kept = {key: value for key, value in self._kept.items() if key[0].stage >= stage}
        self._taken = Counter({key: times for key, times in self._taken.items() if key[0] >= stage})
