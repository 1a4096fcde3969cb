"""Rows that are looked at before they are mixed, and agents that lie about theirs.

Clipped gossip (after He, Karimireddy, Jaggi 2022): xᵢ + Σⱼ wᵢⱼ sᵢⱼ (xⱼ - xᵢ). The share s is 1 for who differs about
as the middle one of the neighbours does, and falls off beyond, so that whoever is far off hardly counts. It looks at
two things: how far a row is now, and how far it has been to one side, on average over the last rounds. Honest
neighbours go to and fro; one that holds others back stays.
Shapes: A agents of this process, D numbers of a row, K senders that an agent hears at most, H rows that are heard, S
numbers of a sketch, M numbers of an agent's memory.
"""

from typing import Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from codecl.exchange import rounding
from codecl.exchange.base import Exchange, Heard, PendingMix
from codecl.exchange.rounding import Dither
from codecl.exchange.topology import Topology

SLACK = 1.5  # of the middle distance: up to there a neighbour counts in full
FAR = 2.0  # times that: from there on it counts the less the further it is
SKETCH = 64  # numbers in which a difference is remembered
KEEP = 0.95  # of what is remembered, in a round
HUGE = 1e6
Lie = Literal["noise", "sign-flip", "huge", "constant", "echo", "nan"]
FalseFlood = Literal["random", "outside", "nothing", "everything", "weights", "nan"]


