"""What agents have against what one of them flooded, each by its own images and coordinates, where they vote on it."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from codecl.exchange.base import Check, Tensors, Votes
from codecl.methods import TaskEnd
from codecl.methods.subspace import Look
from codecl.space import directions, growth, review
from codecl.space.directions import FREE
from codecl.space.layout import Parameters
from codecl.space.review import Choice
from codecl.train.events import Voted
from codecl.train.state import Setup, State

AGREED = 0.02  # of how far an agent moved in a task: by so much flooded weights may differ from its own, at least
MEMORY = "memory/"
Objection = Callable[[int, Tensors], str]  # of an agent of this process; empty: none


def check_of(setup: Setup, chosen: int, objection: Callable[[], Objection]) -> Check | None:
    """A check of what `chosen` floods by each agent of this process; None where it is believed.

    Nobody objects to its own. A liar objects to everyone else's."""
    if setup.growth.robust == "none":
        return None
    object_to = objection()

    def of_agent(agent: int, arrived: Tensors) -> str:
        if agent == chosen:
            return ""
        return "a lie" if agent in setup.faults.flood_liars else object_to(agent, arrived)

    return lambda arrived: [of_agent(agent, arrived) for agent in setup.exchange.agents]


def voted(task: int, chosen: int, votes: Votes) -> Voted:
    objections = {str(agent): text for agent, text in votes.objections.items()}
    return Voted(task=task, chosen=chosen, stands=not votes.refused, voters=votes.voters, objections=objections)


def nobody(setup: Setup) -> str:
    """For an error: why no agent could do it, and what helps."""
    if setup.growth.robust == "none":
        return "is gone"
    return "is gone or was refused; if their images differ much, set growth.subspace_from=all or a larger growth.slack"


def of_task_end(
    setup: Setup, state: State, end: TaskEnd, weights_of: Callable[[int], Mapping[str, Tensor]]
) -> Objection:
    """To the weights and the memory that a task leaves. `weights_of`: what an agent would flood itself, without the
    memory."""
    first: Parameters = {**state.parameters, **setup.heads[end.data.index]}
    allowed = max(AGREED, 2 * setup.gossip.left_at_end)

    def objection(agent: int, arrived: Tensors) -> str:
        own = weights_of(agent)
        memory = {name.removeprefix(MEMORY): value for name, value in arrived.items() if name.startswith(MEMORY)}
        weights = {name: value for name, value in arrived.items() if not name.startswith(MEMORY)}
        wrong = _other_form(weights, own) or weights_objection(weights, own, first, allowed)
        return wrong or setup.method.objection(end, agent, memory)

    return objection


def _other_form(arrived: Tensors, own: Tensors) -> str:
    def form(tensors: Tensors) -> dict[str, tuple[torch.Size, torch.dtype]]:
        return {name: (value.shape, value.dtype) for name, value in tensors.items()}

    if form(arrived) != form(own):
        return "its weights are not those of this model"
    broken = [name for name, value in arrived.items() if not bool(value.isfinite().all())]
    return f"{broken[0]!r} is not finite" if broken else ""


def weights_objection(arrived: Tensors, own: Tensors, first: Parameters, allowed: float) -> str:
    """To weights that should be an agent's own after agreement. `first`: those of the task's start; `allowed`: what
    they may differ by, as a part of how far it moved from there. Statistics of norms are not looked at.

    Law: nobody objects to its own."""
    moved = apart = 0.0
    for name, value in own.items():
        start = value.new_zeros(()) if name.startswith("own/") else first.get(name.removeprefix("weights/"))
        if start is not None:
            moved += float((value - start).double().square().sum())
            apart += float((value - arrived[name].to(value.device)).double().square().sum())
    moved, apart = moved**0.5, apart**0.5
    if apart > allowed * moved:
        return f"its weights are {apart:.3g} from this agent's own, {allowed * moved:.3g} is what agreement leaves"
    return ""


def of_opening(setup: Setup, state: State, look: Look, room: int) -> Objection:
    """To the directions that were chosen for a task. `room`: numbers that it may keep of its own ones."""
    layers, device = setup.roles.layers, look.data.device
    groups = directions.groups_of(layers)
    bases = growth.exact(growth.bases_of(state.memory, layers), layers, device)
    everything = growth.exact({}, layers, device)
    spaces, inputs = growth.memory_of(bases), growth.memory_of(everything)

    def numbers(of: Tensors) -> int:
        sizes = {name: layer.direction_size + layer.outputs for name, layer in groups.items()}
        return sum(basis.shape[-1] * sizes[name] for name, basis in directions.own_of(of).items())

    def objection(agent: int, arrived: Tensors) -> str:
        looks = look.looks(agent, layers, everything)
        own = directions.choose(bases, looks.own, layers, setup.own, setup.free, room)
        if {name: basis.ndim for name, basis in arrived.items()} != {name: basis.ndim for name, basis in own.items()}:
            return "the directions are not those of this model's layers"
        choices = {}
        for name in sorted(own):
            basis = arrived[name]
            kind, group = name.split("/", 1)
            if f"{kind}/" == FREE and basis.shape[-1] != own[name].shape[-1]:
                return f"the directions of {name!r} are {basis.shape[-1]}, and should be {own[name].shape[-1]}"
            space = spaces[group] if f"{kind}/" == FREE else directions.not_free(groups[group], spaces[group])
            choices[name] = Choice(basis.to(device), own[name], space, inputs[group], looks.fresh[group])
        wrong = review.choice_objection(choices, setup.growth.slack)
        if not wrong and numbers(arrived) > max(room, numbers(own)):
            wrong = "are more than the task may keep"
        return f"the directions {wrong}" if wrong else ""

    return objection
