"""Operations of our own that a tracer sees as one call."""

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function


def linears(inputs: Sequence[Tensor], weight: Tensor, bias: Tensor | None = None) -> list[Tensor]:
    """Several inputs, each times its own part of the rows of one weight: as a grouped convolution does it."""
    tensors = (*inputs, weight) if bias is None else (*inputs, weight, bias)
    if has_torch_function(tensors):
        return handle_torch_function(linears, tensors, inputs, weight, bias)
    weights = weight.chunk(len(inputs))
    biases = [None] * len(inputs) if bias is None else bias.chunk(len(inputs))
    return [functional.linear(*each) for each in zip(inputs, weights, biases, strict=True)]
