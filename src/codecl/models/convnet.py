"""A small convolutional net for small grey images: the quickstart's model."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn


def convnet(
    shape: Sequence[int], classes: int, *, channels: Sequence[int] = (16, 32), kernel: int = 5, hidden: int = 128
) -> nn.Module:
    """Convolutions with ReLU and 2×2 max-pooling, then one hidden layer."""
    net = nn.Sequential()
    for number, (before, after) in enumerate(pairwise([shape[0], *channels]), 1):
        net.add_module(f"conv{number}", nn.Conv2d(before, after, kernel))
        net.add_module(f"relu{number}", nn.ReLU())
        net.add_module(f"pool{number}", nn.MaxPool2d(2))
    net.add_module("flatten", nn.Flatten())
    with torch.no_grad():
        width = net(torch.zeros(1, *shape)).shape[1]
    net.add_module("fc", nn.Linear(width, hidden))
    net.add_module("relu", nn.ReLU())
    net.add_module("head", nn.Linear(hidden, classes))
    return net
