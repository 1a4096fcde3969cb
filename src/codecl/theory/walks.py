"""The package's own loop on a problem, many times at once: copies of the agents that never meet, as one run.

Shapes: S copies, N agents, A = S · N, F free dimensions, K steps.
"""

from collections.abc import Iterator
from typing import NamedTuple, cast

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from codecl.data.partition import Draw, Sampler, replacement
from codecl.data.task import Task, TaskData, TaskOptions
from codecl.exchange.topology import Matrix, Topology
from codecl.runs.build import build_setup
from codecl.runs.config import validate
from codecl.theory.problems import AsModule, Problem
from codecl.train.agents import Agents
from codecl.train.constraint import weight_gradients
from codecl.train.events import Stepped, TaskOpened
from codecl.train.loop import train
from codecl.train.state import Setup, State

AT_ONCE = 100  # steps


def side_by_side(mixing: Matrix, copies: int) -> Matrix:
    """Groups that never meet, each mixing in itself."""
    return cast(Matrix, np.kron(np.eye(copies), mixing))


class Walk(NamedTuple):
    """How a problem is walked."""

    problem: Problem
    mixing: Matrix
    lr: float
    steps: int
    copies: int
    seed: int = 0
    batch: int = 1
    sampler: Sampler = replacement


def prepared(walk: Walk) -> tuple[Setup, State]:
    """What `train` needs: the problem as a module, its examples as images, each agent's its own."""
    problem, agents = walk.problem, walk.copies * len(walk.mixing)
    examples_PE = problem.examples_NPE.repeat(walk.copies, 1, 1).flatten(0, 1)
    labels_P = torch.zeros(len(examples_PE), dtype=torch.long)
    config = validate(
        {
            "preset": "theory",
            "seed": walk.seed,
            "dtype": "float64",
            "agents": agents,
            "model": {"name": "own"},
            "head": None,
            "data": {"stream": "own", "steps_per_epoch": walk.steps},
            "train": {"epochs": 1, "batch_size": walk.batch, "lr": walk.lr, "execution": "stacked", "milestones": []},
            "method": {"name": "codec"},
        }
    )
    task = Task((examples_PE, labels_P), (examples_PE[:1], labels_P[:1]), 1, problem.name)
    options = TaskOptions(
        agents=agents,
        seed=walk.seed,
        dtype=torch.float64,
        config=config.data,
        partition=torch.arange(len(examples_PE)).tensor_split(agents),  # agent i's examples are the problem's
        sampler=walk.sampler,
    )
    mixing = side_by_side(walk.mixing, walk.copies)
    topology = Topology("copies", nx.from_numpy_array(mixing.T, create_using=nx.DiGraph), [mixing])
    module = AsModule(problem).double()
    setup, state = build_setup(config, [TaskData(0, task, options)], torch.device("cpu"), module, topology=topology)
    return setup, state._replace(memory={"point/0": problem.free_DF})


def same_draws(agents: int) -> Sampler:
    """So many agents in a row draw what the first of them draws; they must have the same examples."""

    def sampler(draw: Draw, images: int, count: int) -> Tensor:
        return replacement(draw._replace(agent=draw.agent // agents * agents), images, count)

    return sampler


def walked(walk: Walk) -> Iterator[Tensor]:
    """Coordinates [S, N, F] before the first step and after each. They hold until the next."""
    for _, coords_AF in _steps(*prepared(walk)):
        yield coords_AF.view(walk.copies, len(walk.mixing), -1)


class Steps(NamedTuple):
    """All that a walk did: at each step, where agents were, and the gradients that they took there."""

    coords_KSNF: Tensor  # before each step, and after the last
    grads_KSND: Tensor  # in the whole space
    moves_KSNF: Tensor  # by coordinates


def stepped(walk: Walk) -> Steps:
    """A walk with the gradients of every step, taken anew on its examples: of many steps at once, as if each were of
    other agents."""
    setup, state = prepared(walk)
    (data,), shape = setup.tasks, (-1, walk.copies, len(walk.mixing))
    (indices_KABI,) = data.indices(0, setup.exchange.agents, walk.batch)
    coords_KAF: list[Tensor] = []
    for agents, coords_AF in _steps(setup, state):  # noqa: B007
        coords_KAF.append(coords_AF.clone())
    grads, moves = [], []
    for start in range(0, walk.steps, AT_ONCE):
        some = slice(start, min(start + AT_ONCE, walk.steps))
        rows_AF = torch.cat(coords_KAF[some])
        batch = data.batch(indices_KABI[some].flatten(0, 1))
        moves.append(agents.gradient(rows_AF, *batch)[1])
        grads.append(weight_gradients(agents, setup.module, rows_AF, *batch)["point"].flatten(1))
    together = torch.stack(coords_KAF), torch.cat(grads), torch.cat(moves)
    return Steps(*(values.reshape(*shape, values.shape[-1]) for values in together))


def _steps(setup: Setup, state: State) -> Iterator[tuple[Agents, Tensor]]:
    for event in train(setup, state):
        if isinstance(event, TaskOpened):
            agents = event.agents
            yield agents, agents.layout.start().repeat(len(setup.exchange.agents), 1)
        elif isinstance(event, Stepped):
            yield agents, event.coords_AD
        else:  # the walk ends with its steps: nothing is grown
            return
