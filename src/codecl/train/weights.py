"""From coordinates to what agents differ in: weights that are built, coordinates of layers that work from them.

On a GPU weights are built in streams beside the main one; a layer waits for its own weight when it is called.
Shapes: A agents of this process, D coordinates of an agent, O outputs and N inputs of a layer.
"""

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor, nn

from codecl.space import chart as charts
from codecl.space.chart import Chart
from codecl.space.layout import Layout, Slot, parameters_of
from codecl.train.execution import streams

COORDINATES = "codecl_coordinates"  # the name under which a factored Linear finds its coordinates
STREAMS = 4
OVERLAPPED = (
    4 * 10**9
)  # multiplications of all agents that a GPU does beside other work in less than factoring's launches


class WeightBuilder:
    """Builds what the agents differ in, for all of them at once."""

    def __init__(
        self, module: nn.Module, layout: Layout, factored: Collection[str], with_kernels: Sequence[nn.Module]
    ) -> None:
        self.layout, self.factored = layout, factored
        self.channels_last = {  # the order that the kernels read; cleared where they give way
            slot.name: channels_last(slot) for slot in layout.slots if _is_for_kernels(slot, module, with_kernels)
        }
        self._streams = streams("weights", STREAMS) if layout.start().is_cuda else ()
        self._ready: dict[str, torch.cuda.Event] = {}
        for slot in layout.slots if self._streams else ():
            if slot.layer and slot.layer.owned and slot.size and slot.name not in factored:
                owner = module.get_submodule(slot.layer.owner)
                owner.register_forward_pre_hook(self._wait_for(slot.layer.owner))

    def build(self, coords_AD: Tensor) -> dict[str, Tensor]:
        """Parameters in which agents differ at these coordinates; on a GPU beside what comes next."""
        for stream in self._streams:
            stream.wait_stream(torch.cuda.current_stream())
        own: dict[str, Tensor] = {}
        for number, (slot, coords) in enumerate(self.layout.pieces(coords_AD)):
            if slot.layer and slot.name in self.factored:
                own[f"{slot.layer.owner}.{COORDINATES}".lstrip(".")] = charts.unflatten(coords, slot.chart).squeeze(-3)
            elif slot.layer and slot.size and self._streams:
                stream = self._streams[number % STREAMS]
                with torch.cuda.stream(stream):
                    own.update(self._weight(slot, coords))
                self._ready[slot.layer.owner] = stream.record_event()
                if not slot.layer.owned:  # no layer waits for it when it is called
                    torch.cuda.current_stream().wait_event(self._ready[slot.layer.owner])
            elif slot.size:
                own.update(self._weight(slot, coords))
        return own

    def wait(self) -> None:
        """For the part of the backward pass that took gradients back to coordinates."""
        for stream in self._streams:
            torch.cuda.current_stream().wait_stream(stream)

    def _weight(self, slot: Slot, coords_AD: Tensor) -> dict[str, Tensor]:
        chart = self.channels_last.get(slot.name)
        if slot.layer is None or chart is None:
            return parameters_of(slot, coords_AD)
        outputs, channels, *size = slot.shape
        weight_AON = charts.decode(coords_AD, chart)
        return {slot.layer.weight: weight_AON.view(-1, outputs, *size, channels).movedim(-1, 2)}

    def _wait_for(self, owner: str) -> Callable[..., None]:
        """A layer's hook: its weight is there before it runs."""

        def wait(*_: object) -> None:
            torch.cuda.current_stream().wait_event(self._ready[owner])

        return wait


def _is_for_kernels(slot: Slot, module: nn.Module, with_kernels: Sequence[nn.Module]) -> bool:
    """Whether it is a convolution of the kernels' in a part of its space: built in each step, in any order we like."""
    if slot.layer is None or slot.chart.free_GNF is None or slot.layer.bias or len(slot.shape) != 4:
        return False
    return slot.layer.owned and module.get_submodule(slot.layer.owner) in with_kernels


def channels_last(slot: Slot) -> Chart:
    """The chart with inputs in the order (row, column, channel) instead of (channel, row, column)."""
    _, channels, *size = slot.shape
    order = torch.arange(slot.chart.anchor_GON.shape[-1], device=slot.chart.anchor_GON.device)
    order = order.view(channels, *size).movedim(0, -1).flatten()
    assert slot.chart.free_GNF is not None
    return slot.chart._replace(
        anchor_GON=slot.chart.anchor_GON[..., order], free_GNF=slot.chart.free_GNF[:, order].contiguous()
    )


def factored_layers(layout: Layout, agents: int, batch_size: int) -> frozenset[str]:
    """The layers that take the factored form, by counting multiplications. A GPU builds weights beside other work:
    there it has to save more."""

    def pays(slot: Slot) -> bool:
        if slot.layer is None or not slot.layer.linear or slot.chart.free_GNF is None:
            return False
        _, outputs, inputs = slot.chart.anchor_GON.shape
        overlapped = OVERLAPPED // agents if slot.chart.anchor_GON.is_cuda else 0
        return charts.factored_pays(batch_size * slot.layer.rows, outputs, inputs, slot.chart.dims[0], overlapped)

    return frozenset(slot.name for slot in layout.slots if pays(slot))
