"""A task's end: agree, grow, flood. Afterwards every agent holds the same state, bit for bit.

Shapes: A agents of this process, D coordinates of an agent.
"""

import time
from collections.abc import Generator, Iterable, Mapping
from functools import partial

from torch import Tensor, nn

from codecl.data.task import TaskData
from codecl.errors import RunFailed
from codecl.exchange import Exchange, flooded
from codecl.methods import TaskEnd
from codecl.seeding import succession
from codecl.space import directions, norms
from codecl.space.kept import Kept, taken_out
from codecl.space.layout import Parameters
from codecl.train import liars, review
from codecl.train.agents import Agents
from codecl.train.events import Agreed, Event, Flooded, Grown
from codecl.train.review import MEMORY
from codecl.train.state import Carry, Setup, State

LARGE = 64  # images of a batch by which statistics of norms are measured, at least


def close_task(
    setup: Setup, state: State, data: TaskData, agents: Agents, carry: Carry, agreed: bool
) -> Generator[Event, None, State]:
    """Agree, grow, flood: afterwards every agent holds the same state. If the chosen agent is gone, the next grows."""
    exchange, task, rounds = setup.exchange, data.index, 0 if agreed else setup.agree_rounds
    sending, coords_AD, memory_AM = setup.messages(task), carry.coords_AD, carry.memory_AM
    for _ in range(rounds // setup.train.gossip_rounds):
        coords_AD, memory_AM = sending.start(exchange, coords_AD, memory_AM, "agree").wait()
    left = exchange.consensus_error(coords_AD)
    parts, sent = setup.message.parts, exchange.traffic.take("agree")
    yield Agreed(task=task, rounds=rounds, parts=parts, consensus_error=left, **sent)

    for chosen in succession(setup.seed, task, setup.topology.agents):
        began = time.perf_counter()
        measured = _norms(setup, data, agents, coords_AD, chosen)
        end = TaskEnd(
            data=data,
            module=setup.module,
            layout=agents.layout,
            gradient=agents.gradient,
            coords_AD=coords_AD,
            memory=state.memory,
            exchange=exchange,
            chosen=chosen,
            batch_size=setup.train.batch_size,
            growth=setup.growth,
            norms=measured,
        )
        memory = setup.method.remember(end)
        yield Grown(task=task, chosen=chosen, seconds=time.perf_counter() - began, **exchange.traffic.take("reduce"))

        weights_of = partial(_weights, setup, state, end)
        payload = None
        if memory is not None:
            payload = {**weights_of(chosen), **{MEMORY + name: value for name, value in memory.items()}}
            payload = {name: value.contiguous().clone() for name, value in payload.items()}  # as after a wire or a file
            if chosen in setup.faults.flood_liars:
                payload = liars.false_flood(setup, state, payload)
        objection = partial(review.of_task_end, setup, state, end, weights_of)
        flood = flooded(exchange, chosen, payload, task, review.check_of(setup, chosen, objection))
        if flood is not None and flood.votes:
            yield review.voted(task, chosen, flood.votes)
        if flood is not None and flood.stands:
            state = unpack(setup, state, flood.tensors, measured)
            yield Flooded(task=task, chosen=chosen, digest=flood.digest, state=state, **exchange.traffic.take("flood"))
            return state
    raise RunFailed(f"task {task + 1}: every agent that could grow {review.nobody(setup)}")


def _norms(setup: Setup, data: TaskData, agents: Agents, coords_AD: Tensor, chosen: int) -> Parameters:
    """The statistics by which this task's predictions are normalised; none: by their batch's own."""
    if setup.train.norm_statistics != "task":
        return {}
    rows = (agents.layout.parameters(row) for row in coords_AD)
    batch_size = max(setup.train.test_batch_size, LARGE)  # its first pass normalises by the batch: small ones are noisy
    return agreed_statistics(setup.module, rows, data, setup.exchange, chosen, batch_size)


def _weights(setup: Setup, state: State, end: TaskEnd, agent: int) -> dict[str, Tensor]:
    """What a flood carries of an agent's own: weights, finished head, norms, what was learned in own directions."""
    parameters, own = end.layout.parameters(end.coords_AD[end.rows[agent]]), directions.own_of(state.directions)
    body, coordinates = taken_out(setup.roles.layers, parameters, state.parameters, own)
    weights = {f"weights/{name}": value for name, value in body.items() if name not in setup.roles.constant}
    return {**weights, **{f"own/{name}": value for name, value in coordinates.items()}}


def unpack(setup: Setup, state: State, arrived: Mapping[str, Tensor], statistics: Parameters) -> State:
    """The state after a task, from the state when it was open and what was flooded."""

    def under(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in arrived.items() if name.startswith(prefix)}

    weights, gossiped = norms.without_moments(under("weights/"))
    parameters = {name: weights.pop(name) for name in setup.roles.head}
    parameters |= {name: weights[name] for name in setup.own_norms}  # the next task's start from them
    kept = Kept(parameters, {**statistics, **gossiped}, directions.own_of(state.directions), under("own/"))
    return State({**state.parameters, **weights}, (*state.kept, kept), under(MEMORY))


def agreed_statistics(
    module: nn.Module, rows: Iterable[Parameters], data: TaskData, exchange: Exchange, chosen: int, batch: int
) -> Parameters:
    """Statistics over all agents' images, each measured where it is: summed up the chosen agent's tree and flooded, so
    that everyone holds the same, bit for bit. `rows`: the parameters of the agents of this process."""
    statistics: Parameters = {}
    models = list(rows)
    for _ in range(norms.PASSES if norms.batch_norms(module) else 0):
        parts = [
            norms.measure(module, parameters, data.of_agent(agent, batch), statistics)
            for agent, parameters in zip(exchange.agents, models, strict=True)
        ]
        reduced = exchange.reduce(chosen, parts)
        measured = None if reduced is None else norms.statistics_of(reduced, data.dtype)
        flood = flooded(exchange, chosen, measured, data.index)
        assert flood is not None, "offered only where no agent can be gone"
        statistics = flood.tensors
    return statistics
