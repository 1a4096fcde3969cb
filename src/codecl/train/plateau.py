"""A learning rate that falls when the loss on held-out images has stopped falling; a task ends with the weights of the
least loss. The rule of GPM (Saha et al. 2021), for one agent: others do not see its loss.

Shapes: A agents of this process, D coordinates of an agent, W what the rule remembers of an agent.
"""

from typing import NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

RULE = 3  # numbers beside the coordinates


class PlateauConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    factor: float = Field(0.5, gt=0, lt=1, description="what η is multiplied with when the loss has stopped falling")
    patience: int = Field(6, gt=0, description="epochs without a new least loss before it is")
    min_lr: float = Field(1e-5, gt=0, description="a task ends when η falls under this")


class Watched(NamedTuple):
    """What the rule remembers. Law: `split` undoes `joined`."""

    lr_A1: Tensor
    least_A1: Tensor  # loss so far
    patience_A1: Tensor  # epochs left
    best_AD: Tensor  # coordinates of the least loss

    def joined(self) -> Tensor:
        return torch.cat(self, 1)

    @classmethod
    def split(cls, watched_AW: Tensor) -> "Watched":
        return cls(*watched_AW.split([1, 1, 1, watched_AW.shape[1] - RULE], 1))

    def after(self, config: PlateauConfig, coords_AD: Tensor, loss: float) -> "Watched":
        """What it remembers after an epoch that ended at these coordinates with this loss on held-out images."""
        if loss < float(self.least_A1):
            patience_A1 = torch.full_like(self.patience_A1, config.patience)
            return Watched(self.lr_A1, torch.full_like(self.least_A1, loss), patience_A1, coords_AD.clone())
        if float(self.patience_A1) > 1:
            return self._replace(patience_A1=self.patience_A1 - 1)
        patience_A1 = torch.full_like(self.patience_A1, config.patience)
        return self._replace(lr_A1=self.lr_A1 * config.factor, patience_A1=patience_A1)


def start(config: PlateauConfig, lr: float, coords_AD: Tensor) -> Watched:
    one_A1 = coords_AD.new_ones(len(coords_AD), 1)
    return Watched(lr * one_A1, torch.inf * one_A1, config.patience * one_A1, coords_AD.clone())
