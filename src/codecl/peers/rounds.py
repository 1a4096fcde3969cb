"""A gossip round of one agent: a row leaves, and those that arrive are summed, or handed on where they are bytes.

Shapes: D numbers of a row; H messages of B bytes, the agent's own first; K senders; the one agent here is A = 1.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from codecl.exchange.base import Heard

if TYPE_CHECKING:
    from codecl.peers.gossiping import Gossiping


class SentRow(NamedTuple):
    """Our row of a step, as it left, and whom its round hears."""

    row: Tensor  # numbers [D] or bytes [B]
    weights: Mapping[int, float]
    pairs: Mapping[int, bool]  # neighbours whose link goes both ways -> whether we told them that we hear them


class GossipRound(NamedTuple):
    """A round of rows as they are."""

    node: "Gossiping"
    sent: SentRow

    def wait(self) -> Tensor:
        """The weighted sum [1, D]; the weight of whoever is not heard goes to ourselves."""
        row_D, weights, _ = self.sent
        heard = self.node.collect(self.sent)
        mixed_D = (1 - sum(weights[peer] for peer in heard)) * row_D
        for peer, other_D in heard.items():
            mixed_D = mixed_D.add(other_D, alpha=weights[peer])
        far = sum(float((row_D - other_D).square().sum()) for other_D in heard.values())
        self.node.spread = far / max(1, len(heard))
        return mixed_D[None]


class PackedRound:
    """A round of bytes, which others unpack and mix."""

    def __init__(self, node: "Gossiping", sent: SentRow, row_D: Tensor) -> None:
        self.node, self.sent, self.row_D, self.weight = node, sent, row_D, 0.0

    def wait(self) -> Heard:
        heard = self.node.collect(self.sent)
        self.weight = sum(self.sent.weights[peer] for peer in heard)
        return as_heard(self.sent, heard, self.row_D)

    def mixed(self, mixed_AD: Tensor, step: float) -> None:
        """The squared distance to the weighted mean of those who were heard; what could not be read of them counts as
        no distance."""
        far = float((mixed_AD[0] - self.row_D).square().sum())
        self.node.spread = far / (step * self.weight) ** 2 if self.weight else 0.0


def as_heard(sent: SentRow, heard: Mapping[int, Tensor], like: Tensor) -> Heard:
    """Laws: whoever is not heard has weight 0 and stands for our own row; there is a sender, whoever is heard."""
    places = {peer: place for place, peer in enumerate(heard, 1)}
    senders = [places.get(peer, 0) for peer in sent.weights] or [0]
    weights = [weight if peer in places else 0.0 for peer, weight in sent.weights.items()] or [0.0]
    packed_HB = torch.stack([sent.row, *heard.values()])
    return Heard(packed_HB, torch.tensor([senders], device=like.device), like.new_tensor([weights]))
