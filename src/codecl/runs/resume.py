"""Going on from a checkpoint, where a run stopped."""

import time
from collections.abc import Generator, Mapping
from functools import partial

import torch
from torch import Tensor

from codecl.exchange import Exchange
from codecl.exchange.cluster.ranks import Ranks
from codecl.exchange.cluster.wire import packed, unpacked
from codecl.runs import checkpoint
from codecl.runs.machine import seeded
from codecl.runs.writer import Writer
from codecl.train.constraint import with_mu
from codecl.train.events import EpochEnded, Evaluated, Event
from codecl.train.loop import train
from codecl.train.state import Setup, State, TaskPosition


def events(writer: Writer, setup: Setup, state: State, ranks: Ranks, mu: bool = False) -> Generator[Event, None, None]:
    """Train from the checkpoint of this run folder, or from `state`, and record every event. `mu`: measure it.

    Law: a run that was stopped at any moment and goes on here ends as one that never stopped."""
    exchange, device = setup.exchange, ranks.device
    point = _broadcast(writer.point, ranks)
    with seeded(setup.seed, ranks.own("dropout"), device):  # nn.Dropout takes no generator of ours
        if point:
            _put(point.generators, exchange, device)
            state = point.state
        steps, saved = 0, time.monotonic()
        training = train(setup, state, point.position if point else None)
        for event in with_mu(training, setup) if mu else training:
            writer.event(event)
            yield event
            steps += event.kind == "step"
            if isinstance(event, EpochEnded):
                if not ranks.broadcast(partial(writer.config.checkpoint.due, steps, time.monotonic() - saved)):
                    continue
                position = TaskPosition(event.epoch + 1, exchange.gather(event.live.carry.joined()))
                writer.save(event.live.state, position, _generators(exchange, device))
            elif isinstance(event, Evaluated):
                writer.save(event.state, None, _generators(exchange, device))
            else:
                continue
            steps, saved = 0, time.monotonic()


def _broadcast(point: checkpoint.Checkpoint | None, ranks: Ranks) -> checkpoint.Checkpoint | None:
    """The leading process's checkpoint, at every rank: the others need not see its files."""
    if ranks.size == 1:
        return point
    position = ranks.broadcast(lambda: checkpoint.position_of(point) if point else None)
    if position is None:
        return None
    data = ranks.broadcast_bytes(lambda: packed(checkpoint.tensors_of(point) if point else {}))
    return checkpoint.from_tensors(unpacked(data, ranks.device), position)


def _generators(exchange: Exchange, device: torch.device) -> dict[str, Tensor]:
    """States of the generators that dropout draws from, a row an agent (those of one process share one)."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    rows = {name: state.to(device).expand(len(exchange.agents), -1).contiguous() for name, state in states.items()}
    return {name: exchange.gather(row) for name, row in rows.items()}


def _put(generators: Mapping[str, Tensor], exchange: Exchange, device: torch.device) -> None:
    # a copy: PyTorch crashes on a row of a larger tensor
    own = {name: rows[exchange.agents[0]].cpu().clone() for name, rows in generators.items()}
    torch.set_rng_state(own["cpu"])
    if device.type == "cuda" and "cuda" in own:
        torch.cuda.set_rng_state(own["cuda"], device)
