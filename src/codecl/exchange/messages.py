"""A round of gossip, with messages as exact as the rows or in few bits.

What a round hands to the next (`memory`) travels with the coordinates: a checkpoint has it, a captured step replays it.
Shapes: A agents of this process, H rows that are heard, D numbers of a row, B bytes of a message, M numbers of
an agent's memory.
"""

import math
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from types import ModuleType
from typing import Literal, Protocol

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from torch import Tensor

from codecl.exchange import packing, quantised, rounding
from codecl.exchange.base import Exchange, PendingMix
from codecl.exchange.gossip import Combination, Gossip, gossip_of
from codecl.exchange.pitches import STEPS
from codecl.exchange.quantised import WIDER, Memory, Pace
from codecl.exchange.robust import Checked, FaultsConfig, Looked
from codecl.exchange.rounding import CHUNK, Dither
from codecl.exchange.row_parts import Part, part_size
from codecl.exchange.streams import beside
from codecl.exchange.topology import Topology
from codecl.seeding import derive

Bits = Literal[32, 16, 8, 4, 3, 2, "bfloat16"]
GossipKind = Literal["train", "agree"]
STEP = {3: 0.5, 2: 0.3}  # γ where the noise of rounding asks for a smaller step towards the neighbours
UNREAD = 20  # times that word could have gone round the graph: what was not read by then never will be


class MessageConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    bits: Bits = Field(32, description="of a number in a message between neighbours; 32: as it is")
    keep: float = Field(1.0, gt=0, le=1, description="share of a row that a message has, one part after another")

    robust: Literal["none", "clip"] = Field(
        "none",
        validate_default=True,
        description="clip: no neighbour's row moves an agent further than twice what the middle one of them differs",
    )

    @field_validator("robust")
    @classmethod
    def _whole_rows(cls, robust: str, info: ValidationInfo) -> str:
        if robust != "none" and info.data.get("bits") != 32:
            raise ValueError(f"message.bits is {info.data.get('bits')}; {robust} needs rows as they are, 32")
        return robust

    @field_validator("keep")
    @classmethod
    def _whole_parts(cls, keep: float, info: ValidationInfo) -> float:
        if abs(1 / keep - round(1 / keep)) > 1e-6:
            raise ValueError("it should be 1 or one part of a whole number: 0.5, 0.25, 0.2, 0.125")
        if keep < 1 and info.data.get("bits") in (32, "bfloat16"):
            raise ValueError(f"message.bits is {info.data['bits']}; parts of a row need 16, 8, 4, 3 or 2")
        return keep

    @property
    def parts(self) -> int:
        """Messages that a whole row takes."""
        return round(1 / self.keep)


class Messages(Protocol):
    """How the rows of a task are sent."""

    def memory(self, rows_AD: Tensor, round: int = 0) -> Tensor:
        """[A, M]: what is remembered before this round, where all agents start from the same row."""

    def start(self, exchange: Exchange, rows_AD: Tensor, memory_AM: Tensor, kind: GossipKind) -> PendingMix:
        """Send each row to those who hear it."""

    def moved(self, memory_AM: Tensor, mixed_AD: Tensor, rows_AD: Tensor) -> Tensor:
        """The memory after rows changed since they were mixed."""

    def unread(self, memory_AM: Tensor) -> str | None:
        """What to say where messages cannot be read any more."""

    def looked(self, memory_AM: Tensor) -> Looked | None:
        """What became of messages in this task so far, where each is looked at."""


class Exact:
    """Rows as they are. Law: what the exchange gives. Memory: none; where the graph changes, the round's number."""

    def __init__(self, changes: bool = False) -> None:
        self.changes = changes

    def memory(self, rows_AD: Tensor, round: int = 0) -> Tensor:
        return rows_AD.new_full((len(rows_AD), 1), round) if self.changes else rows_AD[:, :0]

    def start(self, exchange: Exchange, rows_AD: Tensor, memory_AM: Tensor, kind: GossipKind) -> PendingMix:
        pending = exchange.start(rows_AD, kind, memory_AM[0, 0] if self.changes else None)
        return PendingMix(lambda: (pending.wait(), memory_AM + 1 if self.changes else memory_AM))

    def moved(self, memory_AM: Tensor, mixed_AD: Tensor, rows_AD: Tensor) -> Tensor:
        return memory_AM

    def unread(self, memory_AM: Tensor) -> str | None:
        return None

    def looked(self, memory_AM: Tensor) -> Looked | None:
        return None


