"""What codec and codec-full share: agents look at their images, one's or everyone's, and the core space grows."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from codecl.data.inputs import Inputs, count, take
from codecl.data.task import TaskData
from codecl.exchange import Exchange
from codecl.methods.base import Memory, TaskEnd, TaskEndSize, TaskSizes
from codecl.space import fixed_point, growth, review
from codecl.space.growth import Bases, GrowthConfig, Moments
from codecl.space.layers import Layer
from codecl.space.layout import Parameters
from codecl.space.norms import normalising, without_moments
from codecl.space.review import Looks


class Look(NamedTuple):
    """Agents that look at their images of a task, for the chosen one."""

    data: TaskData
    module: nn.Module
    parameters: Callable[[int], Parameters]  # of an agent of this process
    exchange: Exchange
    chosen: int
    growth: GrowthConfig
    norms: Mapping[str, Tensor] = {}  # statistics to normalise by

    def moments(self, layers: Sequence[Layer], bases: Bases) -> Moments | None:
        """Second moments of the layers' inputs in these bases, at the chosen agent; None elsewhere.

        `one`: of the chosen agent's images. `all`: every agent sends BᵀRᵢRᵢᵀB and ‖Rᵢ‖² up the tree to it, where
        they are summed: it is as if all images lay in one place."""
        images = self.growth.by_layer(layers, self.growth.sharing(self.data.agents))

        def of_agent(agent: int) -> Moments:
            self.growth.check(self.data.name, len(self.data.partition[agent]))
            return self._moments(agent, self.data.sample(agent, max(images.values())), images, bases)

        if self.growth.subspace_from == "all":
            parts = [growth.packed(of_agent(agent)) for agent in self.exchange.agents]
            reduced = self._summed(parts)
            return None if reduced is None else growth.unpacked(reduced)
        return of_agent(self.chosen) if self.chosen in self.exchange.agents else None

    def looks(self, agent: int, layers: Sequence[Layer], bases: Bases) -> Looks:
        """What an agent of this process sees of its own images: those that it would grow from alone, and as many others
        (half of its shard each, where that is fewer)."""
        images = self.growth.by_layer(layers, 1)
        sample = self.data.sample(agent, 2 * max(images.values()))
        half = count(sample) // 2
        own, fresh = (take(sample, which) for which in (slice(half), slice(half, None))) if half else (sample, sample)
        return Looks(self._moments(agent, own, images, bases), self._moments(agent, fresh, images, bases))

    def _moments(self, agent: int, sample: Inputs, images: Mapping[Layer, int], bases: Bases) -> Moments:
        parameters, gossiped = without_moments(self.parameters(agent))
        with normalising(self.module, {**self.norms, **gossiped}):
            return growth.moments(self.module, parameters, sample, images, bases)

    def _summed(self, parts: Sequence[Mapping[str, Tensor]]) -> Mapping[str, Tensor] | None:
        """Of all agents, at the chosen one; `masked`: nobody sees more than the sum, in fixed point."""
        if self.growth.pool == "plain":
            return self.exchange.reduce(self.chosen, parts)
        reduced = self.exchange.pool(self.chosen, [fixed_point.fixed(part, self.data.agents) for part in parts])
        return None if reduced is None else fixed_point.floating(reduced)


def grown(end: TaskEnd) -> dict[str, Tensor] | None:
    """The free bases after this task, at the chosen agent; None elsewhere (Algorithm 1, lines 17-21)."""
    layers, bases = _free_before(end)
    if not layers:
        return {} if end.chosen in end.rows else None
    moments = _look(end).moments(layers, bases)
    if moments is None:
        return None
    return growth.grow(bases, moments, end.growth.at(end.data.index), end.coords_AD.dtype)


def objection(end: TaskEnd, agent: int, memory: Memory) -> str:
    """What an agent of this process has against free bases that another grew, by its own images; empty: nothing."""
    layers, bases = _free_before(end)
    before = growth.memory_of(bases)
    if set(memory) != set(before):
        return "the free bases are not those of this model's layers"
    looks = _look(end).looks(agent, layers, bases)
    for name, old in before.items():
        about = looks.own[name], looks.fresh[name], end.growth.at(end.data.index), end.growth.slack
        found = review.growth_objection(old, memory[name].to(old.device), *about)
        if found:
            return f"the free basis of {name.rpartition('/')[0]!r} {found}"
    return ""


def _free_before(end: TaskEnd) -> tuple[list[Layer], Bases]:
    """The layers that grow, and what was free of each while the task trained."""
    layers = [slot.layer for slot in end.layout.slots if slot.layer]
    return layers, growth.exact(growth.bases_of(end.memory, layers), layers, end.coords_AD.device)


def _look(end: TaskEnd) -> Look:
    def parameters(agent: int) -> Parameters:
        return end.layout.parameters(end.coords_AD[end.rows[agent]])

    # normalised as old tasks are evaluated
    return Look(end.data, end.module, parameters, end.exchange, end.chosen, end.growth, end.norms)


def grown_size(sizes: TaskSizes) -> TaskEndSize:
    """Moments up the tree where everyone's images count, a lower triangle and an energy a group; bases down it."""
    bases = sum(layer.direction_bytes(sizes.itemsize) * sizes.free_after[layer.name] for layer in sizes.layers)
    moments = 0
    if sizes.growth.subspace_from == "all":
        for layer in sizes.layers:
            moments += sum(layer.moment_size(side) for side in _by_group(sizes.free[layer.name], layer.groups))
    return TaskEndSize(moments * torch.float64.itemsize, bases)


def _by_group(free: int, groups: int) -> list[int]:
    """A record tells the sum over groups: as if they were alike."""
    return [free // groups + (group < free % groups) for group in range(groups)]
