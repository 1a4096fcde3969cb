"""How a task's images are dealt to agents: each image to one of them, shards of equal size (or one image more); which
are held out; and the order in which an agent sees its own.

Shapes: A agents, C classes.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from codecl.errors import ConfigError
from codecl.seeding import derive, spawn

Partition = Sequence[Tensor]  # of each agent, which images it has


def partition(how: str, labels: Tensor, agents: int, seed: int, task: int) -> Partition:
    """Which images each agent has. Law: together they hold every image once."""
    name, value = parse(how)
    return PARTITIONS[name](labels.cpu(), agents, value, seed, task)


def parse(how: str) -> tuple[str, float]:
    """`dirichlet(0.3)` -> ("dirichlet", 0.3)."""
    match = re.fullmatch(r"(\w+)(?:\(\s*([\d.eE+-]+)\s*\))?", how.strip())
    name, value = match.groups() if match else (how, None)
    try:
        number = float(value) if value is not None else 0.0
    except ValueError:
        number = float("nan")
    fits = {
        "iid": value is None,
        "dirichlet": 0 < number < float("inf"),
        "skew": value is not None and 0 <= number <= 1,
        "shards": value is not None and number >= 1 and number.is_integer(),
    }
    if not fits.get(name, False):
        raise ValueError(
            "it should be iid, dirichlet(α) with α above 0, skew(s) with s from 0 to 1, or shards(k) with k from 1 on"
        )
    return name, number


def iid(labels: Tensor, agents: int, _: float, seed: int, task: int) -> Partition:
    """Every agent has an equal mix of classes, but for chance."""
    return torch.randperm(len(labels), generator=spawn(seed, "shards", task)).tensor_split(agents)


def skew(labels: Tensor, agents: int, part: float, seed: int, task: int) -> Partition:
    """A part of the images is dealt in the order of their labels, a stretch an agent; the others at random.

    Law: skew(0) is iid; skew(1) gives an agent as few classes as there can be."""
    order = torch.randperm(len(labels), generator=spawn(seed, "shards", task))
    first, others = order[: round(part * len(order))], order[round(part * len(order)) :]
    by_label = first[labels[first].sort(stable=True).indices].tensor_split(agents)
    sizes = [len(shard) for shard in order.tensor_split(agents)]
    at_random = others.split([size - len(held) for size, held in zip(sizes, by_label, strict=True)])
    return [torch.cat(pair) for pair in zip(by_label, at_random, strict=True)]


def shards(labels: Tensor, agents: int, each: float, seed: int, task: int) -> Partition:
    """Images in the order of their labels, cut into `each` stretches an agent, dealt at random (McMahan et al. 2017).

    Law: an agent's images lie in at most `each` stretches; shards are as equal as such cuts allow."""
    count = agents * int(each)
    if len(labels) < count:
        raise ConfigError(f"data.partition: shards({int(each)}) needs {count} images a task, there are {len(labels)}")
    generator = spawn(seed, "shards", task)
    order = torch.randperm(len(labels), generator=generator)
    stretches = order[labels[order].sort(stable=True).indices].tensor_split(count)
    dealt = torch.randperm(count, generator=generator).view(agents, int(each)).tolist()
    return [torch.cat([stretches[number] for number in numbers]) for numbers in dealt]


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
    "shards": shards,
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
