"""What codec and codec-full share at a task's end: growing the core space from one agent's images or everyone's."""

import torch
from torch import Tensor

from codecl.methods.base import TaskEnd, TaskEndSize, TaskSizes
from codecl.space import growth
from codecl.space.norms import normalising


def grown(end: TaskEnd) -> dict[str, Tensor] | None:
    """The free bases after this task, at the chosen agent; None elsewhere (Algorithm 1, lines 17-21).

    `one`: from the chosen agent's images. `all`: every agent sends OᵀRᵢRᵢᵀO and ‖Rᵢ‖² up the chosen agent's tree, where
    they are summed: the growth is that of all images in one place."""
    layers = [slot.layer for slot in end.layout.slots if slot.layer]
    if not layers:
        return {} if end.chosen in end.rows else None
    bases = growth.exact(growth.bases_of(end.memory, layers), layers, end.coords_AD.device)
    everyone = end.growth.subspace_from == "all"
    images = end.growth.by_layer(layers, end.growth.sharing(end.data.agents))

    def moments(agent: int) -> growth.Moments:
        parameters = end.layout.parameters(end.coords_AD[end.rows[agent]])
        end.growth.check(end.data.name, len(end.data.partition[agent]))
        sample = end.data.sample(agent, max(images.values()))
        with normalising(end.module, end.norms):  # as old tasks are evaluated
            return growth.moments(end.module, parameters, sample, images, bases)

    summed: growth.Moments | None = None
    if everyone:
        parts = [growth.packed(moments(agent)) for agent in end.exchange.agents]
        reduced = end.exchange.reduce(end.chosen, parts)
        summed = None if reduced is None else growth.unpacked(reduced)
    elif end.chosen in end.rows:
        summed = moments(end.chosen)
    if summed is None:
        return None
    return growth.grow(bases, summed, end.growth.at(end.data.index), end.coords_AD.dtype)


def grown_size(sizes: TaskSizes) -> TaskEndSize:
    """Moments up the tree where everyone's images count, a lower triangle and an energy a group; bases down it."""
    bases = sum(layer.inputs * sizes.free_after[layer.name] for layer in sizes.layers)
    moments = 0
    if sizes.growth.subspace_from == "all":
        sides = [side for layer in sizes.layers for side in _by_group(sizes.free[layer.name], layer.groups)]
        moments = sum(side * (side + 1) // 2 + 1 for side in sides)
    return TaskEndSize(moments * torch.float64.itemsize, bases * sizes.itemsize)


def _by_group(free: int, groups: int) -> list[int]:
    """A record tells the sum over groups: as if they were alike."""
    return [free // groups + (group < free % groups) for group in range(groups)]
