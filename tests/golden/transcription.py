"""Algorithms 1 and 2 of the paper, line by line: slow, float64, one agent after another, with full-size state.

Written without the package's algebra: weights are plain parameters, M and O plain matrices, inputs come from hooks, the
new basis from the SVD of the residual. Taken from the package: the data, the mixing matrix, the choice of agent p and
the number of agreement rounds. Amendments: x̂₀ = x₀ (as printed, x̂ lags for ever); the square in Algorithm 2, line 5; a
task ends as the design says (agents agree, then take over agent p's model).

Beyond the paper, where the config says so: a task's own directions D inside the core, with U that is the task's alone
(the model is V + U Dᵀ, V the body that all tasks share); the free directions with most energy in the place of O; norms
that each task has for itself.

Weights are [outputs, inputs] where the paper has [inputs, outputs], so products with M and O stand on the right.
"""

import copy
import itertools
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from codecl.data.task import TaskData
from codecl.seeding import choose
from codecl.train.state import Setup

Weights = dict[str, Tensor]
Matrices = dict[str, list[Tensor]]  # of each layer, one a group


def matrices(module: nn.Module, name: str, weights: Weights) -> list[Tensor]:
    """A layer's weight as one matrix [outputs, inputs] a group, its bias the last column."""
    layer = module.get_submodule(name)
    rows = weights[f"{name}.weight"].flatten(1)
    if layer.bias is not None:
        rows = torch.cat([rows, weights[f"{name}.bias"][:, None]], 1)
    return list(rows.chunk(getattr(layer, "groups", 1)))


def put(module: nn.Module, name: str, groups: list[Tensor]) -> Weights:
    layer, rows = module.get_submodule(name), torch.cat(groups)
    if layer.bias is None:
        return {f"{name}.weight": rows.reshape(layer.weight.shape)}
    return {f"{name}.weight": rows[:, :-1].reshape(layer.weight.shape), f"{name}.bias": rows[:, -1].clone()}


def gradient(module: nn.Module, weights: Weights, images: Tensor, labels: Tensor) -> tuple[float, Weights]:
    leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
    loss = functional.cross_entropy(torch.func.functional_call(module, leaves, (images,)), labels)
    grads = torch.autograd.grad(loss, list(leaves.values()))
    return loss.item(), dict(zip(leaves, grads, strict=True))


