"""Going on where a run stopped: its events from the checkpoint on, and the checkpoints that are saved on the way."""

import time
from collections.abc import Generator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from codecl.exchange import Exchange
from codecl.exchange.cluster.ranks import Ranks
from codecl.runs import checkpoint
from codecl.runs.build import seeded
from codecl.runs.checkpoint import Checkpoint
from codecl.runs.config import RunConfig
from codecl.runs.metrics import Status
from codecl.runs.record import Record
from codecl.train.constraint import with_mu
from codecl.train.events import EpochEnded, Evaluated, Event
from codecl.train.loop import train
from codecl.train.state import Setup, State, TaskPosition


class NullWriter:
    """In the place of a record where another process, the leading one, writes it."""

    point, labels, facts = None, dict[str, Any](), list[dict[str, Any]]()

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    def fact(self, fact: Mapping[str, Any]) -> None:
        pass

    def event(self, event: Event) -> None:
        pass

    def save(self, state: State, position: TaskPosition | None, generators: Mapping[str, Tensor]) -> None:
        pass

    def close(self, status: Status) -> dict[str, Any]:
        return {}


def events(
    book: Record | NullWriter, setup: Setup, state: State, here: Ranks, mu: bool = False
) -> Generator[Event, None, None]:
    """Train from the checkpoint of this run folder, or from `state`; every event is recorded before it is handed
    on. `mu`: it is measured, once an epoch.

    Law: a run that was stopped at any moment and goes on here ends as one that never stopped."""
    exchange, device = setup.exchange, here.device
    point = _shared(book.point, here)
    with seeded(setup.seed, here.own("dropout"), device):  # nn.Dropout takes no generator of ours
        if point:
            _put(point.generators, exchange, device)
            state = point.state
        steps, saved = 0, time.monotonic()
        training = train(setup, state, point.position if point else None)
        for event in with_mu(training, setup) if mu else training:
            book.event(event)
            yield event
            steps += event.kind == "step"
            position = None
            if isinstance(event, EpochEnded):
                if not here.broadcast(partial(book.config.checkpoint.due, steps, time.monotonic() - saved)):
                    continue
                state, position = (
                    event.live.state,
                    TaskPosition(event.live.epoch + 1, exchange.gather(event.live.carry_AE)),
                )
            elif isinstance(event, Evaluated):
                state = event.state
            else:
                continue
            book.save(state, position, _generators(exchange, device))
            steps, saved = 0, time.monotonic()


def _shared(point: Checkpoint | None, here: Ranks) -> Checkpoint | None:
    """The leading process's checkpoint, at every rank: the others need not see its files."""
    if here.size == 1 or not here.broadcast(lambda: point is not None):
        return point
    return checkpoint.unpacked(here.broadcast_bytes(lambda: checkpoint.packed(_sure(point))), here.device)


def _sure(point: Checkpoint | None) -> Checkpoint:
    assert point is not None, "the leading process has it"
    return point


def _generators(exchange: Exchange, device: torch.device) -> dict[str, Tensor]:
    """The states of the generators that dropout draws from, a row an agent (those of one process have one between
    them)."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    rows = {name: state.to(device).expand(len(exchange.agents), -1).contiguous() for name, state in states.items()}
    return {name: exchange.gather(row) for name, row in rows.items()}


def _put(generators: Mapping[str, Tensor], exchange: Exchange, device: torch.device) -> None:
    # a copy: PyTorch crashes on a row of a larger tensor
    here = {name: rows[exchange.agents[0]].cpu().clone() for name, rows in generators.items()}
    torch.set_rng_state(here["cpu"])
    if device.type == "cuda" and "cuda" in here:
        torch.cuda.set_rng_state(here["cuda"], device)
