"""μ = ‖projected gradient‖ / ‖gradient‖, how much of the gradient the free space keeps (Assumption 4 bounds its
maximum): measured beside the loop, from what it yields.

Shapes: A agents of this process, D coordinates of an agent, G groups, O outputs, N inputs of a layer.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from codecl.data.inputs import Inputs
from codecl.space import chart as charts
from codecl.space.directions import space
from codecl.space.layout import parameters_of
from codecl.train.agents import AgentLoss, Agents
from codecl.train.events import EpochEnded, Event, TaskOpened
from codecl.train.execution import EXECUTIONS, multiplying
from codecl.train.loop import LiveEpoch
from codecl.train.state import Setup


def with_mu(events: Iterable[Event], setup: Setup) -> Iterator[Event]:
    """The same events, epochs with mean and maximum of μ over agents, at the coordinates that the epoch ended with, on
    its last batch. Law: the run is the same with and without it."""
    agents: Agents | None = None
    for event in events:
        if isinstance(event, TaskOpened):
            agents = event.agents
        if isinstance(event, EpochEnded) and agents is not None:
            mu = setup.exchange.gather(mu_of(setup, agents, event.task or 0, event.live))
            event = event.model_copy(update={"mu_mean": float(mu.mean()), "mu_max": float(mu.max())})
        yield event


def mu_of(setup: Setup, agents: Agents, task: int, live: LiveEpoch) -> Tensor:
    """μ [A]; 1 where nothing is constrained: there the projected gradient is the gradient."""
    bases = setup.method.within(space(live.state.memory, live.state.directions), setup.roles.layers)
    if not bases:
        return torch.ones(len(live.coords_AD))
    data = setup.tasks[task]
    last_ABK = data.indices(live.epoch, setup.exchange.agents, setup.train.batch_size)[-1][-1]
    device = live.coords_AD.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):  # dropout goes on as if nothing had been
        batch = data.batch(last_ABK.to(device))
        grads = weight_gradients(agents, setup.module, live.coords_AD, *batch)
    return charts.constrained(grads, bases)


def weight_gradients(
    agents: Agents, module: nn.Module, coords_AD: Tensor, images_AB: Inputs, labels_AB: Tensor
) -> dict[str, Tensor]:
    """The gradient of each agent's loss by each layer's W [A, G, O, N], whatever is free in it.

    Law: in the layer's chart it is the gradient by coordinates."""
    loss = AgentLoss(module, agents.layout, half=agents.loss.half, label_smoothing=agents.loss.label_smoothing)
    own = {}
    for slot, coords in agents.layout.pieces(coords_AD.detach()):
        own.update(parameters_of(slot, coords))
    own = {name: value.requires_grad_() for name, value in own.items()}
    with multiplying(agents.precision, labels_AB.device):
        loss_A = EXECUTIONS[agents.execution](loss, own, images_AB, labels_AB)
        values = torch.autograd.grad(loss_A.sum(), list(own.values()), allow_unused=True, materialize_grads=True)
    grads = dict(zip(own, values, strict=True))
    layers = [slot.layer for slot in agents.layout.slots if slot.layer]
    return {layer.name: torch.func.vmap(layer.join)(grads) for layer in layers}
