"""Rows in parts that take turns, a part a round, the same at all agents: fewer bytes, and nothing to remember but when.

Shapes: A agents, D numbers of a row, P of a part, C chunks of a row, M numbers of an agent's memory.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from codecl.exchange.quantised import Memory
from codecl.exchange.rounding import CHUNK, chunks


def part_size(size: int, parts: int) -> int:
    """P: whole chunks, where there is more than one part."""
    return size if parts == 1 else -(-chunks(size) // parts) * CHUNK


class Part(NamedTuple):
    """The part whose turn it is. Laws: each number's turn comes once in so many rounds; `put_back` undoes `of`."""

    rows_AD: Tensor  # of the part
    memory_AM: Tensor
    whole_AD: Tensor
    whole: Memory
    places_P: Tensor | None = None  # in the whole; beyond its end: none
    chunks_C: Tensor | None = None

    @classmethod
    def of(cls, rows_AD: Tensor, memory_AM: Tensor, parts: int) -> "Part":
        whole, size = Memory.split(memory_AM), part_size(rows_AD.shape[1], parts)
        if parts == 1:
            return cls(rows_AD, memory_AM, rows_AD, whole)
        first = whole.round_A1[0, 0].long() % parts * size  # on the device: a captured step takes it from there
        places_P = first + torch.arange(size, device=first.device)
        chunks_C = first // CHUNK + torch.arange(size // CHUNK, device=first.device)
        of_part = torch.cat([*(_taken(value, chunks_C) for value in whole[:-1]), whole.round_A1], 1)
        return cls(_taken(rows_AD, places_P), of_part, rows_AD, whole, places_P, chunks_C)

    def put_back(self, rows_AD: Tensor, memory_AM: Tensor) -> tuple[Tensor, Tensor]:
        """The whole rows and memory, with what became of the part."""
        if self.places_P is None or self.chunks_C is None:
            return rows_AD, memory_AM
        part = Memory.split(memory_AM)
        changed = (_put(old, self.chunks_C, new) for old, new in zip(self.whole[:-1], part[:-1], strict=True))
        return _put(self.whole_AD, self.places_P, rows_AD), torch.cat([*changed, part.round_A1], 1)


def _taken(values: Tensor, which: Tensor) -> Tensor:
    """Columns; zeros beyond the end."""
    count = values.shape[1]
    return values.index_select(1, which.clamp(max=count - 1)) * (which < count)


def _put(values: Tensor, which: Tensor, new: Tensor) -> Tensor:
    """Columns replaced; what is beyond the end goes nowhere: it is made equal to what the last column gets."""
    count = values.shape[1]
    last = new.index_select(1, (count - 1 - which[:1]).clamp(0, len(which) - 1))
    new = torch.where(which < count, new, torch.where(which[0] < count, last, values[:, -1:]))
    return values.index_copy(1, which.clamp(max=count - 1), new)
