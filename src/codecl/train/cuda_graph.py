"""The steps of an epoch: each run as it is, or captured once as a CUDA graph and replayed with no work on the host.

Shapes: A agents of this process, E what a step hands to the next, S steps of an epoch, B images of a batch, K numbers
that pick an image and its variation.
"""

import gc
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Protocol

import torch
from torch import Tensor

from codecl.exchange import Traffic
from codecl.exchange.base import Kind, Sent
from codecl.methods.base import LR
from codecl.registry import reason

WARM_UP = 2  # runs before a capture: libraries choose their kernels and allocate what they keep
Stepping = tuple[Tensor, Tensor, Tensor | None]  # carry, loss, and what a step that is watched tells beside it
Step = Callable[[Tensor, Tensor, LR], Stepping]  # of carry, indices, lr


class Epochs(Protocol):
    """How an epoch's steps are run; the last of them watched, where that is wanted."""

    seen_A: Tensor | None  # in the last step of an epoch, where it is watched

    def __call__(self, carry_AE: Tensor, indices_SABK: Tensor, lr: float) -> Iterator[tuple[Tensor, Tensor]]:
        """(what goes to the next step [A, E], loss [A]) after each step. Both hold until the next step."""
        ...


class Plain:
    """Each step as it is."""

    def __init__(self, step: Step, watched: Step | None = None) -> None:
        self.step, self.watched = step, watched
        self.seen_A: Tensor | None = None

    def __call__(self, carry_AE: Tensor, indices_SABK: Tensor, lr: float) -> Iterator[tuple[Tensor, Tensor]]:
        for left, indices_ABK in zip(reversed(range(len(indices_SABK))), indices_SABK.to(carry_AE.device), strict=True):
            step = self.watched if self.watched and left == 0 else self.step
            carry_AE, loss_A, self.seen_A = step(carry_AE, indices_ABK, lr)
            yield carry_AE, loss_A


class Replay:
    """A step that reads and writes fixed places, so that it can be captured once and replayed.

    Law: gives what `Plain` gives. Nothing in it waits for the device; what a step sends is counted at every replay."""

    def __init__(
        self, step: Step, carry_AE: Tensor, indices_SABK: Tensor, traffic: Traffic, watched: Step | None = None
    ) -> None:
        device = carry_AE.device
        self._step, self._watched, self._traffic = step, watched, traffic
        self.seen_A: Tensor | None = carry_AE.new_zeros(len(carry_AE)) if watched else None
        self._carry_AE, self._indices_SABK = carry_AE.clone(), indices_SABK.to(device)
        self._losses_SA = carry_AE.new_zeros(len(indices_SABK), len(carry_AE))
        self._at, self._lr = torch.zeros(1, dtype=torch.long, device=device), carry_AE.new_zeros(())
        last, self._captured = watched is not None, dict[bool, "Captured"]()  # by whether the step is watched
        if device.type == "cuda":
            for kind in (False, True) if last else (False,):
                self._captured[kind] = self._capture(kind)

    def __call__(self, carry_AE: Tensor, indices_SABK: Tensor, lr: float) -> Iterator[tuple[Tensor, Tensor]]:
        if carry_AE is not self._carry_AE:
            self._carry_AE.copy_(carry_AE)
        self._indices_SABK.copy_(indices_SABK, non_blocking=True)
        self._lr.fill_(lr)
        self._at.zero_()
        for left, loss_A in zip(reversed(range(len(self._losses_SA))), self._losses_SA, strict=True):
            self._again(watched=self._watched is not None and left == 0)
            yield self._carry_AE, loss_A

    def _again(self, watched: bool) -> None:
        if not self._captured:
            return self._once(watched)
        graph, sent = self._captured[watched]
        graph.replay()
        self._traffic.add(sent)

    def _once(self, watched: bool) -> None:
        indices_ABK = self._indices_SABK.index_select(0, self._at)[0]
        step = self._watched if self._watched and watched else self._step
        carry_AE, loss_A, seen_A = step(self._carry_AE, indices_ABK, self._lr)
        if self.seen_A is not None and seen_A is not None:
            self.seen_A.copy_(seen_A)
        self._carry_AE.copy_(carry_AE)
        self._losses_SA.index_copy_(0, self._at, loss_A[None])
        self._at += 1

    def _capture(self, watched: bool) -> "Captured":
        """The step as a graph. The generator of dropout is put back: a captured step draws what a plain one would."""
        device, start = self._carry_AE.device, self._carry_AE.clone()
        state, beside = torch.cuda.get_rng_state(device), torch.cuda.Stream(device)
        beside.wait_stream(torch.cuda.current_stream())
        with self._traffic.aside(), torch.cuda.stream(beside):
            for _ in range(WARM_UP):
                self._at.zero_()
                self._once(watched)
        torch.cuda.current_stream().wait_stream(beside)
        graph, pool = torch.cuda.CUDAGraph(), next((earlier.pool() for earlier, _ in self._captured.values()), None)
        with _no_garbage(), self._traffic.aside() as sent, torch.cuda.graph(graph, pool=pool, stream=beside):
            self._once(watched)
        self._carry_AE.copy_(start)
        torch.cuda.set_rng_state(state, device)
        return graph, sent


Captured = tuple[torch.cuda.CUDAGraph, Mapping[Kind, Sent]]  # a step, and what it sends


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


def epochs(
    step: Step, carry_AE: Tensor, indices_SABK: Tensor, traffic: Traffic, graph: bool, watched: Step | None = None
) -> Epochs:
    """A graph where that is wanted and possible; what cannot be captured runs step by step, with one warning.
    `watched`: does what `step` does and tells more, in the last step of each epoch."""
    if not graph:
        return Plain(step, watched)
    state = torch.cuda.get_rng_state(carry_AE.device) if carry_AE.is_cuda else None
    try:
        return Replay(step, carry_AE, indices_SABK, traffic, watched)
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        with suppress(RuntimeError):  # a capture that broke may still hold the generator
            if state is not None:
                torch.cuda.set_rng_state(state, carry_AE.device)
        warnings.warn(f"steps are launched one by one: they cannot be captured ({reason(error)})", stacklevel=2)
        return Plain(step, watched)
