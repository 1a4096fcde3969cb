"""The agents of this process on one task: loss and gradient of all of them at once.

Shapes: A agents of this process, D coordinates of an agent, B images of a batch.
"""

import copy
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional

from codecl.data.task import in_batches
from codecl.space import chart as charts
from codecl.space.chart import Chart
from codecl.space.layout import Layout, Parameters, Slot, parameters_of
from codecl.train import kernels
from codecl.train.precision import Precision, multiplying

Execution = Literal["stacked", "streams", "loop"]
MAX_STREAMS = 16  # of agents that share a device: more only take turns
BUILDERS = 4  # streams that build weights beside the main one
BESIDE = 4 * 10**9  # multiplications of all agents that a GPU does beside other work in less than factoring's launches
COORDS = "codecl_coordinates"  # the name under which a factored Linear finds its coordinates


def factor(linear: nn.Linear, chart: Chart, bias: bool, built: Callable[[], bool]) -> None:
    """Let a Linear work from coordinates, without its weight: y = x W0ᵀ + (x O) cᵀ, unless that is `built` this time.
    All else of it stays."""
    outputs, free = chart.anchor_GON.shape[1], chart.dims[0]
    linear.register_parameter(COORDS, nn.Parameter(chart.anchor_GON.new_zeros(outputs, free)))

    def forward(input: Tensor) -> Tensor:
        if built():
            return functional.linear(input, linear.weight, linear.bias)
        return charts.factored(input, getattr(linear, COORDS), chart, bias)

    linear.forward = forward  # type: ignore[method-assign]


