"""Agents spread over the ranks of `torch.distributed`: only rows that another rank's agents hear move, while the
gradient is computed.

Shapes: A agents of this rank, D numbers or B bytes of a message, H agents that are heard here.
"""

import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from codecl.errors import ConfigError
from codecl.exchange.base import Check, Flood, Heard, Sent, Tensors, Traffic, Turn, counted, digest
from codecl.exchange.cluster.wire import BOUNDARY, ROUND, Posted, Wire, packed, unpacked
from codecl.exchange.topology import Topology


def blocks(agents: int, ranks: int) -> list[range]:
    """The agents of each rank, in order. Law: every agent once, sizes differ by at most one."""
    if ranks > agents:
        raise ConfigError(f"agents: {agents} cannot be spread over {ranks} ranks; start at most {agents} processes")
    small, more = divmod(agents, ranks)
    starts = [rank * small + min(rank, more) for rank in range(ranks + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]


class HeardHere(NamedTuple):
    """Who hears whom in a turn of the graph, as this rank sees it."""

    sends: dict[int, Tensor]  # to each rank: these rows of ours
    receives: Counter[int]  # from each rank: so many rows
    leaving: int  # directed edges that leave agents of this rank
    senders_AK: Tensor
    weights_AK: Tensor
    mixing_AA: Tensor
    mixing_AH: Tensor


class PendingRound(NamedTuple):
    """A gossip round on its way: own rows are here, those of others arrive."""

    cluster: "Cluster"
    here: HeardHere
    rows_AD: Tensor
    heard_HD: Tensor
    posted: Posted

    def wait(self) -> Tensor:
        """Σⱼ wᵢⱼ xⱼ over the agents j that i hears, and i itself."""
        mixed_AD = self.here.mixing_AA @ self.rows_AD  # others may still be on their way
        self.cluster.await_round(self.posted)
        return mixed_AD.addmm_(self.here.mixing_AH, self.heard_HD) if len(self.heard_HD) else mixed_AD


class PendingSwap(NamedTuple):
    """Bytes on their way."""

    cluster: "Cluster"
    here: HeardHere
    packed_AB: Tensor
    heard_HB: Tensor
    posted: Posted

    def wait(self) -> Heard:
        self.cluster.await_round(self.posted)
        packed_HB = torch.cat([self.packed_AB, self.heard_HB])
        return Heard(packed_HB, self.here.senders_AK, self.here.weights_AK)

    def mixed(self, mixed_AD: Tensor, step: float) -> None:
        pass


class Cluster:
    """Law: gives what `simulated` gives, and counts what it counts, whatever the blocks."""

    on_device = False  # a round is work of the network too
    lossy = False

    def __init__(self, topology: Topology, dtype: torch.dtype, device: torch.device, rank: int, size: int) -> None:
        self.topology, self.rank, self.size = topology, rank, size
        self.blocks = blocks(topology.agents, size)
        self.agents: Sequence[int] = self.blocks[rank]
        self.home = {agent: number for number, block in enumerate(self.blocks) for agent in block}
        self.wire = Wire(device, self._name)
        self.traffic = Traffic(self._everywhere)
        self.waited_s = 0.0  # for rows of other ranks, in all rounds
        self._turns = [self._turn(turn, dtype, device) for turn in range(len(topology.turns))]

    def _turn(self, turn: int, dtype: torch.dtype, device: torch.device) -> HeardHere:
        edges = self.topology.edges_of(turn)
        crossing = sorted({(self.home[i], j) for j, i in edges if self.home[i] != self.home[j]})
        ours = [(to, j - self.agents[0]) for to, j in crossing if j in self.agents]
        heard = [j for hearer, j in crossing if hearer == self.rank]  # in order: those of a rank lie side by side
        mixing_AN = torch.from_numpy(self.topology.turns[turn])[list(self.agents)].to(device, dtype)
        place = {agent: row for row, agent in enumerate([*self.agents, *heard])}  # own rows, then those of others
        senders_AK, weights_AK = self.topology.heard_by(self.agents, turn)
        return HeardHere(
            sends={to: torch.tensor([row for hearer, row in ours if hearer == to], device=device) for to, _ in ours},
            receives=Counter(self.home[j] for j in heard),
            leaving=sum(j in self.agents for j, _ in edges),
            senders_AK=torch.tensor([[place[j] for j in senders] for senders in senders_AK], device=device),
            weights_AK=torch.tensor(weights_AK, device=device, dtype=dtype),
            mixing_AA=mixing_AN[:, list(self.agents)],
            mixing_AH=mixing_AN[:, heard],
        )

    def start(self, rows_AD: Tensor, kind: Literal["train", "agree"], turn: Turn = None) -> PendingRound:
        here = self._of(turn)
        return PendingRound(self, here, rows_AD, *self._post(here, rows_AD, kind))

    def swap(
        self, packed_AB: Tensor, kind: Literal["train", "agree"], rows_AD: Tensor, turn: Turn = None
    ) -> PendingSwap:
        here = self._of(turn)
        return PendingSwap(self, here, packed_AB, *self._post(here, packed_AB, kind))

    def _of(self, turn: Turn) -> HeardHere:
        return self._turns[0 if turn is None else int(turn) % len(self._turns)]

    def _post(self, here: HeardHere, rows_AD: Tensor, kind: Literal["train", "agree"]) -> tuple[Tensor, Posted]:
        """Each row to the ranks whose agents hear it; where those of others arrive."""
        self.traffic.count(kind, here.leaving, rows_AD[0].nbytes)
        heard_HD = rows_AD.new_empty(here.mixing_AH.shape[1], rows_AD.shape[1])
        parts = heard_HD.split(list(here.receives.values())) if here.receives else ()
        sends = {peer: rows_AD[which] for peer, which in here.sends.items()}
        return heard_HD, self.wire.post(sends, dict(zip(here.receives, parts, strict=True)))

    def await_round(self, posted: Posted) -> None:
        began = time.perf_counter()
        posted.wait(ROUND)
        self.waited_s += time.perf_counter() - began

    def reduce(self, root: int, parts: Sequence[Tensors]) -> dict[str, Tensor] | None:
        """Additions in the order of `simulated`. All ranks go through the same edges in the same order."""
        sums = dict(zip(self.agents, map(dict, parts), strict=True))
        posted: list[Posted] = []
        for parent, child in reversed(self.topology.tree_to(root)):
            arrived: dict[str, Tensor] = {}
            if child in sums:
                arrived = sums.pop(child)
                for tensor in arrived.values():
                    self.traffic.count("reduce", 1, tensor.nbytes)
                if parent not in sums:
                    posted += self.wire.say(self.home[parent], packed(arrived))
            elif parent in sums:
                arrived = unpacked(self.wire.hear(self.home[child]), self.wire.device)
            if parent in sums:
                sums[parent] = {name: value + arrived[name] for name, value in sums[parent].items()}
        for post in posted:
            post.wait(BOUNDARY)
        return sums.get(root)

    def pool(self, root: int, parts: Sequence[Tensors]) -> dict[str, Tensor] | None:
        """Every agent's numbers under masks, with keys that are made for this sum."""
        from codecl.exchange import masks

        keys = {agent: masks.new_key() for agent in self.agents}
        own_AB = torch.tensor([list(masks.public(key)) for key in keys.values()], device=self.wire.device)
        publics = {agent: bytes(row) for agent, row in enumerate(self.gather(own_AB).tolist())}
        hidden = [
            masks.masked(part, agent, keys[agent], publics, b"ranks")
            for agent, part in zip(self.agents, parts, strict=True)
        ]
        return self.reduce(root, hidden)

    def flood(self, root: int, payload: Tensors | None, check: Check | None = None) -> Flood:
        """A rank hears it once, along the first edge of `root`'s tree that leads to it, and sends it on."""
        tree = self.topology.tree(root)
        above: dict[int, int] = {}  # rank -> the one it hears from
        for parent, child in tree:
            if self.home[child] != self.home[root]:
                above.setdefault(self.home[child], self.home[parent])
        if self.rank in above:
            announced = self.wire.hear(above[self.rank]).decode()
            data = self.wire.hear(above[self.rank])
            arrived = unpacked(data, self.wire.device)
        else:
            assert payload is not None, "the root lives here"
            announced = digest(payload)
            data = packed(payload)
            arrived = dict(payload)
        below = [rank for rank, hears in above.items() if hears == self.rank]
        posted = [post for rank in below for text in (announced.encode(), data) for post in self.wire.say(rank, text)]
        size = sum(value.nbytes for value in arrived.values())
        self.traffic.count("flood", sum(parent in self.agents for parent, _ in tree), size)
        for post in posted:
            post.wait(BOUNDARY)
        votes = counted(check(arrived), lambda rows: self.gather(rows.to(self.wire.device)).cpu()) if check else None
        return Flood(arrived, announced, votes)

    def consensus_error(self, rows_AD: Tensor) -> float:
        mean_D = self._summed(rows_AD.sum(0)) / self.topology.agents
        return float(self._summed((rows_AD - mean_D).square().sum()) / self.topology.agents)

    def gather(self, rows_A: Tensor) -> Tensor:
        everyone = rows_A.new_zeros(self.topology.agents, *rows_A.shape[1:])
        everyone[list(self.agents)] = rows_A
        return self._summed(everyone)

    def _summed(self, values: Tensor) -> Tensor:
        """The sum over ranks, the same at all, bit for bit: up a binary tree of ranks and down again. For watching."""
        below = range(2 * self.rank + 1, min(2 * self.rank + 3, self.size))
        for peer in below:
            values = values + self.wire.receive(peer, torch.empty_like(values))
        if self.rank:
            above = (self.rank - 1) // 2
            self.wire.post({above: values}, {}).wait(BOUNDARY)
            values = self.wire.receive(above, torch.empty_like(values))
        self.wire.post(dict.fromkeys(below, values), {}).wait(BOUNDARY)
        return values

    def _everywhere(self, sent: Sent) -> Sent:
        return Sent(*self._summed(torch.tensor(sent, device=self.wire.device)).tolist())

    def _name(self, rank: int) -> str:
        block = self.blocks[rank]
        return f"rank {rank} (agents {block[0]}-{block[-1]})" if len(block) > 1 else f"rank {rank} (agent {block[0]})"
