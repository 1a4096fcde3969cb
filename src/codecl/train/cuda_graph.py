"""The steps of an epoch: each run as it is, or captured once as a CUDA graph and replayed with no work on the host.

Shapes: A agents of this process, E what a step hands to the next, S steps of an epoch, B images of a batch, K numbers
that pick an image and its variation.
"""

import gc
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from codecl.exchange import Traffic
from codecl.exchange.base import MessageKind, Sent
from codecl.registry import reason
from codecl.train.step import Step

WARM_UP = 2  # runs before a capture: libraries choose their kernels and allocate what they keep
# (carry [A, E], indices [S, A, B, K], lr) -> after each step (carry [A, E], loss [A]); both hold until the next step
RunEpoch = Callable[[Tensor, Tensor, float], Iterator[tuple[Tensor, Tensor]]]


class Plain:
    """Each step as it is."""

    def __init__(self, step: Step) -> None:
        self.step = step

    def __call__(self, carry_AE: Tensor, indices_SABK: Tensor, lr: float) -> Iterator[tuple[Tensor, Tensor]]:
        for indices_ABK in indices_SABK.to(carry_AE.device):
            carry_AE, loss_A = self.step(carry_AE, indices_ABK, lr)
            yield carry_AE, loss_A


class Replay:
    """A step that reads and writes fixed places, so that it can be captured once and replayed.

    Law: gives what `Plain` gives. Nothing in it waits for the device; what a step sends is counted at every replay."""

    def __init__(self, step: Step, carry_AE: Tensor, indices_SABK: Tensor, traffic: Traffic) -> None:
        device = carry_AE.device
        self._step, self._traffic = step, traffic
        self._carry_AE = carry_AE.clone()
        self._indices_SABK = indices_SABK.to(device)
        self._losses_SA = carry_AE.new_zeros(len(indices_SABK), len(carry_AE))
        self._at = torch.zeros(1, dtype=torch.long, device=device)
        self._lr = carry_AE.new_zeros(())
        self._graph: torch.cuda.CUDAGraph | None = None
        self._sent: Mapping[MessageKind, Sent] = {}  # by one step
        if device.type == "cuda":
            self._capture()

    def __call__(self, carry_AE: Tensor, indices_SABK: Tensor, lr: float) -> Iterator[tuple[Tensor, Tensor]]:
        if carry_AE is not self._carry_AE:
            self._carry_AE.copy_(carry_AE)
        self._indices_SABK.copy_(indices_SABK, non_blocking=True)
        self._lr.fill_(lr)
        self._at.zero_()
        for loss_A in self._losses_SA:
            if self._graph is None:
                self._once()
            else:
                self._graph.replay()
                self._traffic.add(self._sent)
            yield self._carry_AE, loss_A

    def _once(self) -> None:
        indices_ABK = self._indices_SABK.index_select(0, self._at)[0]
        carry_AE, loss_A = self._step(self._carry_AE, indices_ABK, self._lr)
        self._carry_AE.copy_(carry_AE)
        self._losses_SA.index_copy_(0, self._at, loss_A[None])
        self._at += 1

    def _capture(self) -> None:
        """The step as a graph. The generator of dropout is put back: a captured step draws what a plain one would."""
        device, start_AE = self._carry_AE.device, self._carry_AE.clone()
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
        self._carry_AE.copy_(start_AE)
        torch.cuda.set_rng_state(state, device)


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


def epochs(step: Step, carry_AE: Tensor, indices_SABK: Tensor, traffic: Traffic, graph: bool) -> RunEpoch:
    """A graph where that is wanted and possible; what cannot be captured runs step by step, with one warning."""
    if not graph:
        return Plain(step)
    state = torch.cuda.get_rng_state(carry_AE.device) if carry_AE.is_cuda else None
    try:
        return Replay(step, carry_AE, indices_SABK, traffic)
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        with suppress(RuntimeError):  # a capture that broke may still hold the generator
            if state is not None:
                torch.cuda.set_rng_state(state, carry_AE.device)
        warnings.warn(f"steps are launched one by one: they cannot be captured ({reason(error)})", stacklevel=2)
        return Plain(step)
