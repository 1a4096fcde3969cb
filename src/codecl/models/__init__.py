"""Plain nn.Modules that know nothing of agents. A builder takes the shape of an image and the number of classes."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional

Builder = Callable[..., nn.Module]


def alexnet(
    shape: Sequence[int], classes: int, *, width: int = 1, dropout: Sequence[float] = (0.2, 0.2, 0.5, 0.5, 0.5)
) -> nn.Module:
    """The AlexNet-like net of the paper's Split CIFAR-100 (no biases; 406,784 body weights on 3×32×32).

    `width` times as many channels and units: 4 is the net of GPM and those after it (6,499,328 body weights). `dropout`
    by layer."""
    net = nn.Sequential()
    before, hidden = shape[0], 512 * width
    for number, (after, kernel) in enumerate([(16 * width, 4), (32 * width, 3), (64 * width, 2)], 1):
        net.add_module(f"conv{number}", nn.Conv2d(before, after, kernel, bias=False))
        net.add_module(f"norm{number}", nn.BatchNorm2d(after, track_running_stats=False))
        net.add_module(f"relu{number}", nn.ReLU())
        net.add_module(f"drop{number}", nn.Dropout(dropout[number - 1]))
        net.add_module(f"pool{number}", nn.MaxPool2d(2))
        before = after
    net.add_module("flatten", nn.Flatten())
    with torch.no_grad():
        before = net(torch.zeros(2, *shape)).shape[1]
    for number in (4, 5):
        net.add_module(f"fc{number}", nn.Linear(before, hidden, bias=False))
        net.add_module(f"norm{number}", nn.BatchNorm1d(hidden, track_running_stats=False))
        net.add_module(f"relu{number}", nn.ReLU())
        net.add_module(f"drop{number}", nn.Dropout(dropout[number - 1]))
        before = hidden
    net.add_module("head", nn.Linear(before, classes, bias=False))
    return net


def convnet(
    shape: Sequence[int],
    classes: int,
    *,
    channels: Sequence[int] = (8, 16),
    kernel: int = 5,
    stride: int = 2,
    hidden: int = 64,
) -> nn.Module:
    """A small convolutional net for small grey images: the quickstart's model."""
    net = nn.Sequential()
    for number, (before, after) in enumerate(pairwise([shape[0], *channels]), 1):
        net.add_module(f"conv{number}", nn.Conv2d(before, after, kernel, stride))
        net.add_module(f"relu{number}", nn.ReLU())
    net.add_module("flatten", nn.Flatten())
    with torch.no_grad():
        width = net(torch.zeros(1, *shape)).shape[1]
    net.add_module("fc", nn.Linear(width, hidden))
    net.add_module("relu", nn.ReLU())
    net.add_module("head", nn.Linear(hidden, classes))
    return net


def mlp(
    shape: Sequence[int], classes: int, *, hidden: Sequence[int] = (256, 256), bias: bool = True, dropout: float = 0.0
) -> nn.Module:
    """A multilayer perceptron."""
    net = nn.Sequential()
    net.add_module("flatten", nn.Flatten())
    widths = [prod(shape), *hidden]
    for number, (before, after) in enumerate(pairwise(widths), 1):
        net.add_module(f"fc{number}", nn.Linear(before, after, bias=bias))
        net.add_module(f"relu{number}", nn.ReLU())
        net.add_module(f"drop{number}", nn.Dropout(dropout))
    net.add_module("head", nn.Linear(widths[-1], classes, bias=bias))
    return net


class Block(nn.Module):
    """Two 3×3 convolutions beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(after, track_running_stats=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(after, track_running_stats=False)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after, track_running_stats=False)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


def resnet18(shape: Sequence[int], classes: int, *, channels: int = 20, stride: int = 1) -> nn.Module:
    """The reduced ResNet-18 of the paper's miniImageNet and 5-Datasets: 20 base channels, no biases.

    `stride` of the first convolution: 1, or 2 for 84×84 images."""
    net = nn.Sequential()
    net.add_module("conv", nn.Conv2d(shape[0], channels, 3, stride, 1, bias=False))
    net.add_module("norm", nn.BatchNorm2d(channels, track_running_stats=False))
    net.add_module("relu", nn.ReLU())
    before = channels
    for stage in range(4):
        after = channels << stage
        net.add_module(f"block{stage + 1}a", Block(before, after, 2 if stage else 1))
        net.add_module(f"block{stage + 1}b", Block(after, after, 1))
        before = after
    net.add_module("pool", nn.AvgPool2d(2))
    net.add_module("flatten", nn.Flatten())
    with torch.no_grad():
        width = net(torch.zeros(2, *shape)).shape[1]
    net.add_module("head", nn.Linear(width, classes, bias=False))
    return net


MODELS: dict[str, Builder] = {"alexnet": alexnet, "convnet": convnet, "mlp": mlp, "resnet18": resnet18}
