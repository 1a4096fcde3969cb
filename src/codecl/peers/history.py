"""What each stage left, signed by the agent that grew it: a relay can pass it on but not alter it, and whoever was away
gets it from any neighbour.

A task is one stage, or two where directions are chosen when it opens: an opening, then training and the task's end. A
manifest names every tensor of a flood with its digest, so that what finished tasks keep for themselves can be passed on
without the rest.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from codecl.exchange.base import digest
from codecl.files import replacing
from codecl.peers import decisions
from codecl.peers.decisions import Rank
from codecl.peers.frames import BadFrame

if TYPE_CHECKING:
    from codecl.peers.keys import Keys

MAX_CANDIDATES = 16  # commits of a neighbour that wait to be taken
Check = Callable[[int, bytes, bytes], bool]  # agent, what it should have signed, signature


class NodeIdentity(NamedTuple):
    """Who we are in the fleet, how we prove it, and how we check what others signed."""

    agent: int
    fleet: str
    sign: Callable[[bytes], bytes]
    check: Check
    keys: "Keys | None" = None  # None: nobody can be revoked


class Approval(NamedTuple):
    """A vote for a commit, as its voter signed it."""

    agent: int
    text: bytes
    signature: bytes


class Manifest(BaseModel, frozen=True, strict=True):
    """What a commit's grower signed."""

    fleet: str
    stage: int
    grower: int
    living: list[int] = Field(alias="part")  # agents, as the grower saw it
    before: str  # the id of the commit that this one follows, in hex
    digests: dict[str, str] = Field(alias="tensors")


class Commit(NamedTuple):
    """A stage's flood: the manifest, its grower's signature, and tensors (all, or what the finished task keeps)."""

    manifest: bytes
    signature: bytes
    tensors: Mapping[str, Tensor]
    approvals: tuple[Approval, ...] = ()  # where agents vote on commits

    @property
    def id(self) -> bytes:
        return hashlib.sha256(self.manifest).digest()

    @property
    def facts(self) -> Manifest:
        return Manifest.model_validate_json(self.manifest)

    @property
    def rank(self) -> Rank:
        return decisions.commit_rank(self.facts.living, self.facts.grower, self.id)

    @property
    def is_complete(self) -> bool:
        return len(self.tensors) == len(self.facts.digests)


def sign_commit(
    identity: NodeIdentity, stage: int, living: Sequence[int], before: bytes, tensors: Mapping[str, Tensor]
) -> Commit:
    """What this agent grew in a stage, after the commit `before`, while these agents lived."""
    digests = {name: digest({name: value}) for name, value in tensors.items()}
    about = {"fleet": identity.fleet, "stage": stage, "grower": identity.agent, "before": before.hex()}
    manifest = json.dumps({**about, "part": sorted(living), "tensors": digests}, sort_keys=True).encode()
    return Commit(manifest, identity.sign(manifest), dict(tensors))


def checked(commit: Commit, fleet: str, agents: int, check: Check) -> Commit:
    """The commit, if it is of this fleet, signed by its grower, and its tensors are those that the manifest names."""
    try:
        facts = commit.facts
    except ValidationError as error:
        raise BadFrame(f"a commit whose manifest cannot be read ({error.errors()[0]['msg']})") from error
    known = {*facts.living, facts.grower} <= {*range(agents)}
    distinct = 0 < len(facts.living) == len({*facts.living})
    if facts.fleet != fleet or not known or not distinct or not 0 <= facts.stage < 1 << 32:
        raise BadFrame("a commit whose manifest does not fit this fleet")
    title, grower = f"a commit of stage {facts.stage + 1}", facts.grower
    if not check(grower, commit.manifest, commit.signature):
        raise BadFrame(f"{title} without the signature of agent {grower}, who should have grown it")
    for name, value in commit.tensors.items():
        if facts.digests.get(name) != digest({name: value}):
            raise BadFrame(f"{title} whose tensor {name[:80]!r} is not what agent {grower} signed")
    return commit


def best(commits: Iterable[Commit]) -> Commit | None:
    """The one that stands, of commits of one stage."""
    return min(commits, key=lambda commit: commit.rank, default=None)