class FaultsConfig(BaseModel):
    """Agents that lie, to see what that does."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    liar: int | tuple[int, ...] | None = Field(None, description="the agent that lies, or several; null: nobody")
    lie: Lie | None = Field(
        "sign-flip",
        description="what it sends for its row: with as much noise added, its negative, with a million added, ones, its"
        " row of the task's start, or no numbers at all; null: its row as it is",
    )
    flood: FalseFlood | None = Field(
        None,
        description="what it floods when it is its turn to grow (and it votes against all others): free bases at random"
        " or such that reach into the core, nothing grown, nothing left free, other weights, no numbers at all; null:"
        " what it should",
    )

    @property
    def liars(self) -> tuple[int, ...]:
        return () if self.liar is None else (self.liar,) if isinstance(self.liar, int) else self.liar

    @property
    def row_liars(self) -> tuple[int, ...]:
        """Those whose rows are lies."""
        return self.liars if self.lie else ()

    @property
    def flood_liars(self) -> tuple[int, ...]:
        """Those whose floods and votes are lies."""
        return self.liars if self.flood else ()


class Memory(NamedTuple):
    """What is remembered from round to round. Law: `split` undoes `joined`."""

    start_AD: Tensor  # rows of the task's start, where somebody echoes them; else empty
    leans_AKS: Tensor  # sketches of the average difference to each sender of late
    clipped_A1: Tensor  # messages so far that were shortened
    refused_A1: Tensor  # that were not numbers
    round_A1: Tensor

    def joined(self) -> Tensor:
        return torch.cat([self.start_AD, self.leans_AKS.flatten(1), *self[2:]], 1)

    @classmethod
    def split(cls, memory_AM: Tensor, senders: int) -> "Memory":
        rest = memory_AM.shape[1] - senders * SKETCH - 3
        start_AD, leans_AX, *counts = memory_AM.split([rest, senders * SKETCH, 1, 1, 1], 1)
        return cls(start_AD, leans_AX.unflatten(1, (senders, SKETCH)), *counts)


class Looked(NamedTuple):
    """Messages that were shortened before they were mixed, and that were not mixed: they were no numbers."""

    clipped: int
    refused: int


class Checked:
    """Rows as they are, each looked at by who hears it. Laws: without a liar, where nothing is clipped, plain gossip;
    what is not finite counts as not heard."""

    def __init__(self, clip: bool, faults: FaultsConfig, seed: int, topology: Topology) -> None:
        self.clip, self.faults, self.seed, self.changes = clip, faults, seed, topology.changes
        self.senders = max(int((mixing != 0).sum(1).max()) - 1 for mixing in topology.turns)

    def memory(self, rows_AD: Tensor, round: int = 0) -> Tensor:
        start_AD = rows_AD if self.faults.row_liars and self.faults.lie == "echo" else rows_AD[:, :0]
        leans_AKS = rows_AD.new_zeros(len(rows_AD), self.senders, SKETCH)
        none_A1 = rows_AD.new_zeros(len(rows_AD), 1)
        return Memory(start_AD, leans_AKS, none_A1, none_A1, none_A1 + round).joined()

    def start(
        self, exchange: Exchange, rows_AD: Tensor, memory_AM: Tensor, kind: Literal["train", "agree"]
    ) -> PendingMix:
        memory = Memory.split(memory_AM, self.senders)
        sent_AD = self._told(exchange, rows_AD, memory)
        turn = memory.round_A1[0, 0] if self.changes else None
        pending = exchange.swap(sent_AD.contiguous().view(torch.uint8), kind, rows_AD, turn)

        def wait() -> tuple[Tensor, Tensor]:
            mixed_AD, after = mixed(rows_AD, pending.wait(), memory, self.clip)
            pending.mixed(mixed_AD, 1.0)
            return mixed_AD, after.joined()

        return PendingMix(wait)

    def moved(self, memory_AM: Tensor, mixed_AD: Tensor, rows_AD: Tensor) -> Tensor:
        return memory_AM

    def unread(self, memory_AM: Tensor) -> str | None:
        return None

    def looked(self, memory_AM: Tensor) -> Looked | None:
        memory = Memory.split(memory_AM, self.senders)
        return Looked(int(memory.clipped_A1.sum()), int(memory.refused_A1.sum()))

    def _told(self, exchange: Exchange, rows_AD: Tensor, memory: Memory) -> Tensor:
        """What leaves agents as their rows."""
        liars = [row for row, agent in enumerate(exchange.agents) if agent in self.faults.row_liars]
        if not liars:
            return rows_AD
        told_AD, lies_AD = rows_AD.clone(), self._lie(rows_AD, memory)
        for row in liars:  # by numbers: a list would be copied to the device, which a captured step may not do
            told_AD[row] = lies_AD[row]
        return told_AD

    def _lie(self, rows_AD: Tensor, memory: Memory) -> Tensor:
        lie = self.faults.lie
        if lie == "noise":
            size, root_A1 = rows_AD.shape[1], rows_AD.square().mean(1, keepdim=True).sqrt()
            dither = Dither(self.seed, memory.round_A1[0, 0])
            uniform_CL = rounding.uniform(dither, 0, rounding.chunks(size), rows_AD.dtype)
            return rows_AD + root_A1 * 12**0.5 * (uniform_CL.flatten()[:size] - 0.5)
        if lie == "echo":
            return memory.start_AD
        others: dict[str | None, Tensor]
        others = {"sign-flip": -rows_AD, "huge": rows_AD + HUGE, "constant": torch.ones_like(rows_AD)}
        return others.get(lie, rows_AD.new_full((), float("nan")).expand_as(rows_AD))


def mixed(rows_AD: Tensor, heard: Heard, memory: Memory, clip: bool) -> tuple[Tensor, Memory]:
    """(rows mixed with what was heard, the memory after it)."""
    heard_HD, signs_D = heard.packed_HB.view(rows_AD.dtype), signs(rows_AD)
    looks = [_look(heard_HD.index_select(0, senders_A).sub_(rows_AD), signs_D) for senders_A in heard.senders_AK.mT]
    far_AK, seen_AKS = (torch.stack(parts, 1) for parts in zip(*looks, strict=True))
    is_heard_AK, is_finite_AK = heard.weights_AK != 0, far_AK.isfinite()
    counts_AK = is_heard_AK & is_finite_AK
    leans_AKS, lean_AK = _remembered(memory.leans_AKS, seen_AKS, counts_AK)
    share_AK = shares(far_AK, counts_AK) * shares(lean_AK, counts_AK) if clip else torch.ones_like(far_AK)
    part_AK = torch.where(counts_AK, heard.weights_AK * share_AK, 0)
    numbers_HD, mixed_AD = heard_HD.nan_to_num(0, 0, 0), rows_AD  # 0 times what is not finite is not 0
    for senders_A, part_A in zip(heard.senders_AK.mT, part_AK.mT, strict=True):
        # by differences: where agents are equal they stay so, bit for bit
        mixed_AD = torch.addcmul(mixed_AD, part_A[:, None], numbers_HD.index_select(0, senders_A).sub_(rows_AD))
    clipped_A1 = memory.clipped_A1 + (counts_AK & (share_AK < 1)).sum(1, keepdim=True)
    refused_A1 = memory.refused_A1 + (is_heard_AK & ~is_finite_AK).sum(1, keepdim=True)
    return mixed_AD, Memory(memory.start_AD, leans_AKS, clipped_A1, refused_A1, memory.round_A1 + 1)


def shares(far_AK: Tensor, counts_AK: Tensor) -> Tensor:
    """What of a difference counts: all of it up to `SLACK` times the middle one, no more than that up to `FAR` times as
    far, and beyond the less the further. Laws: from 0 to 1, and the middle one counts in full."""
    limit_A1 = SLACK * middle(far_AK, counts_AK)[:, None]
    share_AK = (limit_A1 / far_AK).clamp(max=1) * (FAR * limit_A1 / far_AK).clamp(max=1)
    return torch.where((far_AK > 0) & counts_AK, share_AK, 1)


def middle(far_AK: Tensor, counts_AK: Tensor) -> Tensor:
    """Of the distances that count, that of the middle one [A]; of an even number the smaller; 0 where none does."""
    sorted_AK = torch.where(counts_AK, far_AK, float("inf")).sort(1).values
    place_A1 = ((counts_AK.sum(1, keepdim=True) - 1) // 2).clamp(min=0)
    return torch.where(counts_AK.any(1), sorted_AK.gather(1, place_A1)[:, 0], 0)


def signs(rows_AD: Tensor) -> Tensor:
    """+1 or -1 for each number, by a hash of its place [D]."""
    places_D = torch.arange(rows_AD.shape[1], device=rows_AD.device)
    return 1 - 2 * (rounding.hashed(places_D) >> 7 & 1).to(rows_AD.dtype)


def _look(differ_AD: Tensor, signs_D: Tensor) -> tuple[Tensor, Tensor]:
    """(how far [A], a sketch of where to [A, S]). Law: a sketch is linear, and about as long as what it is of."""
    far_A, signed_AD = differ_AD.norm(dim=1), differ_AD * signs_D
    whole = signed_AD.shape[1] // SKETCH * SKETCH  # to pad all of it would be another copy
    rest_AX = signed_AD[:, whole:]
    rest_AS = torch.nn.functional.pad(rest_AX, (0, SKETCH - rest_AX.shape[1]))
    return far_A, signed_AD[:, :whole].unflatten(1, (-1, SKETCH)).sum(1) + rest_AS


def _remembered(leans_AKS: Tensor, seen_AKS: Tensor, counts_AK: Tensor) -> tuple[Tensor, Tensor]:
    """(sketches after this round; how long they are, for each sender). A sender that there was no room for, where the
    graph has healed, is known by this round alone."""
    known = min(leans_AKS.shape[1], seen_AKS.shape[1])
    new_AKS = KEEP * leans_AKS[:, :known] + (1 - KEEP) * seen_AKS[:, :known]
    new_AKS = torch.where(counts_AK[:, :known, None], new_AKS, leans_AKS[:, :known])
    lean_AK = torch.cat([new_AKS, (1 - KEEP) * seen_AKS[:, known:]], 1).norm(dim=2)
    return torch.cat([new_AKS, leans_AKS[:, known:]], 1), lean_AK
