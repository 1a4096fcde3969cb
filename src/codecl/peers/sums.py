"""The sums of neighbours that arrived and wait to be used, plain and under masks, and which sum of a stage is next.
Their node calls this under its lock."""

from collections import defaultdict
from collections.abc import Collection
from typing import NamedTuple

from torch import Tensor

from codecl.exchange.base import Tensors
from codecl.peers import limits
from codecl.peers.statements import PoolId

MAX_SUMS = 32  # of a neighbour, that wait to be used


class SumKey(NamedTuple):
    """Which of the sums of a stage, and whose."""

    stage: int
    root: int
    number: int
    child: int


class ReceivedSums:
    """Laws: of a neighbour no more than MAX_SUMS are kept, nor more bytes than may wait for it: its oldest make room;
    of sums under masks the newest. All of a stage stay until it is over: it may have to be begun again, and then has
    the same ones."""

    def __init__(self) -> None:
        self.max_bytes = 1 << 40  # of any message
        self.plain: dict[SumKey, Tensors] = {}
        self._masked: dict[int, tuple[str, Tensors]] = {}  # by child: of which roster, and what
        self._totals: dict[PoolId, dict[str, Tensor]] = {}  # of sums under masks for us
        self._begun: dict[tuple[int, int], int] = defaultdict(int)  # by stage and root

    def next_of(self, stage: int, root: int) -> PoolId:
        """The next sum for `root` in this stage."""
        self._begun[stage, root] += 1
        return PoolId(stage, root, self._begun[stage, root] - 1)

    def begin_again(self) -> None:
        """The stage."""
        self._begun.clear()

    def keep(self, key: SumKey, tensors: Tensors) -> None:
        self.plain[key] = tensors
        known = [one for one in self.plain if one.child == key.child]
        sizes = [sum(value.nbytes for value in self.plain[one].values()) for one in known]
        while len(known) > MAX_SUMS or (len(known) > 1 and sum(sizes) > limits.waiting_bytes(self.max_bytes)):
            del self.plain[known.pop(0)], sizes[0]

    def keep_masked(self, child: int, roster: str, tensors: Tensors) -> None:
        self._masked[child] = roster, tensors

    def of(self, key: SumKey) -> Tensors | None:
        return self.plain.get(key)

    def of_roster(self, roster: str) -> dict[int, Tensors]:
        """By child, sums under masks of this attempt."""
        return {child: sums for child, (known, sums) in self._masked.items() if known == roster}

    def keep_total(self, pool: PoolId, total: Tensors) -> None:
        self._totals[pool] = dict(total)

    def total(self, pool: PoolId) -> dict[str, Tensor] | None:
        return self._totals.get(pool)

    def forget_of(self, children: Collection[int]) -> None:
        self.plain = {key: tensors for key, tensors in self.plain.items() if key.child not in children}
        self._masked = {child: sums for child, sums in self._masked.items() if child not in children}

    def new_stage(self, stage: int) -> None:
        self.plain = {key: tensors for key, tensors in self.plain.items() if key.stage >= stage}
        self._masked.clear()
        self._totals.clear()
