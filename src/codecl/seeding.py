"""Randomness as an argument: a generator for (seed, purpose, and where it is used)."""

import hashlib

import torch


def spawn(seed: int, purpose: str, *path: int) -> torch.Generator:
    """A CPU generator that depends on all of its arguments and on nothing else.

    Law: equal arguments give equal streams, on every machine and in every exchange."""
    return torch.Generator().manual_seed(derive(seed, purpose, *path))


def derive(seed: int, purpose: str, *path: int) -> int:
    """A 63-bit seed for this purpose and path."""
    name = "/".join([str(seed), purpose, *map(str, path)])
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1


def choose(seed: int, task: int, agents: int) -> int:
    """The agent that grows and floods at this task's end (Algorithm 1, line 17), the same for everyone."""
    return int(torch.randint(agents, (), generator=spawn(seed, "chosen", task)))


def succession(seed: int, task: int, agents: int) -> list[int]:
    """Who grows if those before are gone: the chosen agent first, then an order that everyone can derive."""
    first = choose(seed, task, agents)
    order: list[int] = torch.randperm(agents, generator=spawn(seed, "succession", task)).tolist()
    return [first, *(agent for agent in order if agent != first)]
