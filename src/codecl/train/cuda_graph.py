"""The steps of an epoch: each run as it is, or captured once as a CUDA graph and replayed with no work on the host.

Shapes: A agents of this process, S steps of an epoch, B images of a batch, K numbers that pick an image and its
variation.
"""

import gc
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from codecl.data.sources import Picked
from codecl.exchange import Traffic
from codecl.exchange.base import MessageKind, Sent
from codecl.registry import reason
from codecl.train.state import Carry
from codecl.train.step import Step

WARM_UP = 2  # runs before a capture: libraries choose their kernels and allocate what they keep
# (carry, indices [S, A, B, K] or images read ahead, lr) -> after each step (carry, loss [A]); both hold until the next
RunEpoch = Callable[[Carry, Iterable[Picked], float], Iterator[tuple[Carry, Tensor]]]


class Plain:
    """Each step as it is."""

    def __init__(self, step: Step) -> None:
        self.step = step

    def __call__(self, carry: Carry, picked_S: Iterable[Picked], lr: float) -> Iterator[tuple[Carry, Tensor]]:
        if isinstance(picked_S, Tensor):
            picked_S = picked_S.to(carry.coords_AD.device)
        for picked in picked_S:
            carry, loss_A = self.step(carry, picked, lr)
            yield carry, loss_A


class Replay:
    """A step that reads and writes fixed places, so that it can be captured once and replayed.

    Law: gives what `Plain` gives. Nothing in it waits for the device; what a step sends is counted at every replay."""

    def __init__(self, step: Step, carry: Carry, indices_SABK: Tensor, traffic: Traffic) -> None:
        device = carry.coords_AD.device
        self._step, self._traffic = step, traffic
        self._carry = _copy(carry)
        self._indices_SABK = indices_SABK.to(device)
        self._losses_SA = carry.coords_AD.new_zeros(len(indices_SABK), len(carry.coords_AD))
        self._at = torch.zeros(1, dtype=torch.long, device=device)
        self._lr = carry.coords_AD.new_zeros(())
        self._graph: torch.cuda.CUDAGraph | None = None
        self._sent: Mapping[MessageKind, Sent] = {}  # by one step
        if device.type == "cuda":
            self._capture()

    def __call__(self, carry: Carry, indices_SABK: Iterable[Picked], lr: float) -> Iterator[tuple[Carry, Tensor]]:
        assert isinstance(indices_SABK, Tensor), "only images in memory are picked inside a graph"
        if carry is not self._carry:
            self._put(carry)
        self._indices_SABK.copy_(indices_SABK, non_blocking=True)
        self._lr.fill_(lr)
        self._at.zero_()
        for loss_A in self._losses_SA:
            if self._graph is None:
                self._once()
            else:
                self._graph.replay()
                self._traffic.add(self._sent)
            yield self._carry, loss_A

    def _once(self) -> None:
        indices_ABK = self._indices_SABK.index_select(0, self._at)[0]
        carry, loss_A = self._step(self._carry, indices_ABK, self._lr)
        self._put(carry)
        self._losses_SA.index_copy_(0, self._at, loss_A[None])
        self._at += 1

    def _put(self, carry: Carry) -> None:
        for ours, value in zip(self._carry, carry, strict=True):
            ours.copy_(value)

    def _capture(self) -> None:
        """The step as a graph. The generator of dropout is put back: a captured step draws what a plain one would."""
        device, start = self._lr.device, _copy(self._carry)
        state, beside = torch.cuda.get_rng_state(device), torch.cuda.Stream(device)
        beside.wait_stream(torch.cuda.current_stream())
        with self._traffic.aside(), torch.cuda.stream(beside):
            for _ in range(WARM_UP):
                self._at.zero_()
                self._once()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with _no_garbage(), self._traffic.aside() as self._sent, torch.cuda.graph(graph, stream=beside):
            self._once()
        self._graph = graph
        self._put(start)
        torch.cuda.set_rng_state(state, device)


def _copy(carry: Carry) -> Carry:
    return Carry(*(value.clone(memory_format=torch.contiguous_format) for value in carry))


@contextmanager
def _no_garbage() -> Iterator[None]:
    """What is freed while a graph is captured, an older one say, would spoil it."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def epochs(step: Step, carry: Carry, indices_SABK: Tensor, traffic: Traffic, graph: bool) -> RunEpoch:
    """A graph where that is wanted and possible; what cannot be captured runs step by step, with one warning."""
    if not graph:
        return Plain(step)
    device = carry.coords_AD.device
    state = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        return Replay(step, carry, indices_SABK, traffic)
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        with suppress(RuntimeError):  # a capture that broke may still hold the generator
            if state is not None:
                torch.cuda.set_rng_state(state, device)
        warnings.warn(f"steps are launched one by one: they cannot be captured ({reason(error)})", stacklevel=2)
        return Plain(step)
