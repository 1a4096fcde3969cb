"""The reduced ResNet-18 of the paper's miniImageNet and 5-Datasets: 20 base channels, no biases."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


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
    """`stride` of the first convolution: 1, or 2 for 84×84 images."""
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
    net.add_module("reduce", nn.AvgPool2d(2))
    net.add_module("flatten", nn.Flatten())
    with torch.no_grad():
        width = net(torch.zeros(2, *shape)).shape[1]
    net.add_module("head", nn.Linear(width, classes, bias=False))
    return net