class History:
    """The commits of all stages so far, each following the one before. All of what the newest task left and of the
    opening after it is kept, of others the `kept` tensors. `openings`: the stages that open a task. `added`: after how
    many commits more tasks were added, and by which config (its digest): only agents with the same ones go on together.
    """

    def __init__(
        self,
        start: bytes,
        kept: Collection[str],
        openings: Collection[int] = (),
        added: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self.start, self.kept, self.commits = start, frozenset(kept), list[Commit]()
        self.openings, self.added = frozenset(openings), dict(added)
        self.candidates: list[Commit] = []  # that arrived and may be taken
        self._from: dict[bytes, int] = {}  # the neighbour that sent a candidate, by the candidate's id
        self.max_bytes = 1 << 40  # of the candidates of a neighbour
        self.is_approved: Callable[[Commit], bool] = lambda commit: True  # by enough votes, where agents vote

    @property
    def ids(self) -> list[bytes]:
        """Law: one more than stages that are over; agents with equal ids hold equal states."""
        return [self._id(number) for number in range(len(self.commits) + 1)]

    @property
    def newest_id(self) -> bytes:
        return self._id(len(self.commits))

    def _id(self, number: int) -> bytes:
        """After so many commits."""
        id = self.commits[number - 1].id if number else self.start
        return hashlib.sha256(id + self.added[number].encode()).digest() if number in self.added else id

    def lacking(self, ids: Sequence[bytes]) -> list[Commit]:
        """The commits that one with these ids does not have."""
        return self.commits[max(0, decisions.common_length(self.ids, ids) - 1) :]

    def follows(self, commit: Commit) -> bool:
        """Whether it is the next stage's."""
        facts = commit.facts
        return facts.stage == len(self.commits) and facts.before == self.newest_id.hex()

    def is_replaced_by(self, commit: Commit) -> bool:
        """Whether it stands in the place of one of ours."""
        facts = commit.facts
        if not self.is_approved(commit):
            return False
        if facts.stage >= len(self.commits) or facts.before != self.ids[facts.stage].hex():
            return False
        return commit.rank < self.commits[facts.stage].rank

    def is_completed_by(self, commit: Commit) -> bool:
        """Whether we hold some of it, and need all for a state."""
        return commit.is_complete and commit.id in [known.id for known in self._needed if not known.is_complete]

    @property
    def is_complete(self) -> bool:
        """Whether a state can be made from what is here."""
        return all(commit.is_complete for commit in self._needed)

    @property
    def _needed(self) -> list[Commit]:
        """The commits of which a state needs all."""
        return self.commits[self._last_end :]

    @property
    def _last_end(self) -> int:
        """The number of the newest commit that ended a task."""
        return max((number for number in range(len(self.commits)) if number not in self.openings), default=0)

    @property
    def held(self) -> list[bytes]:
        """The ids of what need not be sent to us."""
        incomplete = (n for n, commit in enumerate(self._needed, self._last_end) if not commit.is_complete)
        return self.ids[: next(incomplete, len(self.commits)) + 1]

    def accepts(self, commit: Commit) -> bool:
        follows = self.follows(commit) and self.is_approved(commit)
        return follows or self.is_replaced_by(commit) or self.is_completed_by(commit)

    def take(self, commit: Commit) -> int | None:
        """Add a commit. Gives the number of commits that it replaces (0: it is new), or None where it is not taken: it
        is known, another stands, or it does not follow one that we have."""
        if not self.accepts(commit):
            return None
        stage, replaced = commit.facts.stage, 0
        if self.is_completed_by(commit):
            approvals = max(commit.approvals, self.commits[stage].approvals, key=len)
            self.commits[stage] = commit._replace(approvals=approvals)
        else:
            replaced = len(self.commits) - stage
            self.commits[stage:] = [commit]
        for number, old in enumerate(self.commits[: self._last_end]):
            kept = {name: value for name, value in old.tensors.items() if name in self.kept}
            self.commits[number] = old._replace(tensors=kept)
        self.candidates = [
            other
            for other in self.candidates
            if other.facts.stage > stage or self.is_replaced_by(other) or self.is_completed_by(other)
        ]
        return replaced

    def add_candidate(self, commit: Commit, sender: int = 0) -> None:
        """Kept once, all of it rather than some, with the most votes. Law: what is kept of a sender is bounded, in
        number and bytes: its oldest make room, and nobody else's."""
        alike = [known for known in self.candidates if known.id == commit.id]
        commit = commit._replace(approvals=max((one.approvals for one in [*alike, commit]), key=len))
        is_known = any(one.is_complete >= commit.is_complete and one.approvals == commit.approvals for one in alike)
        taken = [known.id for known in self.commits]
        if is_known or (commit.id in taken and not self.is_completed_by(commit)):
            return
        others = [known for known in self.candidates if known.id != commit.id]
        self._from = {known.id: self._from[known.id] for known in others} | {commit.id: sender}
        self.candidates = [*others, commit]
        ours = [known for known in self.candidates if self._from[known.id] == sender]
        while len(ours) > MAX_CANDIDATES or (len(ours) > 1 and sum(map(_nbytes, ours)) > self.max_bytes):
            oldest = ours.pop(0)
            self.candidates = [known for known in self.candidates if known is not oldest]

    def add_approvals(self, number: int, approvals: tuple[Approval, ...]) -> None:
        """More votes for a commit of ours, that came after it was taken."""
        if len(approvals) > len(self.commits[number].approvals):
            self.commits[number] = self.commits[number]._replace(approvals=approvals)

    def forget_of(self, growers: Collection[int]) -> None:
        """Candidates that these agents grew."""
        self.candidates = [known for known in self.candidates if known.facts.grower not in growers]

    def save(self, folder: Path) -> None:
        """A file a stage, for a restart."""
        for number, commit in enumerate(self.commits, 1):
            metadata = {"manifest": commit.manifest.decode(), "signature": commit.signature.hex()}
            if commit.approvals:
                votes = [(agent, text.decode(), signature.hex()) for agent, text, signature in commit.approvals]
                metadata["approvals"] = json.dumps(votes)
            with replacing(folder / f"{number}.safetensors") as unfinished:
                save_file(dict(commit.tensors), unfinished, metadata)

    def load(self, folder: Path, fleet: str, agents: int, check: Check) -> None:
        """Take up what was saved, checked like what arrives, as far as a state can be made from it."""
        with suppress(OSError, SafetensorError, KeyError, ValueError, TypeError, BadFrame):
            for number in count(1):
                with safe_open(folder / f"{number}.safetensors", "pt") as file:
                    about = file.metadata()
                    tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                votes = json.loads(about.get("approvals", "[]"))  # that were counted when it was taken
                approvals = tuple(Approval(int(who), text.encode(), bytes.fromhex(sign)) for who, text, sign in votes)
                commit = Commit(about["manifest"].encode(), bytes.fromhex(about["signature"]), tensors, approvals)
                if self.take(checked(commit, fleet, agents, check)) is None:
                    break
        while not self.is_complete:
            self.commits.pop()


def _nbytes(commit: Commit) -> int:
    return len(commit.manifest) + sum(value.nbytes for value in commit.tensors.values())
