"""Plain nn.Modules that know nothing of agents. A builder takes the shape of an image and the number of classes."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import gcd, prod

import torch
from torch import Tensor, nn
from torch.nn import functional

Builder = Callable[..., nn.Module]
GROUPS = 8  # of channels, at most, that a group norm normalises together


def norm_of(kind: str, features: int, maps: bool = True) -> nn.Module:
    """A norm of so many channels of maps, or features: by `batch`, `group` (of channels) or `layer` (all of an image).
    Group and layer norms do not mix images, so that agents may hold different classes."""
    if kind == "batch":
        batch_norm = nn.BatchNorm2d if maps else nn.BatchNorm1d
        return batch_norm(features, track_running_stats=False)
    if kind not in ("group", "layer"):
        raise ValueError(f"norm {kind!r} is not one of batch, group, layer")
    return nn.GroupNorm(gcd(GROUPS, features) if kind == "group" else 1, features)


def alexnet(
    shape: Sequence[int],
    classes: int,
    *,
    width: int = 1,
    dropout: Sequence[float] = (0.2, 0.2, 0.5, 0.5, 0.5),
    norm: str = "batch",
) -> nn.Module:
    """The AlexNet-like net of the paper's Split CIFAR-100 (no biases; 406,784 body weights on 3×32×32).

    `width` times as many channels and units: 4 is the net of GPM and those after it (6,499,328 body weights). `dropout`
    by layer. `norm`: batch, group or layer."""
    net = nn.Sequential()
    before, hidden = shape[0], 512 * width
    for number, (after, kernel) in enumerate([(16 * width, 4), (32 * width, 3), (64 * width, 2)], 1):
        net.add_module(f"conv{number}", nn.Conv2d(before, after, kernel, bias=False))
        net.add_module(f"norm{number}", norm_of(norm, after))
        net.add_module(f"relu{number}", nn.ReLU())
        net.add_module(f"drop{number}", nn.Dropout(dropout[number - 1]))
        net.add_module(f"pool{number}", nn.MaxPool2d(2))
        before = after
    net.add_module("flatten", nn.Flatten())
    with torch.no_grad():
        before = net(torch.zeros(2, *shape)).shape[1]
    for number in (4, 5):
        net.add_module(f"fc{number}", nn.Linear(before, hidden, bias=False))
        net.add_module(f"norm{number}", norm_of(norm, hidden, maps=False))
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

    def __init__(self, before: int, after: int, stride: int, norm: str = "batch") -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = norm_of(norm, after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = norm_of(norm, after)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), norm_of(norm, after))

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


def resnet18(
    shape: Sequence[int], classes: int, *, channels: int = 20, stride: int = 1, norm: str = "batch"
) -> nn.Module:
    """The reduced ResNet-18 of the paper's miniImageNet and 5-Datasets: 20 base channels, no biases.

    `stride` of the first convolution: 1, or 2 for 84×84 images. `norm`: batch, group or layer."""
    net = nn.Sequential()
    net.add_module("conv", nn.Conv2d(shape[0], channels, 3, stride, 1, bias=False))
    net.add_module("norm", norm_of(norm, channels))
    net.add_module("relu", nn.ReLU())
    before = channels
    for stage in range(4):
        after = channels << stage
        net.add_module(f"block{stage + 1}a", Block(before, after, 2 if stage else 1, norm))
        net.add_module(f"block{stage + 1}b", Block(after, after, 1, norm))
        before = after
    net.add_module("pool", nn.AvgPool2d(2))
    net.add_module("flatten", nn.Flatten())
    with torch.no_grad():
        width = net(torch.zeros(2, *shape)).shape[1]
    net.add_module("head", nn.Linear(width, classes, bias=False))
    return net


class Attention(nn.Module):
    """Every token looks at every other, in several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = functional.softmax(query @ key.mT * query.shape[-1] ** -0.5, dim=-1)
        seen = weights @ value  # scaled_dot_product_attention cannot be stacked on a CPU
        return self.out(seen.transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    """Attention, then a perceptron for each token, each normalised before and added to what came in."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.norm1(x)))
        return x + self.drop(self.fc2(functional.gelu(self.fc1(self.norm2(x)))))


class VisionTransformer(nn.Module):
    """Patches of an image as tokens, each with its place; the head sees their mean."""

    def __init__(self, shape: Sequence[int], classes: int, patch: int, blocks: Sequence[nn.Module], width: int) -> None:
        super().__init__()
        channels, height, wide = shape
        self.patches = nn.Conv2d(channels, width, patch, patch)
        self.places = nn.Parameter(0.02 * torch.randn(height // patch * (wide // patch), width))
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).mT + self.places
        return self.head(self.norm(self.blocks(tokens)).mean(1))


def vit(
    shape: Sequence[int],
    classes: int,
    *,
    patch: int = 4,
    width: int = 128,
    depth: int = 4,
    heads: int = 4,
    hidden: int = 256,
    dropout: float = 0.0,
) -> nn.Module:
    """A small vision transformer, to train from scratch (544,640 body weights on 3×32×32)."""
    if shape[1] % patch or shape[2] % patch or width % heads:
        raise ValueError(f"patch {patch} should divide {shape[1]}×{shape[2]}, and heads {heads} the width {width}")
    blocks = [TransformerBlock(width, heads, hidden, dropout) for _ in range(depth)]
    return VisionTransformer(shape, classes, patch, blocks, width)


MODELS: dict[str, Builder] = {"alexnet": alexnet, "convnet": convnet, "mlp": mlp, "resnet18": resnet18, "vit": vit}
