"""What an agent that lies floods when it is its turn to grow or to choose, to see what that does (`faults.flood`).

Shapes: N inputs, F free directions.
"""

import torch
from torch import Tensor

from codecl.exchange.base import Tensors
from codecl.seeding import spawn
from codecl.space import chart as charts
from codecl.space import growth
from codecl.train.review import MEMORY
from codecl.train.state import Setup, State


def false_flood(setup: Setup, state: State, payload: Tensors) -> dict[str, Tensor]:
    """What a task leaves, with the run's lie in it."""
    lie, generator, layers = setup.faults.flood, spawn(setup.seed, "lie"), setup.roles.layers
    out = {name: value.clone() for name, value in payload.items()}
    for name, value in out.items():
        if lie == "nan" and value.is_floating_point():
            value.fill_(float("nan"))
        if lie == "weights" and name.startswith("weights/"):
            value += value.std(correction=0) * torch.randn(value.shape, generator=generator).to(value)
    if lie not in ("random", "outside", "nothing", "everything"):
        return out
    device = next(iter(payload.values())).device
    before = growth.memory_of(growth.exact(growth.bases_of(state.memory, layers), layers, device))
    for name, old in before.items():
        known = payload.get(MEMORY + name)
        if known is None:  # the method grows no bases
            continue
        basis = {"nothing": old, "everything": old[..., :0]}.get(lie)
        basis = _at_random(old, known.shape[-1], lie == "outside", generator) if basis is None else basis
        out[MEMORY + name] = basis.to(known).contiguous()
    return out


def false_directions(setup: Setup, payload: Tensors) -> dict[str, Tensor]:
    """The directions of a task, with the run's lie in them: at random where it is not another."""
    lie, generator, out = setup.faults.flood, spawn(setup.seed, "lie"), dict(payload)
    for name, basis in payload.items():
        if lie == "nan" and basis.is_floating_point():
            out[name] = basis * float("nan")
        elif lie == "everything":
            out[name] = basis[..., :0].contiguous()
        elif lie in ("random", "outside") and not charts.is_tokens(basis):
            everything = torch.eye(len(basis), dtype=torch.float64, device=basis.device)
            out[name] = _at_random(everything, basis.shape[-1], False, generator).to(basis).contiguous()
    return out


def _at_random(space: Tensor, count: int, outside: bool, generator: torch.Generator) -> Tensor:
    """So many directions of this space, or of all inputs; of tokens, so many of them."""
    if charts.is_tokens(space):
        order = torch.randperm(len(space), generator=generator).to(space.device)
        return space[order[:count]].sort().values
    side = len(space) if outside else space.shape[1]
    turned = torch.linalg.qr(torch.randn(side, side, generator=generator, dtype=torch.float64)).Q[:, :count]
    return turned.to(space) if outside else space @ turned.to(space)
