"""Point to point between ranks: tensors that leave and arrive while others compute, and who is named when none comes.

Every wait has an end. A process that dies closes its connections, which shows at once; a machine that vanishes shows
when the wait is over.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from threading import Thread
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor

from codecl.errors import RunFailed
from codecl.exchange.base import Tensors
from codecl.registry import reason

ROUND = timedelta(seconds=60)  # longer than any step is late
BOUNDARY = timedelta(minutes=30)  # at a task's end one rank may grow a large space while the others wait
CLOSED, LATE = re.compile(r"closed by peer|reset by peer|broken pipe", re.I), re.compile(r"timed out", re.I)


class RankLost(RunFailed):
    """Another process of the run is gone."""


class Posted(NamedTuple):
    """Tensors on their way."""

    works: Sequence[tuple[str, Any]]  # of whom, and what says when it is done
    kept: Sequence[Tensor]  # what is sent stays until it is
    beside: bool = False  # a long wait may be in a thread of its own: one that no device's stream has to follow

    def wait(self, patience: timedelta) -> None:
        for name, work in self.works:
            try:
                if self.beside and patience > ROUND:
                    _heedful(work, patience)
                else:
                    work.wait(patience)
            except RuntimeError as error:
                raise _lost(name, error, patience) from error


class Wire:
    """To and from the other ranks. `name` says who a rank is."""

    def __init__(self, device: torch.device, name: Callable[[int], str] = "rank {}".format) -> None:
        self.device, self.name = device, name
        self.sent_bytes = 0  # handed to the network by this process

    def post(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> Posted:
        """One tensor to each of these ranks, one from each of those, all at once."""
        ops = [dist.P2POp(dist.irecv, tensor, peer) for peer, tensor in receives.items()]
        ops += [dist.P2POp(dist.isend, tensor, peer) for peer, tensor in sends.items()]
        self.sent_bytes += sum(tensor.nbytes for tensor in sends.values())
        if not ops:
            return Posted((), ())
        names = [self.name(peer) for peer in (*receives, *sends)]
        try:
            works = dist.batch_isend_irecv(ops)
        except RuntimeError as error:
            raise _lost(" or ".join(dict.fromkeys(names)), error, ROUND) from error
        if len(works) != len(ops):  # NCCL makes one of all
            names = [" or ".join(dict.fromkeys(names))]
        return Posted(list(zip(names, works, strict=True)), list(sends.values()), self.device.type == "cpu")

    def receive(self, peer: int, tensor: Tensor) -> Tensor:
        """`tensor`, filled with what the peer sends."""
        self.post({}, {peer: tensor}).wait(BOUNDARY)
        return tensor

    def say(self, peer: int, text: bytes) -> list[Posted]:
        """Bytes of any length, which `hear` takes."""
        length = torch.tensor([len(text)], device=self.device)
        body = torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)
        return [self.post({peer: tensor}, {}) for tensor in (length, body.to(self.device))]

    def hear(self, peer: int) -> bytes:
        length = int(self.receive(peer, torch.zeros(1, dtype=torch.long, device=self.device)))
        text = self.receive(peer, torch.empty(length, dtype=torch.uint8, device=self.device))
        return bytes(text.cpu().numpy())


def _heedful(work: Any, patience: timedelta) -> None:
    """Wait, but heed signals: Python handles them between its own instructions only, not inside a library's wait."""
    failed: list[RuntimeError] = []

    def wait() -> None:
        try:
            work.wait(patience)
        except RuntimeError as error:
            failed.append(error)

    thread = Thread(target=wait, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.2)
    if failed:
        raise failed[0]


def packed(tensors: Tensors) -> bytes:
    """As safetensors. Law: unpacked undoes it, bit for bit."""
    return save({name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()})


def unpacked(data: bytes, device: torch.device) -> dict[str, Tensor]:
    return {name: value.clone().to(device) for name, value in load(data).items()}


def _lost(name: str, error: RuntimeError, patience: timedelta) -> RankLost:
    why = reason(error)
    if CLOSED.search(str(error)):
        why = "its connection closed"
    elif LATE.search(str(error)):
        why = f"nothing came for {patience.total_seconds():.0f} s"
    return RankLost(f"{name} is gone ({why})")
