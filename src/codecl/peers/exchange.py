"""The exchange of one agent a process, linked to its neighbours and to nobody else. Training goes on when a neighbour
is slow, cut off or dead; whoever comes back takes up the others' task, commit and step.

Shapes: D numbers of a message; the one agent here is a row of its own, [1, D].
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from codecl.exchange.base import Flood, Tensors, digest
from codecl.exchange.topology import Topology
from codecl.peers.decisions import Timeouts
from codecl.peers.history import NodeIdentity
from codecl.peers.node import GossipRound, Node


class Peers:
    """Law: with nobody missing, gives what `simulated` gives to this agent, and counts what leaves it."""

    on_device = False

    def __init__(
        self, topology: Topology, dtype: torch.dtype, device: torch.device, identity: NodeIdentity, timeouts: Timeouts
    ) -> None:
        self.topology, self.device = topology, device
        self.agents: Sequence[int] = (identity.agent,)
        self.node = Node(topology, identity, timeouts)
        self.traffic = self.node.traffic

    def start(self, rows_AD: Tensor, kind: Literal["train", "agree"]) -> GossipRound:
        self.node.keep_pace()
        return self.node.send_row(rows_AD[0].detach(), kind)

    def reduce(self, root: int, parts: Sequence[Tensors]) -> dict[str, Tensor] | None:
        """Sums of those who are reached, which may be fewer than all agents."""
        sums = self.node.reduce(root, parts[0])
        return dict(sums) if root in self.agents else None

    def flood(self, root: int, payload: Tensors | None) -> Flood | None:
        """What `root` grew, signed; None where it is gone."""
        if payload is None:
            commit = self.node.await_commit(root)
        else:
            tensors = {name: value.detach().cpu().contiguous() for name, value in payload.items()}
            commit = self.node.sign_commit(tensors)
        if commit is None:
            return None
        self.node.adopt(commit)
        self.node.forward(commit)
        arrived = {name: value.to(self.device) for name, value in commit.tensors.items()}
        return Flood(arrived, digest(commit.tensors))

    def consensus_error(self, rows_AD: Tensor) -> float:
        """No peer knows the average: its mean squared distance to the neighbours that it heard last."""
        return self.node.spread

    def gather(self, rows_A: Tensor) -> Tensor:
        return rows_A
