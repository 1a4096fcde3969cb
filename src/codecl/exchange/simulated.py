"""All agents in one process, on one device: a gossip round is one product with the mixing matrix."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from codecl.exchange.base import Flood, Heard, Tensors, Traffic, digest
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
        self._mixing_AA = torch.from_numpy(topology.mixing).to(device, dtype)
        senders_AK, weights_AK = topology.heard_by(self.agents)
        self._senders_AK = torch.tensor(senders_AK, device=device)
        self._weights_AK = torch.tensor(weights_AK, device=device, dtype=dtype)
        self.traffic = Traffic()

    def start(self, rows_AD: Tensor, kind: Literal["train", "agree"]) -> Mixed:
        self.traffic.count(kind, len(self.topology.edges), rows_AD[0].nbytes)
        return Mixed(beside(lambda: self._mixing_AA @ rows_AD, rows_AD.device))

    def swap(self, packed_AB: Tensor, kind: Literal["train", "agree"], rows_AD: Tensor) -> Swapped:
        self.traffic.count(kind, len(self.topology.edges), packed_AB[0].nbytes)
        return Swapped(Heard(packed_AB, self._senders_AK, self._weights_AK))

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

    def flood(self, root: int, payload: Tensors | None) -> Flood:
        assert payload is not None, "all agents live here, the root too"
        sends = len(self.topology.tree(root))
        self.traffic.count("flood", sends, sum(value.nbytes for value in payload.values()))
        return Flood(dict(payload), digest(payload))

    def consensus_error(self, rows_AD: Tensor) -> float:
        return float((rows_AD - rows_AD.mean(0)).square().sum(1).mean())

    def gather(self, rows_A: Tensor) -> Tensor:
        return rows_A
