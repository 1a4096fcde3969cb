"""CoDeC with full messages on 5-Datasets as its authors' code does it, written out without codecl: a second opinion.

python benchmarks/five-datasets-plain/plain.py GRAPH AGENTS SEED [TASKS] [EPOCHS]

GRAPH is ring (each hears the one before it) or torus (each hears those 1 and 4 away on a circle, as in that code).
Needs the five data sets in $CODECL_DATA. On a GPU a step of all agents is one CUDA graph.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from itertools import pairwise

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SETS = {  # mean and deviation that images are normalised with
    "cifar10": ([125.3 / 255, 123.0 / 255, 113.9 / 255], [63.0 / 255, 62.1 / 255, 66.7 / 255]),
    "mnist": ([0.1], [0.2752]),
    "svhn": ([0.4377, 0.4438, 0.4728], [0.198, 0.201, 0.197]),
    "fashion-mnist": ([0.2190], [0.3318]),
    "notmnist": ([0.4254], [0.4501]),
}
LR, BATCH, TEST_BATCH, THRESHOLD, GOSSIP = 0.1, 32, 64, 0.965, 50
GROWTH = 128  # images that pass through the net for growth; of them each layer, in order, looks at the first
LOOKS_AT = [10] * 9 + [50] * 4 + [100] * 7


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs, track_running_stats=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs, track_running_stats=False)
        self.shortcut = nn.Sequential()
        if inputs != outputs:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(outputs, track_running_stats=False))

    def forward(self, x: Tensor) -> Tensor:
        inside = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(inside)) + self.shortcut(x))


class Net(nn.Module):
    """ResNet-18 with 20 channels, a head for each task."""

    def __init__(self) -> None:
        super().__init__()
        widths = [20, 20, 20, 40, 40, 80, 80, 160, 160]
        blocks = [Block(*pair, 2 if pair[0] != pair[1] else 1) for pair in pairwise(widths)]
        first = [nn.Conv2d(3, 20, 3, 1, 1, bias=False), nn.BatchNorm2d(20, track_running_stats=False), nn.ReLU()]
        self.body = nn.Sequential(*first, *blocks, nn.AvgPool2d(2), nn.Flatten())
        self.heads = nn.ModuleList([nn.Linear(640, 10, bias=False) for _ in SETS])

    def forward(self, x: Tensor, task: int) -> Tensor:
        return self.heads[task](self.body(x))

    def convolutions(self) -> list[nn.Conv2d]:
        return [module for module in self.modules() if isinstance(module, nn.Conv2d)]


def read(name: str) -> dict[str, tuple[Tensor, Tensor]]:
    data, (mean, std), out = load_file(f"{os.environ['CODECL_DATA']}/{name}.safetensors"), SETS[name], {}
    for split in ("train", "test"):
        x, labels = data[f"{split}_images"], data[f"{split}_labels"]
        if x.shape[-1] == 28:
            x = functional.pad(x, (2, 2, 2, 2))
        x = (x / 255 - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)
        out[split] = x.expand(-1, 3, -1, -1).contiguous().to(DEVICE), labels.to(DEVICE)
    return out


def mixing(graph: str, agents: int) -> Tensor:
    """Row i: the agents that i hears, and itself, with equal weights."""
    offsets = sorted({offset % agents for offset in ((0, 1, -1, 4, -4) if graph == "torus" else (0, -1))})
    out = torch.zeros(agents, agents)
    for agent in range(agents):
        for offset in offsets:
            out[agent, (agent + offset) % agents] = 1 / len(offsets)
    return out.to(DEVICE)


class Agents:
    """Nets whose parameters are rows of one tensor, so that mixing is a product."""

    def __init__(self, count: int) -> None:
        first = Net().to(DEVICE)
        self.nets = [Net().to(DEVICE) for _ in range(count)]
        self.rows = torch.cat([p.detach().flatten() for p in first.parameters()]).repeat(count, 1)
        for net, row in zip(self.nets, self.rows, strict=True):
            start = 0
            for parameter in net.parameters():
                parameter.data = row[start : start + parameter.numel()].view_as(parameter)
                start += parameter.numel()

    def mix(self, weights: Tensor) -> None:
        self.rows.copy_(weights @ self.rows)


def descend(net: Net, task: int, x: Tensor, y: Tensor, lr: Tensor, cores: list[Tensor]) -> Tensor:
    """An SGD step of one agent. After the first task gradients leave the core, and norms do not learn."""
    loss = functional.cross_entropy(net(x, task), y)
    trained = [*net.body.parameters(), net.heads[task].weight]
    grads = torch.autograd.grad(loss, trained)
    layer = iter(cores)
    for parameter, grad in zip(trained, grads, strict=True):
        if cores and parameter.dim() == 1:
            continue
        if cores and parameter.dim() == 4:
            flat = grad.flatten(1)
            core = next(layer)
            grad = (flat - (flat @ core) @ core.T).view_as(grad)
        parameter.data.sub_(lr * grad)
    return loss.detach()


def stepper(
    agents: Agents, task: int, data: tuple[Tensor, Tensor], batch: int, lr: Tensor, cores: list[Tensor], weights: Tensor
) -> Callable[[Tensor], Tensor]:
    """A step of all agents on images [agents, batch], then mixing; on a GPU recorded once and replayed."""
    images, labels = data
    which = torch.zeros(len(agents.nets), batch, dtype=torch.long, device=DEVICE)

    def one(agent: int) -> Tensor:
        own = which[agent]
        return descend(agents.nets[agent], task, images[own], labels[own], lr, cores)

    if DEVICE.type == "cpu":

        def step(indices: Tensor) -> Tensor:
            which.copy_(indices)
            losses = torch.stack([one(agent) for agent in range(len(agents.nets))])
            agents.mix(weights)
            return losses.mean()

        return step

    kept, streams = agents.rows.clone(), [torch.cuda.Stream() for _ in range(8)]

    def parallel() -> Tensor:
        here, losses = torch.cuda.current_stream(), []
        for stream in streams:
            stream.wait_stream(here)
        for agent in range(len(agents.nets)):
            with torch.cuda.stream(streams[agent % len(streams)]):
                losses.append(one(agent))
        for stream in streams:
            here.wait_stream(stream)
        loss = torch.stack(losses).mean()
        agents.mix(weights)
        return loss

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            parallel()
    torch.cuda.current_stream().wait_stream(aside)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = parallel()
    agents.rows.copy_(kept)

    def replay(indices: Tensor) -> Tensor:
        which.copy_(indices)
        graph.replay()
        return loss

    return replay


def learn(
    agents: Agents,
    task: int,
    data: tuple[Tensor, Tensor],
    shards: Tensor,
    epochs: int,
    cores: list[Tensor],
    weights: Tensor,
) -> None:
    lr, last = torch.tensor(LR, device=DEVICE), shards.shape[1] % BATCH
    steps = {size: stepper(agents, task, data, size, lr, cores, weights) for size in (BATCH, last) if size > 1}
    for epoch in range(epochs):
        lr.fill_(LR * 0.1 ** ((epoch >= epochs // 2) + (epoch >= epochs * 3 // 4)))
        order, losses = shards[:, torch.randperm(shards.shape[1]).to(DEVICE)], []  # all shuffle alike: one seed
        for indices in order.split(BATCH, 1):
            if indices.shape[1] > 1:
                losses.append(steps[indices.shape[1]](indices).clone())
        if epoch % 10 == 9:
            print(f"task {task + 1}, epoch {epoch + 1}: loss {torch.stack(losses).mean():.4f}", flush=True)


@torch.no_grad()
def inputs(net: Net, task: int, images: Tensor) -> list[Tensor]:
    """What each convolution multiplies: a column for each patch of the images that it looks at."""
    seen: list[Tensor] = []
    hooks = [layer.register_forward_pre_hook(lambda _, given: seen.append(given[0])) for layer in net.convolutions()]
    net(images, task)
    for hook in hooks:
        hook.remove()
    out = []
    for layer, x, many in zip(net.convolutions(), seen, LOOKS_AT, strict=True):
        patches = functional.unfold(x[:many].double(), layer.kernel_size, padding=layer.padding, stride=layer.stride)
        out.append(patches.transpose(0, 1).flatten(1))
    return out


def grow(cores: list[Tensor], matrices: list[Tensor]) -> list[Tensor]:
    """GPM: the fewest directions that bring the energy to the threshold; after the first task one fewer, as there."""
    out = []
    for index, patches in enumerate(matrices):
        core = cores[index].double() if cores else patches.new_zeros(patches.shape[0], 0)
        rest = patches - core @ (core.T @ patches)
        energy, directions = torch.linalg.eigh(rest @ rest.T)
        energy, directions = energy.flip(0).clamp(min=0), directions.flip(1)
        total = patches.square().sum()
        reached = (total - energy.sum()) / total + torch.cat([energy.new_zeros(1), (energy / total).cumsum(0)])
        many = int((reached < THRESHOLD).sum())  # so many are needed: before the k-th, `reached` is too little
        many -= not cores
        out.append(torch.cat([core, directions[:, :many]], 1).float())
    return out


@torch.no_grad()
def accuracy(net: Net, task: int, images: Tensor, labels: Tensor) -> float:
    right = 0
    for some in torch.randperm(len(labels)).to(DEVICE).split(TEST_BATCH):
        right += int((net(images[some], task).argmax(1) == labels[some]).sum())
    return 100 * right / len(labels)


def main(graph: str, agents: str, seed: str, tasks: str = "5", epochs: str = "50") -> None:
    torch.manual_seed(int(seed))
    torch.backends.cudnn.benchmark = True
    sets, weights = [read(name) for name in list(SETS)[: int(tasks)]], mixing(graph, int(agents))
    everyone, cores, matrix, began = Agents(int(agents)), [], [], time.time()
    for task, data in enumerate(sets):
        count = len(data["train"][1]) // int(agents)
        shards = torch.randperm(len(data["train"][1])).to(DEVICE)[: count * int(agents)].view(int(agents), count)
        learn(everyone, task, data["train"], shards, int(epochs), cores, weights)
        for _ in range(GOSSIP):
            everyone.mix(weights)
        net = everyone.nets[0]
        matrix.append([accuracy(net, earlier, *sets[earlier]["test"]) for earlier in range(task + 1)])
        print(
            f"after task {task + 1}: {[round(value, 1) for value in matrix[-1]]}, {time.time() - began:.0f} s",
            flush=True,
        )
        sample = shards[0, torch.randperm(count)[:GROWTH].to(DEVICE)]
        cores = grow(cores, inputs(net, task, data["train"][0][sample]))
    last = len(matrix) - 1
    bwt = sum(matrix[last][task] - matrix[task][task] for task in range(last)) / max(last, 1)
    facts = {"graph": graph, "agents": int(agents), "seed": int(seed), "epochs": int(epochs)}
    found = {"acc": sum(matrix[last]) / len(matrix), "bwt": bwt, "accuracy_matrix": matrix}
    print(json.dumps(facts | found | {"core": [core.shape[1] for core in cores], "torch": torch.__version__}))


if __name__ == "__main__":
    if not 4 <= len(sys.argv) <= 6:
        sys.exit(__doc__)
    main(*sys.argv[1:])
