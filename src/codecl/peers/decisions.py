"""What a node decides, as pure functions of small records: no lock, no clock, no network. Each law is a test.

Shapes: D numbers of a row of coordinates.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

import torch
from pydantic import BaseModel, Field, ValidationInfo, field_validator
from torch import Tensor

from codecl.peers.frames import Position

FRESH_S = 2.0  # signs of life come twice a second
Rank = tuple[int, int, int, bytes]
JOIN_AHEAD = 4  # steps ahead of a neighbour's newest row at which a returning agent joins


class PeersConfig(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True):
    deadline: float | None = Field(5.0, gt=0, description="seconds a step waits for a neighbour; null: for ever")
    silence: float = Field(30.0, gt=0, description="seconds without a sign of life: the agent counts as dead")
    meet: float = Field(600.0, gt=0, description="seconds to wait for the others at the start")
    patience: float | None = Field(
        600.0, gt=0, description="seconds that one agent may cost a task, beside as long again as it took; null: any"
    )
    min_images: int = Field(16, ge=1, description="least number of images from which an agent may grow")

    @field_validator("silence")
    @classmethod
    def _not_before_the_deadline(cls, silence: float, info: ValidationInfo) -> float:
        deadline = info.data.get("deadline")
        if deadline is not None and silence < deadline:
            raise ValueError(f"it should be at least the deadline, {deadline:g}")
        return silence


class PeerStatus(NamedTuple):
    """What a neighbour last said of itself, and when."""

    position: Position
    commit: bytes
    busy: bool
    heard_at: float


class ReceivedRow(NamedTuple):
    """A neighbour's coordinates of a step, or bytes that they were packed in."""

    row_D: Tensor
    hears: bool  # whether it counts us in
    commit: bytes


class NewestRow(NamedTuple):
    """How far a neighbour was, and its coordinates there."""

    step: int
    row_D: Tensor


class Rounds(NamedTuple):
    """Of a stage: rounds of training, all with those of agreement, and the numbers of a row in them."""

    training: int
    all: int
    size: int
    step: int = 1  # rounds of a training step
    coords: int = 1  # the first so many of them mix coordinates

    def shows_coords(self, step: int) -> bool:
        """Whether the rows of this round are coordinates."""
        return step >= self.training or step % self.step < self.coords


class JoinPoint(NamedTuple):
    """Where a returning agent takes part again: a step of the stage, or its end, and coordinates to start from."""

    step: int
    row_D: Tensor
    agreed: bool = False  # the others are at the stage's end


class RowFate(Enum):
    KEEP = "of this step or a later one"
    BEHIND = "a few steps behind: of no use, but its sender can be waited for"
    LATE = "of a step that is long over"
    FOREIGN = "of this stage, but after another commit: never mixed"


def row_fate(row: Position, row_commit: bytes, own: Position, own_commit: bytes, max_ahead: int) -> RowFate:
    """Law: what is kept is neither of a past step nor of this stage after another commit."""
    if row.stage == own.stage and row_commit != own_commit:
        return RowFate.FOREIGN
    if row >= own:
        return RowFate.KEEP
    near = row.stage == own.stage and own.step - row.step <= max_ahead
    return RowFate.BEHIND if near else RowFate.LATE


def is_usable(row: ReceivedRow, commit: bytes, own_D: Tensor, we_hear: bool | None) -> bool:
    """Whether a row can be mixed with our own. `we_hear`: whether we count its sender in, where the link goes both
    ways. Law: of such a pair both count each other in or neither does."""
    paired = we_hear is None or (we_hear and row.hears)
    alike = row.row_D.dtype == own_D.dtype and len(row.row_D) == len(own_D)
    return paired and row.commit == commit and alike and bool(row.row_D.isfinite().all())


def awaited(
    neighbours: Collection[int], live: Mapping[int, Position], own: Position, arrived: Collection[int]
) -> list[int]:
    """Whom a step waits for: neighbours that are live by now and whose row has not come. Law: nobody else."""
    return [peer for peer in neighbours if peer in live and live[peer] <= own and peer not in arrived]


def is_excused(status: PeerStatus | None, own: Position, now: float, waited: float, rules: PeersConfig) -> bool:
    """Whether a neighbour has not come to our step yet and says that this is not its own fault: it waits for others, or
    grows, or tests. Law: nobody is excused for longer than the start waits, nor on old news."""
    if status is None or waited > rules.meet:
        return False
    fresh = now - status.heard_at < max(FRESH_S, rules.silence / 3)
    return fresh and status.busy and status.position < own


def far_behind(others: Mapping[int, Position], own: Position, max_ahead: int) -> list[int]:
    """Who is too many steps behind for us to go on. Law: of two nodes, at most one waits for the other."""
    steps = {agent: at.step if at.stage == own.stage else 0 for agent, at in others.items() if at.stage <= own.stage}
    return [agent for agent, step in steps.items() if own.step > max_ahead + step]


def newest_row(rows: Mapping[Position, ReceivedRow], own: Position, commit: bytes, rounds: Rounds) -> NewestRow | None:
    """The furthest row of this stage after this commit, not before our step, that an agent can start from."""
    fitting = [
        NewestRow(at.step, row.row_D)
        for at, row in rows.items()
        if at.stage == own.stage and at >= own and row.commit == commit and is_whole(row.row_D, rounds.size)
        if rounds.shows_coords(at.step)
    ]
    return max(fitting, key=lambda row: row.step, default=None)


def is_whole(row_D: Tensor, size: int) -> bool:
    """Whether it is so many numbers. Law: bytes are not."""
    return row_D.is_floating_point() and len(row_D) == size and bool(row_D.isfinite().all())


def join_point(
    own: Position, commit: bytes, others: Sequence[PeerStatus], newest: Sequence[NewestRow], rounds: Rounds
) -> JoinPoint | None:
    """Where to join those who are in our stage after our commit, if that can be told yet; step 0: its start. Law:
    it is a few steps after a row that somebody sent, or the stage's end where somebody is there."""
    alike = [other for other in others if (other.position.stage, other.commit) == (own.stage, commit)]
    if not alike or any(other.position.stage > own.stage for other in others):
        return None
    furthest = max(other.position.step for other in alike)
    if furthest <= 1:
        return JoinPoint(0, torch.empty(0))
    if not newest:
        return None
    last = min(newest, key=lambda row: row.step)  # those who hear us wait for one that is a little behind
    join = -(-(last.step + JOIN_AHEAD) // rounds.step) * rounds.step
    if join < rounds.training:
        return JoinPoint(join, last.row_D)
    return JoinPoint(rounds.all, last.row_D, agreed=True) if furthest >= rounds.all else None


def commit_rank(living: Sequence[int], grower: int, id: bytes) -> Rank:
    """Of commits of one stage that of the lowest rank stands: that of the larger part of the fleet; of equal parts that
    with the lowest agent. Law: everyone decides alike, and never for both of two."""
    return -len(living), min(living), grower, id


def common_length(ours: Sequence[bytes], theirs: Sequence[bytes]) -> int:
    """How many ids two histories share, from the start. Law: what comes after it is what the other lacks."""
    pairs = zip(ours, theirs, strict=False)
    return next((number for number, (our, their) in enumerate(pairs) if our != their), min(len(ours), len(theirs)))
