"""What an exchange does. The loop, the methods and the metrics know these verbs and nothing else.

Shapes: A agents of this process (rows, in the order of `agents`), D numbers of a message.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

Kind = Literal["train", "agree", "pool", "flood"]
Tensors = Mapping[str, Tensor]


class Traffic(NamedTuple):
    """What left agents since the last look: messages and their bytes, by kind. A directed edge a message."""

    train_messages: int = 0
    train_bytes: int = 0
    agree_messages: int = 0
    agree_bytes: int = 0
    pool_messages: int = 0
    pool_bytes: int = 0
    flood_messages: int = 0
    flood_bytes: int = 0

    def plus(self, kind: Kind, messages: int, size: int) -> "Traffic":
        counts = self._asdict()
        counts[f"{kind}_messages"] += messages
        counts[f"{kind}_bytes"] += messages * size
        return Traffic(**counts)


class Pending(Protocol):
    """A gossip round on its way."""

    def wait(self) -> Tensor:
        """The neighbour-weighted sums [A, D]."""
        ...


class Exchange(Protocol):
    """Rows are agents of this process; bytes are counted where a message leaves, from the tensor that leaves."""

    agents: Sequence[int]  # of this process, by their number in the topology

    def start(self, rows_AD: Tensor, kind: Literal["train", "agree"]) -> Pending:
        """Send each row to those who hear it. `wait` gives W_mix · rows."""
        ...

    def pool(self, root: int, parts: Sequence[Tensors]) -> dict[str, Tensor] | None:
        """Sum named tensors of all agents up `root`'s tree; None where `root` does not live. One mapping an agent."""
        ...

    def flood(self, root: int, payload: Tensors | None) -> tuple[dict[str, Tensor], str]:
        """`root`'s tensors and their digest, as they arrive here along its breadth-first tree."""
        ...

    def consensus_error(self, rows_AD: Tensor) -> float:
        """Mean squared distance to the average of all agents. Watching only: not part of the algorithm, not counted."""
        ...

    def gather(self, rows_A: Tensor) -> Tensor:
        """The rows of all agents, here. Watching only, not counted."""
        ...

    def take_traffic(self) -> Traffic:
        """What was counted since the last call."""
        ...


def nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def digest(payload: Tensors) -> str:
    """SHA-256 of names, types, shapes and values. Law: equal if and only if the tensors are equal, bit for bit."""
    out = hashlib.sha256()
    for name in sorted(payload):
        tensor = payload[name].detach().cpu().contiguous()
        out.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        out.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return out.hexdigest()
