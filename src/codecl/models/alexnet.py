"""The AlexNet-like net of the paper's Split CIFAR-100 (no biases; 406,784 body weights on 3×32×32)."""

from collections.abc import Sequence

import torch
from torch import nn


def alexnet(shape: Sequence[int], classes: int, *, dropout: Sequence[float] = (0.2, 0.2, 0.5, 0.5, 0.5)) -> nn.Module:
    """`dropout` by layer."""
    net = nn.Sequential()
    before = shape[0]
    for number, (after, kernel) in enumerate([(16, 4), (32, 3), (64, 2)], 1):
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
        net.add_module(f"fc{number}", nn.Linear(before, 512, bias=False))
        net.add_module(f"norm{number}", nn.BatchNorm1d(512, track_running_stats=False))
        net.add_module(f"relu{number}", nn.ReLU())
        net.add_module(f"drop{number}", nn.Dropout(dropout[number - 1]))
        before = 512
    net.add_module("head", nn.Linear(before, classes, bias=False))
    return net
