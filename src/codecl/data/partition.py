"""How a task's images are dealt to agents, each image to one of them; which are held out; and the order in which an
agent sees its own. How many an agent gets: sizes.py.

Shapes: A agents, C classes.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from codecl.data.sizes import apportioned, equal, named_number, turns
from codecl.data.sizes import sizes as sizes_of
from codecl.errors import ConfigError
from codecl.seeding import derive, spawn

Partition = Sequence[Tensor]  # of each agent, which images it has


def partition(how: str, labels: Tensor, agents: int, seed: int, task: int, sizes: str = "equal") -> Partition:
    """Which images each agent has. Law: together they hold every image once."""
    name, value = parse(how)
    return PARTITIONS[name](labels.cpu(), sizes_of(sizes, len(labels), agents, seed, task), value, seed, task)


def parse(how: str) -> tuple[str, float]:
    """`dirichlet(0.3)` -> ("dirichlet", 0.3)."""
    name, value = named_number(how)
    number = value or 0.0
    counted = number >= 1 and number.is_integer()
    fits = {
        "iid": value is None,
        "dirichlet": 0 < number < float("inf"),
        "skew": value is not None and 0 <= number <= 1,
        "shards": counted,
        "classes": counted,
    }
    if not fits.get(name, False):
        raise ValueError(
            "it should be iid, dirichlet(α) with α above 0, skew(s) with s from 0 to 1, or shards(k) or classes(k) with"
            " k from 1 on"
        )
    return name, number


def iid(labels: Tensor, sizes: Sequence[int], _: float, seed: int, task: int) -> Partition:
    """Every agent has an equal mix of classes, but for chance."""
    return torch.randperm(len(labels), generator=spawn(seed, "shards", task)).split(list(sizes))


def skew(labels: Tensor, sizes: Sequence[int], part: float, seed: int, task: int) -> Partition:
    """A part of the images is dealt in the order of their labels, a stretch an agent; the others at random.

    Law: skew(0) is iid; skew(1) gives an agent as few classes as there can be."""
    order = torch.randperm(len(labels), generator=spawn(seed, "shards", task))
    first, others = order[: round(part * len(order))], order[round(part * len(order)) :]
    stretches = np.bincount(turns(sizes)[: len(first)], minlength=len(sizes)).tolist()
    by_label = first[labels[first].sort(stable=True).indices].split(stretches)
    at_random = others.split([size - held for size, held in zip(sizes, stretches, strict=True)])
    return [torch.cat(pair) for pair in zip(by_label, at_random, strict=True)]


def shards(labels: Tensor, sizes: Sequence[int], each: float, seed: int, task: int) -> Partition:
    """Images in the order of their labels, cut into `each` stretches an agent, dealt at random (McMahan et al. 2017).

    Law: an agent's images lie in at most `each` stretches. Where sizes are equal, so are stretches, and shards as far
    as such cuts allow."""
    agents, count = len(sizes), len(sizes) * int(each)
    if len(labels) < count:
        raise ConfigError(f"data.partition: shards({int(each)}) needs {count} images a task, there are {len(labels)}")
    generator = spawn(seed, "shards", task)
    order = torch.randperm(len(labels), generator=generator)
    dealt = torch.randperm(count, generator=generator).view(agents, int(each)).tolist()
    lengths = equal(len(labels), count)
    if list(sizes) != equal(len(labels), agents):
        for numbers, size in zip(dealt, sizes, strict=True):
            for number, length in zip(numbers, equal(size, int(each)), strict=True):
                lengths[number] = length
    stretches = order[labels[order].sort(stable=True).indices].split(lengths)
    return [torch.cat([stretches[number] for number in numbers]) for numbers in dealt]


def classes(labels: Tensor, sizes: Sequence[int], each: float, seed: int, task: int) -> Partition:
    """Every agent has images of `each` classes; a class is split between the agents that hold it, by their sizes.

    Law: an agent has `each` classes, no fewer and no more; classes are held by equally many agents, or one more."""
    kinds, images = labels.unique(return_counts=True)
    random = np.random.default_rng(derive(seed, "shards", task))
    holders = _holders(len(kinds), len(sizes), int(each), task, random)
    dealt: list[list[Tensor]] = [[] for _ in sizes]
    for kind, count, agents in zip(kinds, images.tolist(), holders, strict=True):
        if count < len(agents):
            raise ConfigError(
                f"data.partition: classes({int(each)}) gives a class of task {task + 1} to {len(agents)} agents, and"
                f" class {int(kind)} has {count} images; use a smaller k, or fewer agents"
            )
        parts = [1 + more for more in apportioned(count - len(agents), [sizes[agent] for agent in agents])]
        pile = torch.from_numpy(random.permutation((labels == kind).nonzero().flatten().numpy()))
        for agent, part in zip(agents, pile.split(parts), strict=True):
            dealt[agent].append(part)
    return [torch.cat(parts) for parts in dealt]


def _holders(kinds: int, agents: int, each: int, task: int, random: np.random.Generator) -> list[list[int]]:
    """Of each class, the agents that hold it: one agent after another takes those that fewest hold so far."""
    if each > kinds:
        raise ConfigError(
            f"data.partition: classes({each}) is more than the {kinds} classes of task {task + 1}; use classes({kinds})"
            " or less"
        )
    if agents * each < kinds:
        raise ConfigError(
            f"data.partition: classes({each}) lets {agents} agents hold {agents * each} of the {kinds} classes of task"
            f" {task + 1}; use classes({-(-kinds // agents)}) or more, or more agents"
        )
    holders: list[list[int]] = [[] for _ in range(kinds)]
    for agent in range(agents):
        by_chance = random.permutation(kinds).tolist()
        for kind in sorted(by_chance, key=lambda kind: len(holders[kind]))[:each]:
            holders[kind].append(agent)
    return holders


def dirichlet(labels: Tensor, sizes: Sequence[int], alpha: float, seed: int, task: int) -> Partition:
    """Each agent's mix of classes is drawn from a Dirichlet distribution; agents take images in turn, a class from
    their mix as long as there are images of it. A small α: few classes an agent; a large one: nearly iid."""
    random = np.random.default_rng(derive(seed, "shards", task))
    kinds = labels.unique()
    piles = [random.permutation((labels == kind).nonzero().flatten().numpy()).tolist() for kind in kinds]
    mix_AC = random.dirichlet([alpha] * len(kinds), size=len(sizes))
    some_C = np.array([float(len(pile) > 0) for pile in piles])
    shards: list[list[int]] = [[] for _ in sizes]
    for agent, draw in zip(turns(sizes).tolist(), random.random(len(labels)), strict=True):
        edges_C = np.cumsum(mix_AC[agent] * some_C)
        if edges_C[-1] < 1e-12:  # nothing of its mix is left
            edges_C = np.cumsum(some_C)
        kind = int(np.searchsorted(edges_C, draw * edges_C[-1], side="right"))
        shards[agent].append(piles[kind].pop())
        some_C[kind] = float(len(piles[kind]) > 0)
    return [torch.tensor(shard) for shard in shards]


PARTITIONS: dict[str, Callable[[Tensor, Sequence[int], float, int, int], Partition]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "skew": skew,
    "shards": shards,
    "classes": classes,
}


def validation(name: str, labels: Tensor, part: float, seed: int, task: int) -> tuple[Tensor, Tensor]:
    """(kept, held out): a part of the training images, of each class alike, takes the place of the test images, for
    choosing settings. The cut depends on the seed alone."""
    order = torch.randperm(len(labels), generator=spawn(seed, "validation", task))
    kept, held_out = [], []
    for label in labels.unique():
        of_class = order[labels[order] == label]
        count = max(1, round(part * len(of_class)))
        if count >= len(of_class):
            raise ConfigError(
                f"data.validation: {part:g} leaves no training images of class {int(label)} of task {name!r}"
            )
        held_out.append(of_class[:count])
        kept.append(of_class[count:])
    return torch.cat(kept), torch.cat(held_out)


class Draw(NamedTuple):
    """Whose images are drawn, and when."""

    seed: int
    agent: int
    task: int
    epoch: int

    def generator(self, purpose: str) -> torch.Generator:
        return spawn(self.seed, purpose, self.agent, self.task, self.epoch)


Sampler = Callable[[Draw, int, int], Tensor]  # of so many images, so many: which come, one after another


def shuffle(draw: Draw, images: int, count: int) -> Tensor:
    """A fresh shuffle; where there are too few images, one shuffle after another."""
    generator = draw.generator("shuffle")
    rounds = max(1, -(-count // images))
    return torch.cat([torch.randperm(images, generator=generator) for _ in range(rounds)])[:count]


def replacement(draw: Draw, images: int, count: int) -> Tensor:
    """Draws with replacement."""
    return torch.randint(images, (count,), generator=draw.generator("shuffle"))


def subsets(draw: Draw, images: int, sizes: Sequence[int], secret: bytes = b"") -> Tensor:
    """For each batch a subset of its own, drawn from all images. Law: no image is twice in a batch. `secret`: nobody
    who lacks it can tell which are drawn."""
    if max(sizes) > images:
        raise ConfigError(f"data.sampling: subsets of {max(sizes)} images need as many, an agent has {images}")
    seed = hashlib.sha256(secret + "/".join(map(str, ("subsets", *draw))).encode()).digest()
    random = np.random.default_rng(int.from_bytes(seed, "big"))
    return torch.from_numpy(np.concatenate([random.permutation(images)[:size] for size in sizes]))


SAMPLERS: dict[str, Sampler] = {"shuffle": shuffle, "replacement": replacement}
