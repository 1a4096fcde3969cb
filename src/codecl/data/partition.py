"""How a task's images are dealt to agents: each image to one of them, shards of equal size (or one image more).

Shapes: A agents, C classes.
"""

import re
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from codecl.seeding import derive, spawn

Partition = Sequence[Tensor]  # of each agent, which images it has


def partition(how: str, labels: Tensor, agents: int, seed: int, task: int) -> Partition:
    """Which images each agent has. Law: together they hold every image once."""
    name, value = parse(how)
    return PARTITIONS[name](labels.cpu(), agents, value, seed, task)


def parse(how: str) -> tuple[str, float]:
    """`dirichlet(0.3)` -> ("dirichlet", 0.3)."""
    found = re.fullmatch(r"(\w+)(?:\(\s*([\d.eE+-]+)\s*\))?", how.strip())
    name, value = found.groups() if found else (how, None)
    try:
        number = float(value) if value is not None else 0.0
    except ValueError:
        number = float("nan")
    fits = {
        "iid": value is None,
        "dirichlet": 0 < number < float("inf"),
        "skew": value is not None and 0 <= number <= 1,
    }
    if not fits.get(name, False):
        raise ValueError("it should be iid, dirichlet(α) with α above 0, or skew(s) with s from 0 to 1")
    return name, number


def iid(labels: Tensor, agents: int, _: float, seed: int, task: int) -> Partition:
    """Every agent has an equal mix of classes, but for chance."""
    return torch.randperm(len(labels), generator=spawn(seed, "shards", task)).tensor_split(agents)


def skew(labels: Tensor, agents: int, part: float, seed: int, task: int) -> Partition:
    """A part of the images is dealt in the order of their labels, a stretch an agent; the others at random.

    Law: skew(0) is iid; skew(1) gives an agent as few classes as there can be."""
    order = torch.randperm(len(labels), generator=spawn(seed, "shards", task))
    first, others = order[: round(part * len(order))], order[round(part * len(order)) :]
    sorted_ones = first[labels[first].sort(stable=True).indices].tensor_split(agents)
    sizes = [len(shard) for shard in order.tensor_split(agents)]
    left = others.split([size - len(held) for size, held in zip(sizes, sorted_ones, strict=True)])
    return [torch.cat(pair) for pair in zip(sorted_ones, left, strict=True)]


def dirichlet(labels: Tensor, agents: int, alpha: float, seed: int, task: int) -> Partition:
    """Each agent's mix of classes is drawn from a Dirichlet distribution; agents take images in turn, a class from
    their mix as long as there are images of it. A small α: few classes an agent; a large one: nearly iid."""
    random = np.random.default_rng(derive(seed, "shards", task))
    kinds = labels.unique()
    piles = [random.permutation((labels == kind).nonzero().flatten().numpy()).tolist() for kind in kinds]
    mix_AC = random.dirichlet([alpha] * len(kinds), size=agents)
    some_C = np.array([float(len(pile) > 0) for pile in piles])
    shards: list[list[int]] = [[] for _ in range(agents)]
    for turn, draw in enumerate(random.random(len(labels))):
        edges_C = np.cumsum(mix_AC[turn % agents] * some_C)
        if edges_C[-1] < 1e-12:  # nothing of its mix is left
            edges_C = np.cumsum(some_C)
        kind = int(np.searchsorted(edges_C, draw * edges_C[-1], side="right"))
        shards[turn % agents].append(piles[kind].pop())
        some_C[kind] = float(len(piles[kind]) > 0)
    return [torch.tensor(shard) for shard in shards]


PARTITIONS: dict[str, Callable[[Tensor, int, float, int, int], Partition]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "skew": skew,
}
