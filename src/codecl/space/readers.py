"""From a function of PyTorch and its arguments to the call that it is: which dimensions of the weight are groups,
outputs and inputs. Each reader has the arguments of its function, after what is known.

Shapes: G groups, O outputs of a group, N inputs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from codecl.space.calls import Call, Window, form_of
from codecl.space.operations import linears

Known = Mapping[int, Tensor]  # by the id of a tensor: the parameter of which it is a view (or which it is)


def read(function: Any, known: Known, result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
    """The call that this was; None: it multiplies by no parameter that can be followed."""
    if function in PRODUCTS and "out" not in kwargs:
        tensors = [*args, *(value for value in kwargs.values() if isinstance(value, Tensor))]
        return PRODUCTS[function](
            known, *tensors, **{name: kwargs[name] for name in ("beta", "alpha") if name in kwargs}
        )
    reader = READERS.get(function)
    return None if reader is None else reader(known, result, *args, **kwargs)


def _linear(known: Known, result: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Call | None:
    root = known.get(id(weight), weight)
    form = form_of(root, weight, "on"[-weight.ndim :])
    return form and Call("linear", (input,), root, bias, form, _rows(input, input.shape[-1]), _all_but_last(input))


def _linears(
    known: Known, result: Any, inputs: Sequence[Tensor], weight: Tensor, bias: Tensor | None = None
) -> Call | None:
    root = known.get(id(weight), weight)
    form = form_of(root, weight, "on", len(inputs))
    rows = max(_rows(input, input.shape[-1]) for input in inputs)
    return form and Call("linears", tuple(inputs), root, bias, form, rows, _all_but_last(inputs[0]))


def _convolution(
    known: Known,
    result: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Call | None:
    root = known.get(id(weight), weight)
    form = form_of(root, weight, "o" + "n" * (weight.ndim - 1), groups)
    size = tuple(weight.shape[2:])
    steps, apart = _each(stride, len(size)), _each(dilation, len(size))
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(apart, size, strict=True)]
        margins = [(total // 2, total - total // 2) for total in totals]
    else:
        margins = [(p, p) for p in _each(0 if padding == "valid" else padding, len(size))]
    window, rows = Window(size, steps, apart, tuple(margins)), result.numel() // max(1, len(weight))
    return form and Call("conv", (input,), root, bias, form, rows, _all_but_last(input), window)


def _transposed_convolution(
    known: Known,
    result: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Call | None:
    """Each place of its input is multiplied by [channels, kernel]; what comes out is then added up, whatever strides
    and paddings are."""
    root = known.get(id(weight), weight)
    form = form_of(root, weight, "n" + "o" * (weight.ndim - 1), groups)
    rows, dimensions = _rows(input, len(weight)), weight.ndim - 2
    return form and Call("places", (input,), root, bias, form, rows, _all_but_last(input), dimensions)


def _embedding(
    known: Known,
    result: Tensor,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Call | None:
    """Rows of a table: tokens are inputs, one-hot."""
    refusal = _table_refusal(max_norm, scale_grad_by_freq, sparse)
    return _tokens(known, weight, input, torch.ones_like(input), padding_idx, refusal)


def _embedding_bag(
    known: Known,
    result: Tensor,
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Call | None:
    """Sums of rows of a table: each token with its weight in the sum."""
    weights = torch.ones_like(input, dtype=torch.float64) if per_sample_weights is None else per_sample_weights
    if mode == "mean" and offsets is None:
        weights = weights / input.shape[1]
    elif mode == "mean" and offsets is not None:
        ends = offsets[1:] if include_last_offset else torch.cat([offsets[1:], offsets.new_tensor([len(input)])])
        lengths = ends - offsets[: len(ends)]
        weights = weights / lengths.repeat_interleave(lengths).to(weights)
    refusal = _table_refusal(max_norm, scale_grad_by_freq, sparse)
    call = _tokens(known, weight, input, weights, padding_idx, refusal)
    return call if call is None or offsets is None else call._replace(images_in=())  # bags in one row


def _tokens(
    known: Known, weight: Tensor, tokens: Tensor, weights: Tensor, padding: int | None, refusal: str
) -> Call | None:
    root = known.get(id(weight))
    form = None if root is None else form_of(root, weight, "no")
    if root is None or form is None:
        return None
    padding = None if padding is None else padding % len(weight)
    images_in = tuple(range(tokens.ndim))
    return Call(
        "tokens", (tokens, weights), root, None, form, tokens.numel(), images_in, padding=padding, refusal=refusal
    )


def _table_refusal(max_norm: float | None, scale_grad_by_freq: bool, sparse: bool) -> str:
    options = {"max_norm": max_norm is not None, "scale_grad_by_freq": scale_grad_by_freq, "sparse": sparse}
    used = [name for name, is_on in options.items() if is_on]
    return f"is a table with {used[0]}, which codecl cannot follow: leave that out" if used else ""


def _matmul(known: Known, left: Tensor, right: Tensor, bias: Tensor | None = None) -> Call | None:
    """A batched product: dimensions in front belong together from the last on, where they are not 1."""
    batch = [f"b{number}" for number in range(max(left.ndim, right.ndim), 0, -1)]
    of_left = ["n"] if left.ndim == 1 else [*batch[len(batch) - (left.ndim - 2) :], "i", "n"]
    of_right = ["n"] if right.ndim == 1 else [*batch[len(batch) - (right.ndim - 2) :], "n", "j"]
    return _contraction(known, (left, right), (of_left, of_right), {*batch, "i", "j"}, bias)


def _rmatmul(known: Known, right: Tensor, left: Tensor) -> Call | None:
    return _matmul(known, left, right)


def _addmm(known: Known, added: Tensor, left: Tensor, right: Tensor, beta: Any = 1, alpha: Any = 1) -> Call | None:
    """What is added has a number for each output where the weight stands on the right, or multiplies a vector."""
    is_bias = beta == alpha == 1 and (id(right) in known or right.ndim == 1)
    return _matmul(known, left, right, added if is_bias else None)


def _einsum(known: Known, equation: Any, *operands: Any) -> Call | None:
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or len(operands) != 2 or not all(isinstance(each, Tensor) for each in operands):
        return None
    terms, arrow, out = equation.replace(" ", "").partition("->")
    labels = [_labels(term, each.ndim) for term, each in zip(terms.split(","), operands, strict=True)]
    if not arrow:
        everything = [label for of_one in labels for label in of_one]
        out = "".join(label for label in everything if everything.count(label) == 1) + "..."
    kept = {*out.replace("...", ""), *(label for of_one in labels for label in of_one if label.startswith("..."))}
    return _contraction(known, (operands[0], operands[1]), (labels[0], labels[1]), kept, None)


def _labels(term: str, dimensions: int) -> list[str]:
    """A label for each dimension; those that `...` stands for are counted from the last."""
    before, dots, after = term.partition("...")
    count = dimensions - len(before) - len(after) if dots else 0
    return [*before, *(f"...{place}" for place in range(count, 0, -1)), *after]


def _contraction(
    known: Known,
    operands: tuple[Tensor, Tensor],
    labels: tuple[list[str], list[str]],
    kept: set[str],
    bias: Tensor | None,
) -> Call | None:
    """A product of two tensors by the labels of their dimensions, one of them a parameter. Labels of both that are
    kept are groups, others of both inputs; a label of the weight alone is an output."""
    of_weight = [place for place, operand in enumerate(operands) if id(operand) in known]
    if len(of_weight) != 1:
        return None
    operand, its_labels = operands[of_weight[0]], labels[of_weight[0]]
    inputs, theirs = operands[1 - of_weight[0]], labels[1 - of_weight[0]]
    if len({*its_labels}) < len(its_labels) or len({*theirs}) < len(theirs):
        return None  # a diagonal
    sizes = dict(zip(theirs, inputs.shape, strict=True))
    roles, shared = "", []
    for label, size, stride in zip(its_labels, operand.shape, operand.stride(), strict=True):
        both = sizes.get(label) == size
        repeated = size > 1 and stride == 0
        if repeated and not (both and label in kept):
            return None
        role = "o" if not both or repeated else "g" if label in kept else "n"
        roles += role
        shared += [(role, label)] if role != "o" else []
    root = known[id(operand)]
    form = form_of(root, operand, roles)
    if form is None:
        return None
    first = [theirs.index(label) for role in "gn" for its_role, label in shared if its_role == role]
    rest = tuple(d for d in range(inputs.ndim) if d not in first)
    rows = _rows(inputs, form.groups * form.inputs)
    return Call("product", (inputs,), root, bias, form, rows, rest, (*first, *rest))


def _each(value: Any, dimensions: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, tuple | list) else (int(value),)
    return values * dimensions if len(values) == 1 else values


def _rows(inputs: Tensor, width: int) -> int:
    return inputs.numel() // max(1, width)


def _all_but_last(inputs: Tensor) -> tuple[int, ...]:
    return tuple(range(inputs.ndim - 1))


READERS: dict[Any, Callable[..., Call | None]] = {
    functional.linear: _linear,
    linears: _linears,
    functional.embedding: _embedding,
    functional.embedding_bag: _embedding_bag,
    torch.conv1d: _convolution,
    torch.conv2d: _convolution,
    torch.conv3d: _convolution,
    torch.conv_transpose1d: _transposed_convolution,
    torch.conv_transpose2d: _transposed_convolution,
    torch.conv_transpose3d: _transposed_convolution,
}
PRODUCTS: dict[Any, Callable[..., Call | None]] = {
    **dict.fromkeys((getattr(torch, name) for name in ("matmul", "mm", "bmm", "mv")), _matmul),
    **dict.fromkeys((getattr(Tensor, name) for name in ("matmul", "mm", "bmm", "mv", "__matmul__")), _matmul),
    **dict.fromkeys((getattr(torch, name) for name in ("addmm", "baddbmm", "addmv")), _addmm),
    **dict.fromkeys((getattr(Tensor, name) for name in ("addmm", "baddbmm", "addmv")), _addmm),
    Tensor.__rmatmul__: _rmatmul,
    torch.einsum: _einsum,
}
