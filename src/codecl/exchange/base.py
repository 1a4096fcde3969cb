"""What an exchange does. The loop, the methods and the metrics know these verbs and nothing else.

Shapes: A agents of this process (rows, in the order of `agents`), D numbers of a row, H messages that are heard,
each of B bytes, K senders that an agent hears at most.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from codecl.errors import RunFailed

OBJECTION = 200  # bytes of what an agent has against a flood, in words
MessageKind = Literal["train", "agree", "reduce", "flood"]
Tensors = Mapping[str, Tensor]
Turn = Tensor | None  # of a graph that changes: how many rounds were before, a number on the device


class Sent(NamedTuple):
    """Messages that left agents, a directed edge each, and their bytes."""

    messages: int = 0
    bytes: int = 0


class Traffic:
    """What leaves, counted where it leaves, by kind. `everywhere`: from what left here to what left all processes."""

    def __init__(self, everywhere: Callable[[Sent], Sent] | None = None) -> None:
        self._sent: dict[MessageKind, Sent] = {}
        self._everywhere = everywhere

    def count(self, kind: MessageKind, messages: int, size: int) -> None:
        """So many messages of so many bytes each."""
        self.add({kind: Sent(messages, messages * size)})

    def take(self, kind: MessageKind) -> dict[str, int]:
        """{messages, bytes} of this kind since the last look, of all agents; all processes look at the same time."""
        sent = self._sent.pop(kind, Sent())
        return (self._everywhere(sent) if self._everywhere else sent)._asdict()

    @contextmanager
    def aside(self) -> Iterator[dict[MessageKind, Sent]]:
        """What leaves in here is not counted but handed out, for `add`."""
        before = self._sent
        self._sent = {}
        try:
            yield self._sent
        finally:
            self._sent = before

    def add(self, sent: Mapping[MessageKind, Sent]) -> None:
        """Count this once more."""
        for kind, (messages, size) in sent.items():
            before = self._sent.get(kind, Sent())
            self._sent[kind] = Sent(before.messages + messages, before.bytes + size)


Check = Callable[[Tensors], Sequence[str]]  # what each agent of this process has against a flood; empty: nothing


class Votes(NamedTuple):
    """On what an agent flooded. Law: it stands unless more than half of the voters object."""

    voters: int  # all who live
    objections: Mapping[int, str]  # by agent, in words

    @property
    def refused(self) -> bool:
        return 2 * len(self.objections) > self.voters


class Flood(NamedTuple):
    """What arrived of a flood: its tensors, the digest that its root announced, and how agents voted on it."""

    tensors: dict[str, Tensor]
    digest: str
    votes: Votes | None = None  # None: it is believed

    @property
    def stands(self) -> bool:
        return self.votes is None or not self.votes.refused


class Pending(Protocol):
    """A gossip round on its way."""

    def wait(self) -> Tensor:
        """The neighbour-weighted sums [A, D]."""


class PendingMix(NamedTuple):
    """A round on its way; `wait` gives the mixed rows and what is remembered for the next round."""

    wait: Callable[[], tuple[Tensor, Tensor]]


class Heard(NamedTuple):
    """Messages that arrived: those of agent i's senders are `packed_HB[senders_AK[i]]`, weight 0: none."""

    packed_HB: Tensor
    senders_AK: Tensor
    weights_AK: Tensor


class PendingSwap(Protocol):
    """Bytes on their way."""

    def wait(self) -> Heard:
        """What arrived."""

    def mixed(self, mixed_AD: Tensor, step: float) -> None:
        """Be told what the rows became, with this step towards what was heard. Watching only."""


class Exchange(Protocol):
    """Rows are agents of this process; bytes are counted where a message leaves, from the tensor that leaves."""

    agents: Sequence[int]  # of this process, by their number in the topology
    traffic: Traffic
    on_device: bool  # a round is work of the device alone: a step can be captured and replayed
    lossy: bool  # messages may be lost: one that cannot be read does not end a run

    def start(self, rows_AD: Tensor, kind: Literal["train", "agree"], turn: Turn = None) -> Pending:
        """Send each row to those who hear it. `wait` gives W_mix · rows."""

    def swap(
        self, packed_AB: Tensor, kind: Literal["train", "agree"], rows_AD: Tensor, turn: Turn = None
    ) -> PendingSwap:
        """Send the bytes of each agent to those who hear it. `rows_AD`: what they stand for; it does not leave, but for
        an agent that joins the others in the middle of a task."""

    def reduce(self, root: int, parts: Sequence[Tensors]) -> dict[str, Tensor] | None:
        """Sum named tensors of all agents up `root`'s tree; None where `root` does not live. One mapping an agent."""

    def pool(self, root: int, parts: Sequence[Tensors]) -> dict[str, Tensor] | None:
        """`reduce` of whole numbers (int64), modulo 2⁶⁴, such that no agent can see another's, only the sum of all."""

    def flood(self, root: int, payload: Tensors | None, check: Check | None = None) -> Flood | None:
        """`root`'s tensors and their digest, as they arrive here along its breadth-first tree; None: `root` is gone.
        With a check all agents vote on them, and whether they stand is the same everywhere."""

    def consensus_error(self, rows_AD: Tensor) -> float:
        """Mean squared distance to the average of all agents. Watching only: not part of the algorithm, not counted."""

    def gather(self, rows_A: Tensor) -> Tensor:
        """The rows of all agents, here. Watching only, not counted."""


def flooded(
    exchange: Exchange, root: int, payload: Tensors | None, task: int, check: Check | None = None
) -> Flood | None:
    """What `root` floods at a task's end, checked by its digest: what arrives damaged is an error, never used."""
    flood = exchange.flood(root, payload, check)
    if flood is not None and digest(flood.tensors) != flood.digest:
        raise RunFailed(f"task {task + 1}: the flood of agent {root} arrived damaged (its digest differs)")
    return flood


def counted(objections: Sequence[str], gather: Callable[[Tensor], Tensor]) -> Votes:
    """The votes of all agents, from those of this process: texts travel as rows of bytes."""
    rows_AB = torch.zeros(len(objections), OBJECTION, dtype=torch.int64)
    for row_B, text in zip(rows_AB, objections, strict=True):
        letters = text.encode()[:OBJECTION]
        row_B[: len(letters)] = torch.tensor(list(letters))
    texts = [bytes(row).rstrip(b"\0").decode(errors="ignore") for row in gather(rows_AB).tolist()]
    return Votes(len(texts), {agent: text for agent, text in enumerate(texts) if text})


def digest(payload: Tensors) -> str:
    """SHA-256 of names, types, shapes and values. Law: equal if and only if the tensors are equal, bit for bit."""
    out = hashlib.sha256()
    for name in sorted(payload):
        tensor = payload[name].detach().cpu().contiguous()
        out.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        out.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return out.hexdigest()
