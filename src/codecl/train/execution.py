"""How many agents share a device: their losses as one computation, in streams of their own, or one after another; and
how exactly it multiplies. Mixing, agreement, growth and floods are always exact; training may be less so.

Law: all three give the same losses and gradients. Shapes: A agents of this process, B images of a batch.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import vmap

from codecl.data.inputs import Inputs, take
from codecl.space.layout import Parameters

Execution = Literal["stacked", "streams", "loop"]
Precision = Literal["highest", "tf32", "bf16"]
Loss = Callable[[Parameters, Inputs, Tensor], Tensor]  # of one agent: its own parameters, images and labels
MAX_STREAMS = 16  # of agents that share a device: more only take turns


def stacked(loss: Loss, own: Parameters, images_AB: Inputs, labels_AB: Tensor) -> Tensor:
    """All agents as one computation."""
    losses_A: Tensor = vmap(loss, randomness="different")(own, images_AB, labels_AB)
    return losses_A


def loop(loss: Loss, own: Parameters, images_AB: Inputs, labels_AB: Tensor) -> Tensor:
    """One agent after another."""
    if isinstance(images_AB, Tensor) and not images_AB.is_cuda and images_AB.ndim == 5:
        # a CPU's convolutions are faster with channels last
        images_AB = images_AB.flatten(0, 1).contiguous(memory_format=torch.channels_last).view_as(images_AB)
    return torch.stack([loss(*agent) for agent in each_agent(own, images_AB, labels_AB)])


def in_streams(loss: Loss, own: Parameters, images_AB: Inputs, labels_AB: Tensor) -> Tensor:
    """Each agent in a stream of its own; the backward pass follows each into its stream."""
    main = torch.cuda.current_stream()
    own_streams = streams("agents", min(len(labels_AB), MAX_STREAMS))
    losses = []
    for stream in own_streams:
        stream.wait_stream(main)
    for number, agent in enumerate(each_agent(own, images_AB, labels_AB)):
        with torch.cuda.stream(own_streams[number % len(own_streams)]):
            losses.append(loss(*agent))
    for stream in own_streams:
        main.wait_stream(stream)
    return torch.stack(losses)


EXECUTIONS: dict[Execution, Callable[[Loss, Parameters, Inputs, Tensor], Tensor]] = {
    "stacked": stacked,
    "streams": in_streams,
    "loop": loop,
}


def each_agent(own: Parameters, images_AB: Inputs, labels_AB: Tensor) -> Iterator[tuple[Parameters, Inputs, Tensor]]:
    """(parameters, images, labels) of one agent after another."""
    columns = {name: value.unbind() for name, value in own.items()}
    for agent, labels_B in enumerate(labels_AB):
        yield {name: rows[agent] for name, rows in columns.items()}, take(images_AB, agent), labels_B


@cache
def streams(purpose: str, count: int) -> tuple[torch.cuda.Stream, ...]:
    """The same streams for every task: libraries keep a workspace for each."""
    return tuple(torch.cuda.Stream() for _ in range(count))


@contextmanager
def multiplying(precision: Precision, device: torch.device) -> Iterator[None]:
    """Float32 products with float32 operands (highest), or with operands rounded to 10 bits where the GPU is faster so.

    A CPU multiplies float32 exactly. `bf16` rounds as tf32 does; what it casts besides, anywhere, `Agents` casts."""
    switches = _switches() if device.type == "cuda" else []
    before = [getattr(owner, name) for owner, name, _, _ in switches]
    for owner, name, rounded, exact in switches:
        setattr(owner, name, exact if precision == "highest" else rounded)
    try:
        yield
    finally:
        for (owner, name, _, _), value in zip(switches, before, strict=True):
            setattr(owner, name, value)


def _switches() -> list[tuple[Any, str, Any, Any]]:
    """(where, name, rounded, exact) for products and convolutions. PyTorch has two sets of names for it and forbids to
    mix them: the older, unless the caller has used the newer."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    try:
        _ = matmul.allow_tf32, cudnn.allow_tf32
        return [(owner, "allow_tf32", True, False) for owner in (matmul, cudnn)]
    except RuntimeError:
        return [(owner, "fp32_precision", "tf32", "ieee") for owner in (matmul, getattr(cudnn, "conv"))]  # noqa: B009