def representation(module: nn.Module, name: str, weights: Weights, images: Tensor) -> list[Tensor]:
    """R [inputs, columns] of each group of a layer."""
    seen: list[Tensor] = []
    layer = module.get_submodule(name)
    handle = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        torch.func.functional_call(module, weights, (images,))
    handle.remove()
    if isinstance(layer, nn.Linear):
        groups = [seen[0].flatten(0, -2).T]
    else:
        groups = [
            functional.unfold(part, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
            .transpose(0, 1)
            .flatten(1)
            for part in seen[0].chunk(layer.groups, 1)
        ]
    return [r if layer.bias is None else torch.cat([r, torch.ones_like(r[:1])]) for r in groups]


def gpm(memory: Tensor, r: Tensor, threshold: float) -> Tensor:
    """Add to M the least number of directions of the residual's SVD that brings the kept energy to ε."""
    residual = r - memory @ (memory.T @ r)
    u, s, _ = torch.linalg.svd(residual)
    total, known = r.square().sum(), r.square().sum() - residual.square().sum()
    k = 0
    while known + s[:k].square().sum() < threshold * total and k < len(s):
        k += 1
    return torch.cat([memory, u[:, :k]], 1)


def complement(memory: Tensor) -> Tensor:
    """O: an orthonormal basis of what M leaves."""
    u, _, _ = torch.linalg.svd(memory, full_matrices=True)
    return u[:, memory.shape[1] :]


def leading(matrix: Tensor, count: int) -> Tensor:
    """The directions in which most of these columns' energy lies."""
    return torch.linalg.svd(matrix)[0][:, :count]


def whole(module: nn.Module, layers: list[str], x: Weights, D: Matrices) -> Weights:
    """The model V + U Dᵀ, where x holds V under the names of weights, and each U."""
    out = {name: value for name, value in x.items() if not name.startswith("U ")}
    for name in layers:
        pairs = enumerate(zip(matrices(module, name, x), D[name], strict=True))
        out.update(put(module, name, [v + x[f"U {name} {k}"] @ d.T for k, (v, d) in pairs]))
    return out


def directions(setup: Setup, task: int, O: Matrices, R: Matrices) -> tuple[Matrices, Matrices]:  # noqa: E741
    """(D, F): a task's own directions inside the core, P = I - O Oᵀ, and those of O in which it trains, chosen by its
    inputs R at the start."""
    D, F = {}, {}
    for name in O:
        P = [torch.eye(len(o)).double() - o @ o.T for o in O[name]]
        sizes = [min(setup.own.directions, len(o) - len(o.T)) for o in O[name]]
        D[name] = [leading(core @ r, size) for core, r, size in zip(P, R[name], sizes, strict=True)]
        F[name] = O[name]
        if setup.free.directions is not None and (task > 0 or setup.free.first_task):
            sizes = [min(setup.free.directions, len(o.T)) for o in O[name]]
            F[name] = [leading(o @ o.T @ r, size) for o, r, size in zip(O[name], R[name], sizes, strict=True)]
    return D, F


def start(setup: Setup, module: nn.Module) -> tuple[list[str], list[str], list[Weights]]:
    body = [n for n, m in module.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    head = body.pop()
    x = [
        {name: value.detach().clone() for name, value in module.double().named_parameters()}
        for _ in range(setup.topology.agents)
    ]
    return body, [n for n in x[0] if n.startswith(f"{head}.")], x


def batches(setup: Setup, data: TaskData) -> Iterator[tuple[float, Tensor, Tensor]]:
    """Line 4 of both: the step size, images and labels of all agents, of each step of a task."""
    for epoch in range(setup.train.epochs):
        for images, labels in data.epoch(epoch, range(setup.topology.agents), setup.train.batch_size):
            yield setup.train.lr_at(epoch), images, labels


def mixed(w: Tensor, i: int, half: Weights, x: list[Weights], xhat: list[Weights]) -> Weights:
    """Line 8 of both: agent i's half step, drawn to what it knows of its neighbours."""
    return {k: half[k] + sum(w[i, j] * (xhat[j][k] - x[i][k]) for j in range(len(x))) for k in half}


def algorithm_1(
    setup: Setup, module: nn.Module, models: list[list[Weights]] | None = None
) -> Iterator[tuple[list[float], list[Weights]]]:
    """CoDeC. Yields the losses and all agents' weights after each step. After each task, `models` gets the models of
    all tasks so far."""
    module = copy.deepcopy(module).double()
    layers, head, x = start(setup, module)
    n, w = setup.topology.agents, torch.from_numpy(setup.topology.mixing)
    fresh = {name: x[0][name].clone() for name in head}
    norms = [name for name in x[0] if name not in head and name.rpartition(".")[0] not in layers]
    inputs = {name: [len(part.T) for part in matrices(module, name, x[0])] for name in layers}
    M = {name: [torch.zeros(count, 0).double() for count in inputs[name]] for name in layers}
    O = {name: [torch.eye(count).double() for count in inputs[name]] for name in layers}  # noqa: E741
    kept = []  # of each finished task: its U, head and norms, and its D
    for data in setup.tasks:
        p = choose(setup.seed, data.index, n)  # line 17, and for what is chosen before
        sample = data.sample(p, setup.growth.images)
        for i in range(n):
            x[i].update({name: value.clone() for name, value in fresh.items()})
        R = {name: representation(module, name, x[p], sample) for name in layers}
        D, F = directions(setup, data.index, O, R)
        for i, name in itertools.product(range(n), layers):
            for k, v in enumerate(matrices(module, name, x[i])):
                x[i][f"U {name} {k}"] = torch.zeros(len(v), D[name][k].shape[1]).double()
        xhat = copy.deepcopy(x)
        for eta, images, labels in batches(setup, data):
            new, losses, q = [], [], []
            for i in range(n):
                loss, g = gradient(module, whole(module, layers, x[i], D), images[i], labels[i])  # line 5
                for name in layers:  # line 6
                    parts = matrices(module, name, g)
                    g.update({f"U {name} {k}": part @ D[name][k] for k, part in enumerate(parts)})
                    parts = [part - part @ m @ m.T for part, m in zip(parts, M[name], strict=True)]
                    g.update(put(module, name, [part @ f @ f.T for part, f in zip(parts, F[name], strict=True)]))
                if data.index > 0 and not setup.own_norms:
                    g.update({name: torch.zeros_like(g[name]) for name in norms})
                half = {name: x[i][name] - eta * g[name] for name in g}  # line 7
                new.append(mixed(w, i, half, x, xhat))  # line 8
                q.append({name: new[i][name] - x[i][name] for name in half})  # line 9
                losses.append(loss)
            for j in range(n):
                c = {  # line 10: coefficients; heads, norms and U have no basis
                    name: [part @ f for part, f in zip(matrices(module, name, q[j]), F[name], strict=True)]
                    for name in layers
                }
                decoded = dict(q[j])  # lines 12 and 13
                for name in layers:
                    decoded.update(put(module, name, [part @ f.T for part, f in zip(c[name], F[name], strict=True)]))
                xhat[j] = {name: xhat[j][name] + decoded[name] for name in xhat[j]}  # line 14
            x = new
            yield losses, [whole(module, layers, weights, D) for weights in x]
        x = agreed(setup, x)
        model = whole(module, layers, x[p], D)
        for name in layers:  # lines 19-21
            rs = representation(module, name, model, sample)
            M[name] = [gpm(m, r, setup.growth.at(data.index)) for m, r in zip(M[name], rs, strict=True)]
            O[name] = [complement(m) for m in M[name]]
        own = {*head, *(norms if setup.own_norms else ())} | {name for name in x[p] if name.startswith("U ")}
        kept.append(({name: x[p][name] for name in own}, D))
        x = [{k: v.clone() for k, v in x[p].items() if not k.startswith("U ")} for _ in range(n)]  # line 22
        if models is not None:
            models.append([whole(module, layers, {**x[0], **mine}, its_D) for mine, its_D in kept])


def algorithm_2(setup: Setup, module: nn.Module) -> Iterator[tuple[list[float], list[Weights]]]:
    """D-EWC, with the gradient's norm clipped."""
    module = copy.deepcopy(module).double()
    _, head, x = start(setup, module)
    body = [name for name in x[0] if name not in head]
    n, w = setup.topology.agents, torch.from_numpy(setup.topology.mixing)
    fresh = {name: x[0][name].clone() for name in head}
    fisher = {name: torch.zeros_like(x[0][name]) for name in body}
    old = copy.deepcopy(x[0])
    penalty, clip = setup.method.penalty, setup.method.clip
    for data in setup.tasks:
        for i in range(n):
            x[i].update({name: value.clone() for name, value in fresh.items()})
        xhat = copy.deepcopy(x)
        for eta, images, labels in batches(setup, data):
            new, losses = [], []
            for i in range(n):
                loss, g = gradient(module, x[i], images[i], labels[i])
                for name in body:  # lines 5 and 6: the gradient of λ/2 F (x - x_old)²
                    g[name] = g[name] + penalty * fisher[name] * (x[i][name] - old[name])
                norm = sum(value.square().sum() for value in g.values()).sqrt()
                g = {name: value * min(1.0, float(clip / norm)) for name, value in g.items()}
                half = {name: x[i][name] - eta * g[name] for name in g}  # line 7
                new.append(mixed(w, i, half, x, xhat))  # line 8
                losses.append(loss)
            for j in range(n):  # lines 9-12
                xhat[j] = {name: xhat[j][name] + (new[j][name] - x[j][name]) for name in xhat[j]}
            x = new
            yield losses, x
        x = agreed(setup, x)
        found = {name: torch.zeros_like(value) for name, value in fisher.items()}
        count = 0
        for images, labels in data.epoch(-1, range(n), setup.train.batch_size):  # lines 17 and 22
            count += 1
            for i in range(n):
                _, g = gradient(module, x[i], images[i], labels[i])
                for name in body:
                    found[name] += setup.train.batch_size * g[name].square() / n
        t = data.index
        fisher = {name: (fisher[name] * t + found[name] / count) / (t + 1) for name in body}
        p = choose(setup.seed, t, n)
        x = [copy.deepcopy(x[p]) for _ in range(n)]
        old = copy.deepcopy(x[0])  # line 15, of the flooded model


def agreed(setup: Setup, x: list[Weights]) -> list[Weights]:
    """Gossip-only rounds."""
    w = setup.topology.mixing
    for _ in range(setup.topology.agree_rounds):
        x = [{k: sum(w[i, j] * x[j][k] for j in range(len(x))) for k in x[i]} for i in range(len(x))]
    return x