class BFloat16(Exact):
    """Rows in bfloat16: 8 significant bits, rounded up or down at random, all agents with the same numbers. Memory: the
    round's number. Law: the mean of all agents is kept."""

    def __init__(self, seed: int, changes: bool = False) -> None:
        super().__init__(changes)
        self.seed = seed

    def memory(self, rows_AD: Tensor, round: int = 0) -> Tensor:
        return rows_AD.new_full((len(rows_AD), 1), round)

    def start(self, exchange: Exchange, rows_AD: Tensor, memory_AM: Tensor, kind: GossipKind) -> PendingMix:
        size = rows_AD.shape[1]
        uniform_CL = rounding.uniform(Dither(self.seed, memory_AM[0, 0]), 0, rounding.chunks(size), torch.float32)
        bits_AD = rows_AD.float().view(torch.int32) + (uniform_CL.flatten()[:size] * 2**16).to(torch.int32)
        own_AD = (bits_AD & ~0xFFFF).view(torch.float32).to(torch.bfloat16)
        pending = exchange.swap(own_AD.view(torch.uint8), kind, rows_AD, memory_AM[0, 0] if self.changes else None)

        def wait() -> tuple[Tensor, Tensor]:
            heard_HB, senders_AK, weights_AK = pending.wait()
            heard_HD, mixed_AD = heard_HB.view(torch.bfloat16).to(rows_AD), rows_AD
            for senders_A, weights_A in zip(senders_AK.mT, weights_AK.mT, strict=True):
                differ_AD = heard_HD.index_select(0, senders_A) - own_AD
                finite_A = differ_AD.isfinite().all(1)
                mixed_AD = mixed_AD + torch.where(finite_A[:, None], weights_A[:, None] * differ_AD, 0)
            pending.mixed(mixed_AD, 1.0)
            return mixed_AD, memory_AM + 1

        return PendingMix(wait)


class FewBits:
    """Rows in few bits, unwrapped around a receiver's own.

    Laws: the mean of all agents is kept; the same bytes leave in every exchange."""

    def __init__(self, bits: int, seed: int, diameter: int, parts: int = 1, changes: bool = False) -> None:
        self.bits, self.seed, self.diameter, self.changes = bits, seed, diameter, changes
        self.pace = Pace(STEP.get(bits, 1.0), max(1, math.ceil(diameter / (WIDER / 2))), parts)

    def memory(self, rows_AD: Tensor, round: int = 0) -> Tensor:
        return Memory.new(rows_AD, round).joined()

    def start(self, exchange: Exchange, rows_AD: Tensor, memory_AM: Tensor, kind: GossipKind) -> PendingMix:
        ops = _ops(rows_AD)

        def send() -> Callable[[], tuple[Tensor, Tensor]]:
            part = Part.of(rows_AD, memory_AM, self.pace.parts)
            packed_AB = ops.encode(part.rows_AD, part.memory_AM, self.seed, self.bits)
            pending = exchange.swap(packed_AB, kind, rows_AD, memory_AM[0, -1] if self.changes else None)

            def mix() -> tuple[Tensor, Tensor]:
                heard = pending.wait()
                mixed = ops.mix(part.rows_AD, packed_AB, heard, part.memory_AM, self.pace, self.seed, self.bits)
                mixed_AD, next_AM = part.put_back(*mixed)
                pending.mixed(mixed_AD, self.pace.step)
                return mixed_AD, next_AM

            return mix

        if exchange.on_device:
            return PendingMix(beside(lambda: send()(), rows_AD.device))
        return PendingMix(send())

    def moved(self, memory_AM: Tensor, mixed_AD: Tensor, rows_AD: Tensor) -> Tensor:
        return _ops(rows_AD).moved(memory_AM, mixed_AD, rows_AD)

    def unread(self, memory_AM: Tensor) -> str | None:
        memory = Memory.split(memory_AM)
        if not memory.unread_AC.max() >= UNREAD * (self.diameter + 1):
            return None
        row, chunk = divmod(int(memory.unread_AC.argmax()), memory.unread_AC.shape[1])
        rounds, pitch = int(memory.unread_AC[row, chunk]), 2 ** (float(memory.least_AC[row, chunk]) / STEPS)
        return (
            f"numbers {chunk * CHUNK} to {(chunk + 1) * CHUNK - 1} of neighbours' messages could not be read for"
            f" {rounds} rounds (a pitch of {pitch:.3g} is asked for); raise message.bits (it is {self.bits})"
            " or lower train.lr"
        )

    def looked(self, memory_AM: Tensor) -> Looked | None:
        return None


