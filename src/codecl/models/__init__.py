"""Plain nn.Modules that know nothing of agents. A builder takes the shape of an image and the number of classes."""

from collections.abc import Callable

from torch import nn

from codecl.models.alexnet import alexnet
from codecl.models.convnet import convnet
from codecl.models.mlp import mlp
from codecl.models.resnet18 import resnet18

Builder = Callable[..., nn.Module]

MODELS: dict[str, Builder] = {"alexnet": alexnet, "convnet": convnet, "mlp": mlp, "resnet18": resnet18}

__all__ = ["MODELS", "Builder", "alexnet", "convnet", "mlp", "resnet18"]