class Agents:
    """Loss and gradient of all agents of this process, each at its own coordinates on its own batch.

    `execution`: `stacked` as one computation (vmap), in `streams` of their own on a GPU, or in a `loop`."""

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        agents: int,
        batch: int,
        execution: Execution = "stacked",
        precision: Precision = "highest",
        smoothing: float = 0.0,
    ) -> None:
        self.layout, self.execution, self.precision, self.smoothing = layout, execution, precision, smoothing
        self.factored = frozenset(slot.name for slot in layout.slots if _factor(slot, batch, agents))
        self.shared = dict(layout.constants)  # what all agents have in common while the task trains
        for slot, piece in layout.pieces(layout.start()):
            if slot.size == 0:
                self.shared.update(parameters_of(slot, piece))
        self.module = copy.deepcopy(module).train()  # the module as given keeps its layers as they are
        for slot in layout.slots:
            if slot.layer and slot.name in self.factored:
                linear = cast(nn.Linear, self.module.get_submodule(slot.layer.owner))
                factor(linear, slot.chart, slot.layer.bias is not None, lambda: self._whole)
        start_D = layout.start()
        with_kernels = execution == "stacked" and kernels.available(start_D.device, start_D.dtype)
        self._with_kernels = kernels.install(self.module, precision) if with_kernels else []
        self._turned = {slot.name: _channels_last(slot) for slot in layout.slots if self._turns(slot)}
        self._half = precision == "bf16" and start_D.dtype == torch.float32
        self._settled = False  # whether this way of execution has worked once
        self._whole = False  # whether all weights are built just now
        if execution == "streams" and not start_D.is_cuda:
            self.execution = "loop"
        self._streams = _streams("agents", min(agents, MAX_STREAMS)) if self.execution == "streams" else ()
        self._builders = _streams("builders", BUILDERS) if start_D.is_cuda else ()
        self._ready: dict[str, torch.cuda.Event] = {}
        for slot in layout.slots if self._builders else ():
            if slot.layer and slot.layer.owned and slot.size and slot.name not in self.factored:
                self.module.get_submodule(slot.layer.owner).register_forward_pre_hook(self._wait_for(slot.layer.owner))

    def gradient(self, coords_AD: Tensor, images_AB: Tensor, labels_AB: Tensor) -> tuple[Tensor, Tensor]:
        """(loss [A], its gradient by each agent's coordinates [A, D]): Algorithm 1, lines 5 and 6 in one.

        Law: stacked agents equal a loop over agents."""
        return self.gradient_at(self.build(coords_AD), images_AB, labels_AB)

    def build(self, coords_AD: Tensor, whole: bool = False) -> "Built":
        """What the agents differ in, at these coordinates. On a GPU it is made beside what comes next, and the gradient
        is taken back to coordinates beside the rest of the backward pass. `whole`: every layer's weight is built."""
        coords = coords_AD.detach().requires_grad_()
        for stream in self._builders:
            stream.wait_stream(torch.cuda.current_stream())
        with multiplying(self.precision, coords.device):
            return Built(coords, self._own(coords, whole), whole)

    def gradient_at(self, built: "Built", images_AB: Tensor, labels_AB: Tensor) -> tuple[Tensor, Tensor]:
        """`gradient` at what was built."""
        loss_A, grad_AD, _ = self._gradients(built, images_AB, labels_AB)
        return loss_A, grad_AD

    def gradients_at(self, built: "Built", images_AB: Tensor, labels_AB: Tensor) -> tuple[Tensor, Tensor, Parameters]:
        """(loss [A], its gradient by coordinates [A, D], its gradient by each layer's W [A, G, O, N]) at weights that
        were built whole. Law: the second is the third in the layer's chart."""
        loss_A, grad_AD, grads = self._gradients(built, images_AB, labels_AB)
        layers = [slot.layer for slot in self.layout.slots if slot.layer]
        return loss_A, grad_AD, {layer.name: vmap(layer.join)(grads) for layer in layers}

    def _gradients(self, built: "Built", images_AB: Tensor, labels_AB: Tensor) -> tuple[Tensor, Tensor, Parameters]:
        self._whole = built.whole
        with multiplying(self.precision, images_AB.device):
            if self.execution != "stacked":
                return self._gradient(self._one_by_one, built, images_AB, labels_AB)
            try:
                return self._stacked(built, images_AB, labels_AB)
            except RuntimeError as error:
                if self._settled or isinstance(error, torch.OutOfMemoryError):
                    raise
                self.execution = "loop"
                out = self._gradient(self._one_by_one, built, images_AB, labels_AB)  # the model's own error shows
                reason = str(error).strip().splitlines()[0][:200]
                warnings.warn(f"agents run one after another: this model cannot be stacked ({reason})", stacklevel=2)
                return out

    def _stacked(self, built: "Built", images_AB: Tensor, labels_AB: Tensor) -> tuple[Tensor, Tensor, Parameters]:
        """All agents as one computation; without kernels where the model's other layers cannot take what they give."""
        losses = vmap(self._loss, randomness="different")
        try:
            return self._gradient(losses, built, images_AB, labels_AB)
        except Exception as error:  # a kernel that this GPU cannot take is none of PyTorch's errors
            if self._settled or not self._with_kernels or isinstance(error, torch.OutOfMemoryError):
                raise
            for part in self._with_kernels:
                del part.forward
            self._with_kernels, self._turned = [], {}
            return self._gradient(losses, built, images_AB, labels_AB)

    def _gradient(
        self, losses: Callable[..., Tensor], built: "Built", images_AB: Tensor, labels_AB: Tensor
    ) -> tuple[Tensor, Tensor, Parameters]:
        """(losses, gradient by coordinates, gradient by what was built where all of it was)."""
        loss_A = losses(built.own, images_AB, labels_AB)
        own = built.own if built.whole else {}
        if self.layout.size or own:
            sources = [built.coords_AD, *own.values()]
            grad_AD, *grads = torch.autograd.grad(
                loss_A.sum(), sources, allow_unused=bool(own), materialize_grads=bool(own)
            )
        else:  # nothing is left free
            grad_AD, grads = torch.zeros_like(built.coords_AD), []
        for stream in self._builders:
            torch.cuda.current_stream().wait_stream(stream)
        self._settled = True
        return loss_A.detach(), grad_AD, dict(zip(own, grads, strict=True))

    def _one_by_one(self, own: Parameters, images_AB: Tensor, labels_AB: Tensor) -> Tensor:
        """Agent after agent, or each in a stream of its own; the backward pass follows each agent into its stream."""
        rows = zip(*(value.unbind() for value in own.values()), strict=True) if own else [()] * len(images_AB)
        each = [dict(zip(own, row, strict=True)) for row in rows]
        if not images_AB.is_cuda and images_AB.ndim == 5:  # a CPU's convolutions are faster with channels last
            images_AB = images_AB.flatten(0, 1).contiguous(memory_format=torch.channels_last).view_as(images_AB)
        if not self._streams:
            return torch.stack([self._loss(*one) for one in zip(each, images_AB, labels_AB, strict=True)])
        main, losses = torch.cuda.current_stream(), []
        for stream in self._streams:
            stream.wait_stream(main)
        for number, one in enumerate(zip(each, images_AB, labels_AB, strict=True)):
            with torch.cuda.stream(self._streams[number % len(self._streams)]):
                losses.append(self._loss(*one))
        for stream in self._streams:
            main.wait_stream(stream)
        return torch.stack(losses)

    def _loss(self, own: Parameters, images_B: Tensor, labels_B: Tensor) -> Tensor:
        """Of one agent with these parameters of its own."""
        kind = images_B.device.type
        with torch.autocast(kind, torch.bfloat16, cache_enabled=False) if self._half else nullcontext():
            out = functional_call(self.module, {**self.shared, **own}, (images_B,))
        return functional.cross_entropy(out.float() if self._half else out, labels_B, label_smoothing=self.smoothing)

    def _own(self, coords_AD: Tensor, whole: bool) -> dict[str, Tensor]:
        """What differs between agents, for all of them at once: built weights, coordinates of factored layers. `whole`:
        also the weights of layers that are factored, or have nothing free."""
        out = {}
        for number, (slot, piece) in enumerate(self.layout.pieces(coords_AD)):
            if slot.layer and slot.name in self.factored and not whole:
                out[f"{slot.layer.owner}.{COORDS}".lstrip(".")] = charts.unflatten(piece, slot.chart).squeeze(-3)
            elif slot.layer and slot.size and self._builders:
                stream = self._builders[number % BUILDERS]
                with torch.cuda.stream(stream):
                    out.update(self._built(slot, piece))
                self._ready[slot.layer.owner] = stream.record_event()
                if not slot.layer.owned or slot.name in self.factored:  # nobody waits for it when it is used
                    torch.cuda.current_stream().wait_event(self._ready[slot.layer.owner])
            elif slot.size or (whole and slot.layer):
                out.update(self._built(slot, piece))
        return out

    def _built(self, slot: Slot, piece_AD: Tensor) -> dict[str, Tensor]:
        """The slot's parameters, laid out as the kernels read them."""
        turned = self._turned.get(slot.name)
        if slot.layer is None or turned is None:
            return parameters_of(slot, piece_AD)
        outputs, channels, *size = slot.shape
        weight_AON = charts.decode(piece_AD, turned)
        return {slot.layer.weight: weight_AON.view(-1, outputs, *size, channels).movedim(-1, 2)}

    def _turns(self, slot: Slot) -> bool:
        """A convolution of the kernels' in a part of its space: it is built in each step, in any order we like."""
        if slot.layer is None or slot.chart.free_GNF is None or slot.layer.bias or len(slot.shape) != 4:
            return False
        return slot.layer.owned and self.module.get_submodule(slot.layer.owner) in self._with_kernels

    def _wait_for(self, owner: str) -> Callable[..., None]:
        """A layer's hook: its weight is there before it runs."""

        def wait(*_: object) -> None:
            torch.cuda.current_stream().wait_event(self._ready[owner])

        return wait


