"""How many of a task's images each agent has.

Shapes: A agents.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codecl.seeding import derive

MIN_IMAGES = 16  # that an agent has at least, as peers want it; where there are few, half of an equal share


def sizes(how: str, images: int, agents: int, seed: int, task: int) -> list[int]:
    """Images of each agent. Law: they add up to all images, and nobody has fewer than MIN_IMAGES or, where that is
    less, than half of an equal share."""
    alpha = parse(how)
    if alpha is None:
        return equal(images, agents)
    least = max(1, min(MIN_IMAGES, images // (2 * agents)))
    share_A = np.random.default_rng(derive(seed, "sizes", task)).dirichlet([alpha] * agents)
    return [least + more for more in apportioned(images - least * agents, share_A)]


def parse(how: str) -> float | None:
    """`dirichlet(0.3)` -> 0.3, `equal` -> None."""
    name, number = named_number(how)
    if name == "equal" and number is None:
        return None
    if name == "dirichlet" and number is not None and 0 < number < float("inf"):
        return number
    raise ValueError("it should be equal, or dirichlet(α) with α above 0")


def named_number(text: str) -> tuple[str, float | None]:
    """`skew(0.3)` -> ("skew", 0.3); `iid` -> ("iid", None)."""
    match = re.fullmatch(r"(\w+)(?:\(\s*([\d.eE+-]+)\s*\))?", text.strip())
    name, value = match.groups() if match else (text, None)
    try:
        return name, None if value is None else float(value)
    except ValueError:
        return name, float("nan")


def equal(images: int, parts: int) -> list[int]:
    """As equal as they can be: the first have one more."""
    return [images // parts + (part < images % parts) for part in range(parts)]


def apportioned(count: int, weights: Sequence[float] | NDArray[Any]) -> list[int]:
    """Whole numbers in the proportion of the weights. Law: they add up to the count; each is its exact share, rounded
    up or down."""
    share = np.asarray(weights, dtype=float)
    exact = count * share / share.sum()
    whole = np.floor(exact).astype(int)
    lacking = np.argsort(whole - exact, kind="stable")[: count - whole.sum()]
    whole[lacking] += 1
    return [int(number) for number in whole]


def turns(sizes: Sequence[int]) -> NDArray[Any]:
    """Agents in the order in which they take an image each, so that at any time all have about the same part of
    theirs. Law: agent a has sizes[a] turns; of equal sizes, agents come 0, 1, …, A - 1, 0, 1, …"""
    part = np.concatenate([np.arange(size) / size for size in sizes])
    return np.repeat(np.arange(len(sizes)), sizes)[np.argsort(part, kind="stable")]
