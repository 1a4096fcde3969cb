"""The laws of weights as matrices and of inputs as columns. Float64; shapes and seeds by hypothesis."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from codecl.space import calls, layers, readers
from codecl.space.operations import linears
from codecl.space.roles import parameter_roles

TIGHT = {"rtol": 0, "atol": 1e-10}
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@st.composite
def convolutions(draw, kinds):
    """(a convolution, images for it): of any kind, with any options."""
    number = draw(st.integers(0, 2))
    groups = draw(st.integers(1, 2))
    options = {
        "kernel_size": draw(st.tuples(*[st.integers(1, 3)] * (number + 1))),
        "stride": draw(st.integers(1, 2)),
        "padding": draw(st.integers(0, 1)),
        "dilation": draw(st.integers(1, 2)),
        "groups": groups,
        "bias": draw(st.booleans()),
    }
    if kinds is TRANSPOSED and draw(st.booleans()):
        options |= {"output_padding": 1, "stride": 2}
    conv = kinds[number](2 * groups, 3 * groups, **options).double()
    return conv, normal(2, 2 * groups, *(5, 6, 7)[: number + 1], seed=draw(st.integers(0, 99)))


def traced(module, images):
    """(the layer of a module with one, its parameters, its call)."""
    module = nn.Sequential(module, nn.Flatten())
    (layer,) = parameter_roles(module, images, head=None).layers
    parameters = dict(module.named_parameters())
    ((_, call),) = layers.record(lambda: module(images), [layer], parameters)
    return layer, parameters, call


@given(convolutions(CONVOLUTIONS))
def test_columns_times_weights_are_the_output_of_a_convolution(case):
    conv, images = case
    layer, parameters, call = traced(conv, images)
    columns_GNP = layers.columns(layer, call, 2, 2)
    out = (layer.join(parameters) @ columns_GNP).flatten(0, 1)
    torch.testing.assert_close(out, conv(images).transpose(0, 1).flatten(1), **TIGHT)
    assert layer.rows == columns_GNP.shape[-1] // 2


def scattered(patches_BCKP, conv, places, size):
    """What a transposed convolution adds up: each value of a patch goes to one place of the output, or beside it."""
    out = patches_BCKP.new_zeros(*patches_BCKP.shape[:2], *size)
    for p, place in enumerate(product(*map(range, places))):
        for k, offset in enumerate(product(*map(range, conv.kernel_size))):
            at = [
                x * s - pad + d * o
                for x, s, pad, d, o in zip(place, conv.stride, conv.padding, conv.dilation, offset, strict=True)
            ]
            if all(0 <= x < length for x, length in zip(at, size, strict=True)):
                out[(slice(None), slice(None), *at)] += patches_BCKP[:, :, k, p]
    return out


@given(convolutions(TRANSPOSED))
def test_columns_times_weights_are_the_patches_of_a_transposed_convolution(case):
    conv, images = case
    images = images[..., :3] if images.ndim < 5 else images[:, :, :2, :2, :2]
    layer, parameters, call = traced(conv, images)
    columns_GNP = layers.columns(layer, call, 2, 2)
    products = layer.join(parameters) @ columns_GNP  # [G, channels · kernel, images · places]
    joined = layer.bias is not None  # a kernel of size 1: every place gets it
    if joined:
        products = products - parameters[layer.bias].view(layer.groups, -1, 1)
    places = images.shape[2:]
    patches = products.view(conv.out_channels, -1, 2, math.prod(places)).permute(2, 0, 1, 3)
    expected = conv(images)
    bias = 0 if conv.bias is None else conv.bias.view(-1, *[1] * len(places))
    torch.testing.assert_close(scattered(patches, conv, places, expected.shape[2:]) + bias, expected, **TIGHT)


@st.composite
def contractions(draw):
    """(equation, x, W): labels in any order, those of W outputs, inputs or groups."""
    groups, outputs, inputs, rows = (draw(st.integers(0, 2)) for _ in range(4))
    inputs, rows = inputs + 1, rows + 1
    names = iter("abcdefghijkl")
    g, o, n, p = ([next(names) for _ in range(count)] for count in (groups, outputs, inputs, rows))
    sizes = {name: draw(st.integers(1, 3)) for name in (*g, *o, *n, *p)}
    orders = [draw(st.permutations(each)) for each in ((*g, *n, *p), (*g, *o, *n), (*g, *o, *p))]
    seed = draw(st.integers(0, 99))
    x, w = (normal(*(sizes[name] for name in order), seed=seed + i) for i, order in enumerate(orders[:2]))
    return "{},{}->{}".format(*map("".join, orders)), x, w, (g, o, p)


@given(contractions())
def test_any_product_of_two_tensors_is_a_matrix_times_columns(case):
    equation, x, w, (g, o, p) = case
    weight = nn.Parameter(w)
    call = readers.read(torch.einsum, {id(weight): weight}, None, (equation, x, weight), {})
    layer = layers.Layer("w", "w", None, w.shape, call.form.groups, call.rows, False, call.form)
    matrix, columns = layer.join({"w": w}), calls.columns(call)
    assert torch.equal(layer.split(matrix)["w"], w)
    stacked = torch.stack([matrix, 2 * matrix])
    assert torch.equal(layer.split(stacked)["w"], torch.stack([w, 2 * w]))
    left = equation.partition("->")[0]
    x_labels, w_labels = left.split(",")
    ordered = "".join([name for name in w_labels if name in g] + [name for name in w_labels if name in o])
    ordered += "".join(name for name in x_labels if name in p)  # as the columns have them
    expected = torch.einsum(f"{left}->{ordered}", x, w)
    torch.testing.assert_close((matrix @ columns).flatten(), expected.flatten(), **TIGHT)


@given(st.permutations(range(3)), st.integers(0, 99))
def test_a_view_of_a_weight_is_read_as_what_it_is_a_view_of(order, seed):
    """However a weight is turned around before it multiplies: join gives the matrix, split the weight as stored."""
    stored = nn.Parameter(normal(2, 3, 4, seed=seed))
    turned = stored.permute(*order)
    form = calls.form_of(stored, turned, "gon")
    layer = layers.Layer("w", "w", None, stored.shape, form.groups, 1, False, form)
    assert torch.equal(layer.join({"w": stored}), turned)
    assert torch.equal(layer.split(turned)["w"], stored)


@given(st.integers(1, 3), st.integers(1, 4), st.booleans(), st.integers(0, 99))
def test_several_inputs_of_one_weight_are_its_groups(count, width, bias, seed):
    inputs = [normal(number + 1, 5, seed=seed + number) for number in range(count)]
    weight, offset = nn.Parameter(normal(count * width, 5, seed=seed)), nn.Parameter(normal(count * width, seed=seed))
    given_bias = offset if bias else None
    outputs = linears(inputs, weight, given_bias)
    call = readers.read(linears, {id(weight): weight}, outputs, (inputs, weight, given_bias), {})
    layer = layers.Layer("w", "w", "b" if bias else None, weight.shape, call.form.groups, 1, False, call.form)
    matrix_GON = layer.join({"w": weight, "b": offset})
    for matrix_ON, columns_NP, out in zip(matrix_GON, layers.columns(layer, call, 1, 1), outputs, strict=True):
        torch.testing.assert_close((matrix_ON @ columns_NP).mT, out, **TIGHT)


@pytest.mark.parametrize("mode", ["sum", "mean"])
@given(ids=st.lists(st.lists(st.integers(0, 6), min_size=3, max_size=3), min_size=2, max_size=2))
def test_tokens_are_columns_of_zeros_and_ones(mode, ids):
    """What a table gives is its matrix times one-hot columns; counts are their energy, token by token."""
    table, tokens = nn.Embedding(7, 4).double(), torch.tensor(ids)
    layer, parameters, call = traced(table, tokens)
    one_hot = functional.one_hot(tokens.flatten(), 7).double().mT
    torch.testing.assert_close((layer.join(parameters)[0] @ one_hot).mT, table(tokens).flatten(0, 1), **TIGHT)
    torch.testing.assert_close(layers.token_counts(layer, call, 2, 2), one_hot.square().sum(1), **TIGHT)
    first = layers.token_counts(layer, call, 2, 1)
    torch.testing.assert_close(first, one_hot[:, :3].sum(1), **TIGHT)
    bag = nn.EmbeddingBag(7, 4, mode=mode).double()
    layer, _, call = traced(bag, tokens)
    scale = 1 if mode == "sum" else 1 / 9
    torch.testing.assert_close(layers.token_counts(layer, call, 2, 2), one_hot.sum(1) * scale, **TIGHT)
