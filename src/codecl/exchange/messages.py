"""A round of gossip, with messages as exact as the rows or in few bits.

What a round hands to the next (`memory`) travels with the coordinates: a checkpoint has it, a captured step replays it.
Shapes: A agents of this process, D numbers of a row, C chunks of a row, M numbers of an agent's memory.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from codecl.exchange import quantised
from codecl.exchange.base import Exchange, Swaps
from codecl.seeding import derive

Bits = Literal[32, 16, 8, 4, 3, 2]
GossipKind = Literal["train", "agree"]
STEP = {3: 0.5, 2: 0.3}  # γ where the noise of rounding asks for a smaller step towards the neighbours
MOVED = 2.0  # two neighbours that both moved are apart by at most so much more


class MessageConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    bits: Bits = Field(32, description="of a number in a message between neighbours; 32: as it is")


class PendingMix(NamedTuple):
    """A round on its way; `wait` gives the mixed rows and the memory for the next round."""

    wait: Callable[[], tuple[Tensor, Tensor]]


class Messages(Protocol):
    """How the rows of a task are sent."""

    def width(self, size: int) -> int:
        """M: numbers of memory for rows of this size."""

    def start(self, exchange: Exchange, rows_AD: Tensor, memory_AM: Tensor, kind: GossipKind) -> PendingMix:
        """Send each row to those who hear it."""

    def moved(self, memory_AM: Tensor, mixed_AD: Tensor, rows_AD: Tensor) -> Tensor:
        """The memory after rows changed since they were mixed."""


class Exact:
    """Rows as they are. Law: no memory, and what the exchange gives."""

    def width(self, size: int) -> int:
        return 0

    def start(self, exchange: Exchange, rows_AD: Tensor, memory_AM: Tensor, kind: GossipKind) -> PendingMix:
        pending = exchange.start(rows_AD, kind)
        return PendingMix(lambda: (pending.wait(), memory_AM))

    def moved(self, memory_AM: Tensor, mixed_AD: Tensor, rows_AD: Tensor) -> Tensor:
        return memory_AM


class FewBits:
    """Rows in few bits. Memory: of each chunk, how far apart neighbours are expected to be and how far the agent itself
    moved since; and the round's number.

    Laws: the mean of all agents is kept; the same integers leave in every exchange."""

    def __init__(self, bits: int, seed: int) -> None:
        self.bits, self.seed = bits, seed

    def width(self, size: int) -> int:
        return 2 * quantised.chunks(size) + 1

    def start(self, exchange: Exchange, rows_AD: Tensor, memory_AM: Tensor, kind: GossipKind) -> PendingMix:
        expected_AC, moved_AC, round_A1 = self._parts(memory_AM)
        uniform_D = quantised.uniform(self.seed, round_A1[0, 0], rows_AD.shape[1], rows_AD.dtype)
        codes_AC = quantised.codes(rows_AD, expected_AC + MOVED * moved_AC, self.bits)
        own = quantised.round_off(rows_AD, codes_AC, uniform_D, self.bits)
        assert isinstance(exchange, Swaps), "peers refuse few bits before anything starts"
        pending = exchange.swap(own, self.bits, kind)

        def wait() -> tuple[Tensor, Tensor]:
            heard = pending.wait()
            weights_AK = heard.weights_AK * STEP.get(self.bits, 1.0)
            mixed_AD, next_AC = quantised.mix(
                rows_AD, own, heard.rows, heard.senders_AK, weights_AK, expected_AC, uniform_D, self.bits
            )
            return mixed_AD, torch.cat([next_AC, torch.zeros_like(moved_AC), round_A1 + 1], 1)

        return PendingMix(wait)

    def moved(self, memory_AM: Tensor, mixed_AD: Tensor, rows_AD: Tensor) -> Tensor:
        expected_AC, _, round_A1 = self._parts(memory_AM)
        return torch.cat([expected_AC, quantised.largest(rows_AD - mixed_AD), round_A1], 1)

    @staticmethod
    def _parts(memory_AM: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        chunks = memory_AM.shape[1] // 2
        return memory_AM[:, :chunks], memory_AM[:, chunks:-1], memory_AM[:, -1:]


def messages(config: MessageConfig, seed: int, task: int) -> Messages:
    """How the rows of a task are sent."""
    if config.bits == 32:
        return Exact()
    return FewBits(config.bits, derive(seed, "rounding", task) & quantised.MASK)


def message_bytes(config: MessageConfig, size: int, itemsize: int) -> int:
    """Of a message of so many numbers. Law: what leaves is as long."""
    return size * itemsize if config.bits == 32 else quantised.packed_bytes(size, config.bits)
