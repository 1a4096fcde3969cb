"""GPM (Saha, Garg, Roy, ICLR 2021) on Split CIFAR-100 as its authors' code does it, written out without codecl.

python benchmarks/gpm/plain.py SEED [TASKS] [shuffled | fixed]

Needs cifar100.safetensors in $CODECL_DATA. `fixed`: the held-out images come in the same batches at every look, which
norms by the batch see; GPM's code shuffles them each time.
"""

import copy
import os
import sys

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MEAN = torch.tensor([125.3, 123.0, 113.9]).view(3, 1, 1)
STD = torch.tensor([63.0, 62.1, 66.7]).view(3, 1, 1)
KERNELS, DROPOUT, IMAGES = (4, 3, 2, 1, 1), (0.2, 0.2, 0.5, 0.5, 0.5), (24, 100, 100, 125, 125)
BATCH, HELD_OUT, EPOCHS, LR, LEAST_LR, PATIENCE = 64, 250, 200, 0.01, 1e-5, 6


class Net(nn.Module):
    """Three convolutions and two linear layers, a head for each task; `inputs` keeps what each layer was given."""

    def __init__(self) -> None:
        super().__init__()
        convolutions = [nn.Conv2d(*sides, bias=False) for sides in ((3, 64, 4), (64, 128, 3), (128, 256, 2))]
        self.layers = nn.ModuleList(
            [*convolutions, nn.Linear(1024, 2048, bias=False), nn.Linear(2048, 2048, bias=False)]
        )
        norms = [nn.BatchNorm2d(many, track_running_stats=False) for many in (64, 128, 256)]
        self.norms = nn.ModuleList([*norms, *(nn.BatchNorm1d(2048, track_running_stats=False) for _ in range(2))])
        self.heads = nn.ModuleList([nn.Linear(2048, 10, bias=False) for _ in range(10)])
        self.inputs: list[Tensor] = []

    def forward(self, x: Tensor, task: int) -> Tensor:
        self.inputs = []
        for layer, norm, dropout in zip(self.layers, self.norms, DROPOUT, strict=True):
            x = x.flatten(1) if isinstance(layer, nn.Linear) else x
            self.inputs.append(x)
            x = functional.dropout(functional.relu(norm(layer(x))), dropout, self.training)
            x = functional.max_pool2d(x, 2) if isinstance(layer, nn.Conv2d) else x
        return self.heads[task](x)


def images_of(data: dict[str, Tensor], split: str, task: int) -> tuple[Tensor, Tensor]:
    chosen = data[f"{split}_labels"] // 10 == task
    images = (data[f"{split}_images"][chosen].float() - MEAN) / STD
    return images.to(DEVICE), (data[f"{split}_labels"][chosen] - 10 * task).to(DEVICE)


def orders(count: int, shuffled: bool = True) -> list[Tensor]:
    order = torch.randperm(count) if shuffled else torch.arange(count)
    return list(order.to(DEVICE).split(BATCH))


@torch.no_grad()
def look(net: Net, images: Tensor, labels: Tensor, task: int, shuffled: bool = True) -> tuple[float, float]:
    """(mean loss, accuracy in %), each batch normalised by itself."""
    net.eval()
    loss = hits = 0.0
    for batch in orders(len(images), shuffled):
        outputs = net(images[batch], task)
        loss += float(functional.cross_entropy(outputs, labels[batch], reduction="sum"))
        hits += float((outputs.argmax(1) == labels[batch]).sum())
    return loss / len(images), 100 * hits / len(images)


def train(net: Net, images: Tensor, labels: Tensor, task: int, projections: list[Tensor], shuffled: bool) -> int:
    """One task; the weights of the least loss on the images that are held out. Gives the number of epochs."""
    order = torch.randperm(len(images), device=DEVICE)
    held_out, rest = order[:HELD_OUT], order[HELD_OUT:]
    kept_images, kept_labels = images[rest], labels[rest]
    lr, least, patience, best = LR, float("inf"), PATIENCE, net.state_dict()
    optimizer = torch.optim.SGD(net.parameters(), lr)
    for epoch in range(1, EPOCHS + 1):  # noqa: B007  it is given back
        net.train()
        for batch in orders(len(rest)):
            optimizer.zero_grad()
            functional.cross_entropy(net(kept_images[batch], task), kept_labels[batch]).backward()
            for layer, projection in zip(net.layers if projections else (), projections, strict=True):
                layer.weight.grad -= (layer.weight.grad.flatten(1) @ projection).view_as(layer.weight)
            for value in net.norms.parameters() if projections else ():
                value.grad.zero_()
            optimizer.step()
        loss, _ = look(net, images[held_out], labels[held_out], task, shuffled)
        if loss < least:
            least, patience, best = loss, PATIENCE, copy.deepcopy(net.state_dict())
            continue
        patience -= 1
        if not patience:
            lr, patience = lr / 2, PATIENCE
            if lr < LEAST_LR:
                break
            for group in optimizer.param_groups:
                group["lr"] = lr
    net.load_state_dict(best)
    return epoch


@torch.no_grad()
def grown(net: Net, images: Tensor, task: int, bases: list[Tensor]) -> list[Tensor]:
    """The bases of the cores after this task: the leading directions of what the old ones leave of 125 images."""
    net.eval()
    net(images[torch.randperm(len(images), device=DEVICE)[:125]], task)
    out, threshold = [], 0.97 + 0.003 * task
    for inputs, kernel, many, basis in zip(net.inputs, KERNELS, IMAGES, bases or [None] * 5, strict=True):
        columns = inputs[:many]
        columns = functional.unfold(columns, kernel).transpose(0, 1).flatten(1) if kernel > 1 else columns.T
        energy = columns.double().square().sum()
        if basis is not None:
            columns = columns - basis @ (basis.T @ columns)
        values, vectors = torch.linalg.eigh(columns.double() @ columns.double().T)
        values, vectors = values.flip(0).clamp(min=0), vectors.flip(1).float()
        held = (energy - values.sum() + torch.cumsum(values, 0)) / energy
        count = int((held < threshold).sum())
        if basis is not None and (energy - values.sum()) / energy < threshold:
            count += 1  # as their code does, but for the first task
        out.append(vectors[:, :count] if basis is None else torch.cat([basis, vectors[:, :count]], 1))
    return out


def main() -> None:
    seed, tasks = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10
    looks = sys.argv[3] if len(sys.argv) > 3 else "shuffled"
    torch.manual_seed(seed)
    data, net = load_file(os.environ["CODECL_DATA"] + "/cifar100.safetensors"), Net().to(DEVICE)
    bases: list[Tensor] = []
    for task in range(tasks):
        images, labels = images_of(data, "train", task)
        epochs = train(net, images, labels, task, [basis @ basis.T for basis in bases], looks == "shuffled")
        found = [round(look(net, *images_of(data, "test", one), one)[1], 1) for one in range(task + 1)]
        bases = grown(net, images, task, bases)
        print(
            "plain",
            looks,
            seed,
            "task",
            task + 1,
            "epochs",
            epochs,
            found,
            "core",
            [b.shape[1] for b in bases],
            flush=True,
        )


if __name__ == "__main__":
    main()
