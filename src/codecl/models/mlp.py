"""A multilayer perceptron."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import nn


def mlp(
    shape: Sequence[int], classes: int, *, hidden: Sequence[int] = (256, 256), bias: bool = True, dropout: float = 0.0
) -> nn.Module:
    net = nn.Sequential()
    net.add_module("flatten", nn.Flatten())
    widths = [prod(shape), *hidden]
    for number, (before, after) in enumerate(pairwise(widths), 1):
        net.add_module(f"fc{number}", nn.Linear(before, after, bias=bias))
        net.add_module(f"relu{number}", nn.ReLU())
        net.add_module(f"drop{number}", nn.Dropout(dropout))
    net.add_module("head", nn.Linear(widths[-1], classes, bias=bias))
    return net
