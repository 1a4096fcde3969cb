"""How much agents' mixes of classes differ, as a number.

Shapes: A agents, C classes.
"""

from typing import NamedTuple

from torch import Tensor


class Heterogeneity(NamedTuple):
    """Total variation distances between an agent's mix of classes and the task's, mean over agents: 0, alike."""

    distance: float
    one_class_each: float  # what it would be if every agent had images of one class: 1 - Σ p²
    by_chance: float  # what random dealing gives, at most: ½ Σ √(p (1 - p) / images)

    @property
    def part(self) -> float:
        """Of what it would be with one class each; 0 where chance alone could do it."""
        return self.distance / self.one_class_each if self.distance > self.by_chance else 0.0


def heterogeneity(counts_AC: Tensor) -> Heterogeneity:
    """Of agents with so many images of each class. Those that have none do not count."""
    counts_AC = counts_AC[counts_AC.sum(1) > 0].double()
    images_A1 = counts_AC.sum(1, keepdim=True)
    task_C = counts_AC.sum(0) / counts_AC.sum()
    distance = (counts_AC / images_A1 - task_C).abs().sum(1).mean() / 2
    by_chance = (task_C * (1 - task_C) / images_A1).sqrt().sum(1).mean() / 2
    return Heterogeneity(float(distance), float(1 - task_C.square().sum()), float(by_chance))