class Repeated:
    """Several rounds one after another, their results combined. Laws: the mean of all agents is kept; one round alone
    is what it is without this."""

    def __init__(self, each: Messages, rounds: Sequence[Combination]) -> None:
        self.each, self.rounds = each, rounds

    def memory(self, rows_AD: Tensor, round: int = 0) -> Tensor:
        return self.each.memory(rows_AD, round)

    def start(self, exchange: Exchange, rows_AD: Tensor, memory_AM: Tensor, kind: GossipKind) -> PendingMix:
        pending = self.each.start(exchange, rows_AD, memory_AM, kind)

        def wait() -> tuple[Tensor, Tensor]:
            before_AD, now_AD, (mixed_AD, after_AM) = rows_AD, rows_AD, pending.wait()
            for number, combination in enumerate(self.rounds):
                if number:
                    mixed_AD, after_AM = self.each.start(exchange, now_AD, after_AM, kind).wait()
                if combination == Combination():
                    before_AD, now_AD = now_AD, mixed_AD
                    continue
                combined_AD = combination.mixed * mixed_AD + combination.own * now_AD + combination.before * before_AD
                after_AM = self.each.moved(after_AM, mixed_AD, combined_AD)
                before_AD, now_AD = now_AD, combined_AD
            return now_AD, after_AM

        return PendingMix(wait)

    def moved(self, memory_AM: Tensor, mixed_AD: Tensor, rows_AD: Tensor) -> Tensor:
        return self.each.moved(memory_AM, mixed_AD, rows_AD)

    def unread(self, memory_AM: Tensor) -> str | None:
        return self.each.unread(memory_AM)

    def looked(self, memory_AM: Tensor) -> Looked | None:
        return self.each.looked(memory_AM)


def _ops(rows_AD: Tensor) -> ModuleType:
    """Kernels on a GPU. Triton comes with PyTorch's builds for CUDA; float64 stays with PyTorch."""
    if rows_AD.is_cuda and rows_AD.dtype == torch.float32 and find_spec("triton"):
        from codecl.exchange import kernels

        return kernels
    return quantised


def messages(
    config: MessageConfig,
    seed: int,
    task: int,
    topology: Topology,
    rounds: int = 1,
    faults: FaultsConfig | None = None,
) -> Messages:
    """How the rows of a task are sent, so many rounds a step."""
    faults = faults or FaultsConfig()
    each = _of_a_round(config, derive(seed, "rounding", task) & 0x7FFFFFFF, topology, faults)
    return each if rounds == 1 else Repeated(each, gossip(config, topology, rounds).rounds)


def _of_a_round(config: MessageConfig, dither: int, topology: Topology, faults: FaultsConfig) -> Messages:
    if config.robust == "clip" or faults.row_liars:
        return Checked(config.robust == "clip", faults, dither, topology)
    if config.bits == 32:
        return Exact(topology.changes)
    if config.bits == "bfloat16":
        return BFloat16(dither, topology.changes)
    return FewBits(config.bits, dither, topology.diameter, config.parts, topology.changes)


def gossip(config: MessageConfig, topology: Topology, rounds: int) -> Gossip:
    """What these messages make of the graph: parts of rows, sent in turn, are not combined."""
    towards = 1.0 if isinstance(config.bits, str) else STEP.get(config.bits, 1.0)
    return gossip_of(topology, rounds, towards if rounds > 1 else 1.0, config.parts == 1)


def message_bytes(config: MessageConfig, size: int, itemsize: int) -> int:
    """Of a message of so many numbers. Law: what leaves is as long."""
    if config.bits == 32:
        return size * itemsize
    if config.bits == "bfloat16":
        return 2 * size
    return packing.packed_bytes(part_size(size, config.parts), config.bits)
