"""What an agent's loss is: the module at the agent's own parameters, on its own batch.

Nothing here knows how many agents share a device (execution.py does). Shapes: B images of a batch.
"""

import copy
from collections.abc import Collection
from contextlib import nullcontext
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from codecl.space import chart as charts
from codecl.space.chart import Chart
from codecl.space.layout import Layout, Parameters, parameters_of

COORDINATES = "codecl_coordinates"  # the name under which a factored Linear finds its coordinates


class AgentLoss:
    """One agent's loss as a function of the parameters in which agents differ.

    `factored`: names of Linear layers that work from coordinates. `half`: the module runs in bfloat16 (autocast)."""

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        factored: Collection[str] = (),
        half: bool = False,
        label_smoothing: float = 0.0,
    ) -> None:
        self.half = half
        self.label_smoothing = label_smoothing
        self.module = copy.deepcopy(module).train()  # the module as given keeps its layers as they are
        self.shared = dict(layout.constants)  # what all agents have in common while the task trains
        for slot, coords_D in layout.pieces(layout.start()):
            if slot.size == 0:
                self.shared.update(parameters_of(slot, coords_D))
        for slot in layout.slots:
            if slot.layer and slot.name in factored:
                linear = cast(nn.Linear, self.module.get_submodule(slot.layer.owner))
                factor(linear, slot.chart, slot.layer.bias is not None)

    def __call__(self, own: Parameters, images_B: Tensor, labels_B: Tensor) -> Tensor:
        autocast = torch.autocast(images_B.device.type, torch.bfloat16, cache_enabled=False)
        with autocast if self.half else nullcontext():
            logits = functional_call(self.module, {**self.shared, **own}, (images_B,))
        logits = logits.float() if self.half else logits
        return functional.cross_entropy(logits, labels_B, label_smoothing=self.label_smoothing)


def factor(linear: nn.Linear, chart: Chart, bias: bool) -> None:
    """Let a Linear work from coordinates, without its weight: y = x W0ᵀ + (x O) cᵀ. All else of it stays."""
    outputs, free = chart.anchor_GON.shape[1], chart.dims[0]
    linear.register_parameter(COORDINATES, nn.Parameter(chart.anchor_GON.new_zeros(outputs, free)))

    def forward(input: Tensor) -> Tensor:
        return charts.factored(input, getattr(linear, COORDINATES), chart, bias)

    linear.forward = forward  # type: ignore[method-assign]