@cache
def _streams(purpose: str, count: int) -> tuple[torch.cuda.Stream, ...]:
    """The same streams for every task: libraries keep a workspace for each."""
    return tuple(torch.cuda.Stream() for _ in range(count))


class Built(NamedTuple):
    """What the agents differ in at some coordinates, ready for a gradient."""

    coords_AD: Tensor  # what the gradient is taken by
    own: Parameters
    whole: bool  # every layer's weight is among them


def _channels_last(slot: Slot) -> Chart:
    """The chart with inputs in the order (row, column, channel) instead of (channel, row, column)."""
    _, channels, *size = slot.shape
    order = torch.arange(slot.chart.anchor_GON.shape[-1], device=slot.chart.anchor_GON.device)
    order = order.view(channels, *size).movedim(0, -1).flatten()
    assert slot.chart.free_GNF is not None
    return slot.chart._replace(
        anchor_GON=slot.chart.anchor_GON[..., order], free_GNF=slot.chart.free_GNF[:, order].contiguous()
    )


def _factor(slot: Slot, batch: int, agents: int) -> bool:
    """Whether a layer takes the factored form. A GPU builds weights beside other work: there it has to save more."""
    if slot.layer is None or not slot.layer.linear or slot.chart.free_GNF is None:
        return False
    _, outputs, inputs = slot.chart.anchor_GON.shape
    least = BESIDE // agents if slot.chart.anchor_GON.is_cuda else 0
    return charts.factored_pays(batch * slot.layer.rows, outputs, inputs, slot.chart.dims[0], least)


@torch.no_grad()
def accuracy(module: nn.Module, parameters: Parameters, images: Tensor, labels: Tensor, batch: int) -> float:
    """Percent of `images` that the module with these parameters classifies right."""
    right = torch.zeros((), dtype=torch.long, device=labels.device)
    for some, truth in zip(in_batches(images, batch), in_batches(labels, batch), strict=True):
        right += (functional_call(module, dict(parameters), (some,)).argmax(-1) == truth).sum()
    return 100 * right.item() / len(labels)
