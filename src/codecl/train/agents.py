"""The agents of this process on one task: what an agent's loss is, and loss and gradient of all of them at once.

weights.py builds what agents differ in, execution.py says how they share a device.
Shapes: A agents of this process, D coordinates of an agent, B images of a batch.
"""

import copy
import warnings
from collections.abc import Collection
from contextlib import nullcontext
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from codecl.data.inputs import Inputs
from codecl.space import chart as charts
from codecl.space.calling import call
from codecl.space.chart import Chart
from codecl.space.layout import Layout, Parameters, parameters_of
from codecl.train import kernels, shared_norms
from codecl.train.config import TrainConfig
from codecl.train.execution import EXECUTIONS, Execution, multiplying
from codecl.train.objective import LOSSES, Loss, loss_of
from codecl.train.weights import COORDINATES, WeightBuilder, factored_layers


class AgentLoss:
    """One agent's loss as a function of the parameters in which agents differ.

    `factored`: names of Linear layers that work from coordinates. `half`: the module runs in bfloat16 (autocast)."""

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        factored: Collection[str] = (),
        half: bool = False,
        function: Loss = functional.cross_entropy,
    ) -> None:
        self.half = half
        self.function = function  # of outputs and targets
        self.module = copy.deepcopy(module).train()  # the module as given keeps its layers as they are
        self.shared = dict(layout.constants)  # what all agents have in common while the task trains
        for slot, coords_D in layout.pieces(layout.start()):
            if slot.size == 0:
                self.shared.update(parameters_of(slot, coords_D))
        self._notes: list[Tensor] = []  # of norms with shared statistics: what draws these to the batch's
        for slot in layout.slots:
            if slot.layer and slot.name in factored:
                linear = cast(nn.Linear, self.module.get_submodule(slot.layer.owner))
                factor(linear, slot.chart, slot.layer.bias is not None)
            elif slot.kind == "statistics":
                shared_norms.follow(self.module.get_submodule(slot.name.rpartition(".")[0]), self._notes.append)

    def __call__(self, own: Parameters, images_B: Inputs, labels_B: Tensor) -> Tensor:
        autocast = torch.autocast(labels_B.device.type, torch.bfloat16, cache_enabled=False)
        self._notes.clear()
        with autocast if self.half else nullcontext():
            logits = call(self.module, {**self.shared, **own}, images_B)
        logits = logits.float() if self.half else logits
        loss = self.function(logits, labels_B)
        for noted in self._notes:
            loss = loss + (noted - noted.detach())  # its gradient alone
        return loss


def factor(linear: nn.Linear, chart: Chart, bias: bool) -> None:
    """Let a Linear work from coordinates, without its weight: y = x W0ᵀ + (x O) cᵀ. All else of it stays."""
    outputs, free = chart.anchor_GON.shape[1], chart.dims[0]
    linear.register_parameter(COORDINATES, nn.Parameter(chart.anchor_GON.new_zeros(outputs, free)))

    def forward(input: Tensor) -> Tensor:
        return charts.factored(input, getattr(linear, COORDINATES), chart, bias)

    linear.forward = forward  # type: ignore[method-assign]


class BuiltAgents(NamedTuple):
    """What the agents differ in at some coordinates, ready for a gradient."""

    coords_AD: Tensor  # what the gradient is taken by
    own: Parameters


class Agents:
    """Loss and gradient of all agents of this process, each at its own coordinates on its own batch.

    What the model or the device cannot take gives way on the first step: kernels to PyTorch's layers, stacking to a
    loop."""

    def __init__(
        self, module: nn.Module, layout: Layout, agents: int, execution: Execution, config: TrainConfig
    ) -> None:
        start_D = layout.start()
        self.layout, self.precision = layout, config.precision
        self.execution: Execution = "loop" if execution == "streams" and not start_D.is_cuda else execution
        self.factored = factored_layers(layout, agents, config.batch_size)
        half = config.precision == "bf16" and start_D.dtype == torch.float32
        self.loss = AgentLoss(module, layout, self.factored, half, loss_of(config))
        with_kernels = execution == "stacked" and kernels.available(start_D.device, start_D.dtype)
        self._kernels = kernels.install(self.loss.module, config.precision) if with_kernels else []
        self._weights = WeightBuilder(self.loss.module, layout, self.factored, self._kernels)
        self._has_worked = False
        self._why_loop = ""
        self.own_loss = config.loss if config.loss not in LOSSES else None

    def gradient(self, coords_AD: Tensor, images_AB: Inputs, labels_AB: Tensor) -> tuple[Tensor, Tensor]:
        """(loss [A], its gradient by each agent's coordinates [A, D]): Algorithm 1, lines 5 and 6 in one.

        Law: stacked agents equal a loop over agents."""
        return self.gradient_at(self.build(coords_AD), images_AB, labels_AB)

    def build(self, coords_AD: Tensor) -> BuiltAgents:
        """What the agents differ in, at these coordinates. On a GPU it is made beside what comes next, and the gradient
        is taken back to coordinates beside the rest of the backward pass."""
        coords = coords_AD.detach().requires_grad_()
        with multiplying(self.precision, coords.device):
            return BuiltAgents(coords, self._weights.build(coords))

    def gradient_at(self, built: BuiltAgents, images_AB: Inputs, labels_AB: Tensor) -> tuple[Tensor, Tensor]:
        """`gradient` at what was built."""
        with multiplying(self.precision, labels_AB.device):
            while not self._has_worked:
                try:
                    loss_A, grad_AD = self._gradient(built, images_AB, labels_AB)
                except Exception as error:  # a kernel that this GPU cannot take is none of PyTorch's errors
                    if not self._gives_way(error):
                        raise
                else:
                    self._has_worked = True
                    if self._why_loop:
                        what = "model" if self.own_loss is None else f"model with {self.own_loss}"
                        line = f"agents run one after another: this {what} cannot be stacked ({self._why_loop})"
                        warnings.warn(line, stacklevel=2)
                    return loss_A, grad_AD
            return self._gradient(built, images_AB, labels_AB)

    def _gradient(self, built: BuiltAgents, images_AB: Inputs, labels_AB: Tensor) -> tuple[Tensor, Tensor]:
        loss_A = EXECUTIONS[self.execution](self.loss, built.own, images_AB, labels_AB)
        if self.layout.size:
            (grad_AD,) = torch.autograd.grad(loss_A.sum(), built.coords_AD)
        else:  # nothing is left free
            grad_AD = torch.zeros_like(built.coords_AD)
        self._weights.wait()
        return loss_A.detach(), grad_AD

    def _gives_way(self, error: Exception) -> bool:
        """Whether there is another way: without kernels, where other layers cannot take what they give, then a loop."""
        if isinstance(error, torch.OutOfMemoryError):
            return False
        if self._kernels:
            for layer in self._kernels:
                del layer.forward
            self._kernels = []
            self._weights.channels_last.clear()
            return True
        if self.execution == "stacked" and isinstance(error, RuntimeError):
            self.execution = "loop"
            self._why_loop = str(error).strip().splitlines()[0][:200]
            return True
        return False
