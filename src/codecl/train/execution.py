"""How many agents share a device: their losses as one computation, in streams of their own, or one after another.

Law: all three give the same losses and gradients. Shapes: A agents of this process, B images of a batch.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Literal

import torch
from torch import Tensor
from torch.func import vmap

from codecl.space.layout import Parameters

Execution = Literal["stacked", "streams", "loop"]
Loss = Callable[[Parameters, Tensor, Tensor], Tensor]  # of one agent: its own parameters, images and labels
MAX_STREAMS = 16  # of agents that share a device: more only take turns


def stacked(loss: Loss, own: Parameters, images_AB: Tensor, labels_AB: Tensor) -> Tensor:
    """All agents as one computation."""
    losses_A: Tensor = vmap(loss, randomness="different")(own, images_AB, labels_AB)
    return losses_A


def loop(loss: Loss, own: Parameters, images_AB: Tensor, labels_AB: Tensor) -> Tensor:
    """One agent after another."""
    if not images_AB.is_cuda and images_AB.ndim == 5:  # a CPU's convolutions are faster with channels last
        images_AB = images_AB.flatten(0, 1).contiguous(memory_format=torch.channels_last).view_as(images_AB)
    return torch.stack([loss(*agent) for agent in each_agent(own, images_AB, labels_AB)])


def in_streams(loss: Loss, own: Parameters, images_AB: Tensor, labels_AB: Tensor) -> Tensor:
    """Each agent in a stream of its own; the backward pass follows each into its stream."""
    main = torch.cuda.current_stream()
    own_streams = streams("agents", min(len(images_AB), MAX_STREAMS))
    losses = []
    for stream in own_streams:
        stream.wait_stream(main)
    for number, agent in enumerate(each_agent(own, images_AB, labels_AB)):
        with torch.cuda.stream(own_streams[number % len(own_streams)]):
            losses.append(loss(*agent))
    for stream in own_streams:
        main.wait_stream(stream)
    return torch.stack(losses)


EXECUTIONS: dict[Execution, Callable[[Loss, Parameters, Tensor, Tensor], Tensor]] = {
    "stacked": stacked,
    "streams": in_streams,
    "loop": loop,
}


def each_agent(own: Parameters, images_AB: Tensor, labels_AB: Tensor) -> Iterator[tuple[Parameters, Tensor, Tensor]]:
    """(parameters, images, labels) of one agent after another."""
    columns = {name: value.unbind() for name, value in own.items()}
    for agent, (images_B, labels_B) in enumerate(zip(images_AB, labels_AB, strict=True)):
        yield {name: rows[agent] for name, rows in columns.items()}, images_B, labels_B


@cache
def streams(purpose: str, count: int) -> tuple[torch.cuda.Stream, ...]:
    """The same streams for every task: libraries keep a workspace for each."""
    return tuple(torch.cuda.Stream() for _ in range(count))
