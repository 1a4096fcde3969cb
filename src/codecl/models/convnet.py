"""A small convolutional net for small grey images: the quickstart's model."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn


def convnet(
    shape: Sequence[int],
    classes: int,
    *,
    channels: Sequence[int] = (8, 16),
    kernel: int = 5,
    stride: int = 2,
    hidden: int = 64,
) -> nn.Module:
    """Strided convolutions with ReLU, then one hidden layer."""
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
