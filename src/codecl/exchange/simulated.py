"""All agents in one process, on one device: a gossip round is one product with the mixing matrix.

Shapes: A agents, D numbers of a row, B bytes of a packed one, K senders that an agent hears at most, T turns of the
graph.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from codecl.exchange.base import Check, Flood, Heard, Tensors, Traffic, Turn, counted, digest
from codecl.exchange.streams import beside
from codecl.exchange.topology import Topology


class Mixed(NamedTuple):
    """A round that is done as soon as it is started; on a GPU, as soon as the stream beside the main one is."""

    wait: Callable[[], Tensor]


class Swapped(NamedTuple):
    """Bytes that are heard as soon as they are sent."""

    heard: Heard

    def wait(self) -> Heard:
        return self.heard

    def mixed(self, mixed_AD: Tensor, step: float) -> None:
        pass


class Simulated:
    """Law: W_mix keeps the mean of the rows."""

    on_device = True
    lossy = False

    def __init__(self, topology: Topology, dtype: torch.dtype, device: torch.device) -> None:
        self.topology = topology
        self.agents: Sequence[int] = range(topology.agents)
        heard = [topology.heard_by(self.agents, turn) for turn in range(len(topology.turns))]
        self._mixing_TAA = torch.stack([torch.from_numpy(mixing).to(device, dtype) for mixing in topology.turns])
        self._senders_TAK = torch.tensor([senders for senders, _ in heard], device=device)
        self._weights_TAK = torch.tensor([weights for _, weights in heard], device=device, dtype=dtype)
        self.traffic = Traffic()

    def start(self, rows_AD: Tensor, kind: Literal["train", "agree"], turn: Turn = None) -> Mixed:
        self.traffic.count(kind, self.topology.round_edges, rows_AD[0].nbytes)
        return Mixed(beside(lambda: _of(self._mixing_TAA, turn) @ rows_AD, rows_AD.device))

    def swap(self, packed_AB: Tensor, kind: Literal["train", "agree"], rows_AD: Tensor, turn: Turn = None) -> Swapped:
        self.traffic.count(kind, self.topology.round_edges, packed_AB[0].nbytes)
        return Swapped(Heard(packed_AB, _of(self._senders_TAK, turn), _of(self._weights_TAK, turn)))

    def reduce(self, root: int, parts: Sequence[Tensors]) -> dict[str, Tensor] | None:
        sums = [dict(part) for part in parts]
        for parent, child in reversed(self.topology.tree_to(root)):
            for name, tensor in sums[child].items():
                self.traffic.count("reduce", 1, tensor.nbytes)
                sums[parent][name] = sums[parent][name] + tensor
        return sums[root]

    def pool(self, root: int, parts: Sequence[Tensors]) -> dict[str, Tensor] | None:
        """Without masks: all agents are in one process, and masks cancel exactly."""
        return self.reduce(root, parts)

    def flood(self, root: int, payload: Tensors | None, check: Check | None = None) -> Flood:
        assert payload is not None, "all agents live here, the root too"
        sends = len(self.topology.tree(root))
        self.traffic.count("flood", sends, sum(value.nbytes for value in payload.values()))
        votes = counted(check(payload), self.gather) if check else None
        return Flood(dict(payload), digest(payload), votes)

    def consensus_error(self, rows_AD: Tensor) -> float:
        return float((rows_AD - rows_AD.mean(0)).square().sum(1).mean())

    def gather(self, rows_A: Tensor) -> Tensor:
        return rows_A


def _of(values_T: Tensor, turn: Turn) -> Tensor:
    """Of the turn whose turn it is. On the device: a captured step takes it from there."""
    return values_T[0] if turn is None else values_T.index_select(0, turn.long().view(1) % len(values_T))[0]
