"""The images inside the package (NOTICE.md beside them says whose they are)."""

from importlib import resources

import numpy as np
import torch
from torch import Tensor


def load(name: str) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """((training images, labels), (test images, labels)) of `digits` or `clothes`; images uint8 [n, 1, 28, 28]."""
    with (resources.files("codecl.data") / "quickstart.npz").open("rb") as file, np.load(file) as pack:

        def split(part: str) -> tuple[Tensor, Tensor]:
            images = torch.from_numpy(pack[f"{name}_{part}_images"])[:, None]
            return images, torch.from_numpy(pack[f"{name}_{part}_labels"]).long()

        return split("train"), split("test")
