"""Rows that are looked at before they are mixed, and agents that lie about theirs.

Clipped gossip (He, Karimireddy, Jaggi 2022): xᵢ + Σⱼ wᵢⱼ clip(xⱼ - xᵢ), no longer than twice what the middle one of the
neighbours differs. A minority of liars among an agent's neighbours moves it no further than others do.
Shapes: A agents of this process, D numbers of a row, K senders that an agent hears at most, H rows that are heard, M
numbers of an agent's memory.
"""

from typing import Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from codecl.exchange import quantised
from codecl.exchange.base import Exchange, Heard, PendingMix
from codecl.exchange.quantised import Dither

SLACK = 1.5  # of the middle distance: honest neighbours are hardly ever clipped
FAR = 2.0
HUGE = 1e6
Lie = Literal["noise", "sign-flip", "huge", "constant", "echo", "nan"]


class FaultsConfig(BaseModel):
    """Agents that lie, to see what that does."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    liar: int | tuple[int, ...] | None = Field(None, description="the agent that lies, or several; null: nobody")
    lie: Lie = Field(
        "sign-flip",
        description="what it sends for its row: with as much noise added, its negative, with a million added, ones, its"
        " row of the task's start, or no numbers at all",
    )

    @property
    def liars(self) -> tuple[int, ...]:
        return () if self.liar is None else (self.liar,) if isinstance(self.liar, int) else self.liar


class Memory(NamedTuple):
    """What is remembered from round to round. Law: `split` undoes `joined`."""

    start_AD: Tensor  # rows of the task's start, where somebody echoes them; else empty
    clipped_A1: Tensor  # messages so far that were shortened
    refused_A1: Tensor  # that were not numbers
    round_A1: Tensor

    def joined(self) -> Tensor:
        return torch.cat(self, 1)

    @classmethod
    def split(cls, memory_AM: Tensor) -> "Memory":
        return cls(*memory_AM.split([memory_AM.shape[1] - 3, 1, 1, 1], 1))


class Looked(NamedTuple):
    """Messages that were shortened before they were mixed, and that were not mixed: they were no numbers."""

    clipped: int
    refused: int


class Checked:
    """Rows as they are, each looked at by who hears it. Laws: without a liar, where nothing is clipped, plain gossip;
    what is not finite counts as not heard."""

    def __init__(self, clip: bool, faults: FaultsConfig, seed: int, changes: bool = False) -> None:
        self.clip, self.faults, self.seed, self.changes = clip, faults, seed, changes

    def memory(self, rows_AD: Tensor, round: int = 0) -> Tensor:
        start_AD = rows_AD if self.faults.liars and self.faults.lie == "echo" else rows_AD[:, :0]
        none_A1 = rows_AD.new_zeros(len(rows_AD), 1)
        return Memory(start_AD, none_A1, none_A1, none_A1 + round).joined()

    def start(
        self, exchange: Exchange, rows_AD: Tensor, memory_AM: Tensor, kind: Literal["train", "agree"]
    ) -> PendingMix:
        memory = Memory.split(memory_AM)
        sent_AD = self._told(exchange, rows_AD, memory)
        turn = memory.round_A1[0, 0] if self.changes else None
        pending = exchange.swap(sent_AD.contiguous().view(torch.uint8), kind, rows_AD, turn)

        def wait() -> tuple[Tensor, Tensor]:
            mixed_AD, clipped_A, refused_A = mixed(rows_AD, pending.wait(), self.clip)
            pending.mixed(mixed_AD, 1.0)
            clipped_A1, refused_A1 = memory.clipped_A1 + clipped_A[:, None], memory.refused_A1 + refused_A[:, None]
            return mixed_AD, Memory(memory.start_AD, clipped_A1, refused_A1, memory.round_A1 + 1).joined()

        return PendingMix(wait)

    def moved(self, memory_AM: Tensor, mixed_AD: Tensor, rows_AD: Tensor) -> Tensor:
        return memory_AM

    def unread(self, memory_AM: Tensor) -> str | None:
        return None

    def looked(self, memory_AM: Tensor) -> Looked | None:
        memory = Memory.split(memory_AM)
        return Looked(int(memory.clipped_A1.sum()), int(memory.refused_A1.sum()))

    def _told(self, exchange: Exchange, rows_AD: Tensor, memory: Memory) -> Tensor:
        """What leaves agents as their rows."""
        liars = [agent in self.faults.liars for agent in exchange.agents]
        if not any(liars):
            return rows_AD
        lies_A1 = torch.tensor(liars, device=rows_AD.device)[:, None]
        return torch.where(lies_A1, self._lie(rows_AD, memory), rows_AD)

    def _lie(self, rows_AD: Tensor, memory: Memory) -> Tensor:
        lie = self.faults.lie
        if lie == "noise":
            size, root_A1 = rows_AD.shape[1], rows_AD.square().mean(1, keepdim=True).sqrt()
            dither = Dither(self.seed, memory.round_A1[0, 0])
            uniform_CL = quantised.uniform(dither, 0, quantised.chunks(size), rows_AD.dtype)
            return rows_AD + root_A1 * 12**0.5 * (uniform_CL.flatten()[:size] - 0.5)
        if lie == "echo":
            return memory.start_AD
        others = {"sign-flip": -rows_AD, "huge": rows_AD + HUGE, "constant": torch.ones_like(rows_AD)}
        return others.get(lie, rows_AD.new_full((), float("nan")).expand_as(rows_AD))


def mixed(rows_AD: Tensor, heard: Heard, clip: bool) -> tuple[Tensor, Tensor, Tensor]:
    """(rows mixed with what was heard, messages of each agent [A] that were clipped, and that were refused)."""
    heard_HD = heard.packed_HB.view(rows_AD.dtype)

    def differences(senders_A: Tensor) -> Tensor:
        return heard_HD.index_select(0, senders_A) - rows_AD

    columns = list(zip(heard.senders_AK.mT, heard.weights_AK.mT, strict=True))
    far_AK = torch.stack([differences(senders_A).norm(dim=1) for senders_A, _ in columns], 1)
    is_finite_AK, is_heard_AK = far_AK.isfinite(), heard.weights_AK != 0
    counts_AK = is_heard_AK & is_finite_AK
    limit_A1 = SLACK * middle(far_AK, counts_AK)[:, None]
    share_AK = torch.ones_like(far_AK)
    if clip:
        share_AK = (limit_A1 / far_AK).clamp(max=1) * (FAR * limit_A1 / far_AK).clamp(max=1)
        share_AK = torch.where(far_AK > 0, share_AK, 1)
    mixed_AD = rows_AD
    for number, (senders_A, weights_A) in enumerate(columns):
        part_A1 = (weights_A * share_AK[:, number])[:, None]
        mixed_AD = mixed_AD + torch.where(counts_AK[:, number, None], part_A1 * differences(senders_A), 0)
    clipped_A = (counts_AK & (share_AK < 1)).sum(1)
    return mixed_AD, clipped_A.to(rows_AD), (is_heard_AK & ~is_finite_AK).sum(1).to(rows_AD)


def middle(far_AK: Tensor, counts_AK: Tensor) -> Tensor:
    """Of the distances that count, that of the middle one [A]; of an even number the smaller; 0 where none does."""
    sorted_AK = torch.where(counts_AK, far_AK, float("inf")).sort(1).values
    place_A1 = ((counts_AK.sum(1, keepdim=True) - 1) // 2).clamp(min=0)
    return torch.where(counts_AK.any(1), sorted_AK.gather(1, place_A1)[:, 0], 0)
