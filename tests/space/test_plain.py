"""Fused modules in plain operations give what PyTorch's own give, in training and evaluation, with gradients."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from codecl.space.plain import in_plain_operations

CLOSE = {"rtol": 0, "atol": 1e-11}


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, PackedSequence):
        return [value.data]
    return [] if value is None else [tensor for part in value for tensor in tensors(part)]


def compare(module, *inputs, **options):
    """Outputs and gradients of a module and of its plain copy."""
    module = module.double()
    ours = in_plain_operations(copy.deepcopy(module))
    for training in (True, False):
        module.train(training), ours.train(training)
        theirs, mine = tensors(module(*inputs, **options)), tensors(ours(*inputs, **options))
        assert len(theirs) == len(mine) > 0
        for a, b in zip(theirs, mine, strict=True):
            torch.testing.assert_close(b, a, **CLOSE)
        losses = [sum(each.square().sum() for each in found) for found in (theirs, mine)]
        gradients = [
            torch.autograd.grad(loss, list(part.parameters()), allow_unused=True)
            for loss, part in zip(losses, (module, ours), strict=True)
        ]
        for a, b in zip(*gradients, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(b, a, **CLOSE)
    with torch.no_grad():  # where PyTorch takes its fused paths
        for a, b in zip(tensors(module(*inputs, **options)), tensors(ours(*inputs, **options)), strict=True):
            torch.testing.assert_close(b, a, **CLOSE)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


CAUSAL = torch.ones(4, 4).triu(1).bool()
PADDED = torch.tensor([[False] * 4, [False, False, False, True], [False, False, True, True]])
ATTENTION = {
    "weights": {},
    "no weights": {"need_weights": False},
    "weights of each head": {"average_attn_weights": False},
    "a mask": {"attn_mask": CAUSAL},
    "a causal mask": {"attn_mask": CAUSAL, "is_causal": True, "need_weights": False},
    "a mask of numbers": {"attn_mask": normal(4, 4, seed=9), "need_weights": False},
    "a mask of each head": {"attn_mask": normal(6, 4, 4, seed=9)},
    "padding": {"key_padding_mask": PADDED},
    "padding and a mask": {"key_padding_mask": PADDED, "attn_mask": CAUSAL, "need_weights": False},
}


@pytest.mark.parametrize("options", ATTENTION.values(), ids=ATTENTION)
@pytest.mark.parametrize("batch_first", [True, False])
def test_attention(batch_first, options):
    module = nn.MultiheadAttention(6, 2, batch_first=batch_first)
    x, y, z = (normal(3, 4, 6, seed=seed) for seed in range(3))
    x, y, z = (x, y, z) if batch_first else (x.transpose(0, 1), y.transpose(0, 1), z.transpose(0, 1))
    compare(module, x, x, x, **options)
    compare(module, x, y, y, **options)
    compare(module, x, y, z, **options)


def test_attention_of_other_sizes():
    x, keys, values = normal(3, 4, 6), normal(3, 5, 8, seed=1), normal(3, 5, 10, seed=2)
    for bias in (True, False):
        compare(nn.MultiheadAttention(6, 3, kdim=8, vdim=10, bias=bias, batch_first=True), x, keys, values)
    compare(nn.MultiheadAttention(6, 2), x[0], x[0], x[0])
    compare(nn.MultiheadAttention(6, 2, add_zero_attn=True), x, x, x)


def test_a_causal_hint_without_a_mask_is_refused():
    module, x = in_plain_operations(nn.MultiheadAttention(6, 2)), torch.zeros(3, 4, 6)
    with pytest.raises(RuntimeError, match="Need attn_mask"):
        module(x, x, x, is_causal=True)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("norm_first", [True, False])
def test_transformers(norm_first):
    x, y = normal(3, 4, 6), normal(3, 5, 6, seed=1)
    sizes = {"dim_feedforward": 7, "dropout": 0.0, "batch_first": True, "norm_first": norm_first}
    encoder = nn.TransformerEncoderLayer(6, 2, **sizes)
    compare(encoder, x, src_mask=CAUSAL, is_causal=True)
    stack = nn.TransformerEncoder(encoder, 2, enable_nested_tensor=False)
    compare(stack, x, src_key_padding_mask=PADDED)
    compare(nn.TransformerDecoderLayer(6, 2, **sizes), x, y, tgt_mask=CAUSAL)
    compare(nn.Transformer(6, 2, 1, 1, **sizes), y, x, tgt_mask=CAUSAL)


def test_no_layer_takes_a_fused_path():
    stack = nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 7, 0.0, batch_first=True), 2).double()
    seen = []
    ours = in_plain_operations(copy.deepcopy(stack)).eval()
    ours.layers[0].linear1.register_forward_hook(lambda *_: seen.append("linear1"))
    with torch.no_grad():
        out = ours(normal(3, 4, 6), src_key_padding_mask=PADDED)
    assert seen == ["linear1"]
    assert out.shape == (3, 4, 6)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_recurrent(kind, bidirectional, batch_first):
    module = kind(5, 4, num_layers=2, bidirectional=bidirectional, batch_first=batch_first)
    x = normal(3, 6, 5) if batch_first else normal(6, 3, 5)
    compare(module, x)
    state = normal(4 if bidirectional else 2, 3, 4, seed=1)
    state = (state, 2 * state) if kind is nn.LSTM else state
    compare(module, x, state)
    for is_sorted in (True, False):
        lengths = torch.tensor([6, 4, 1] if is_sorted else [2, 6, 3])
        packed = pack_padded_sequence(x, lengths, batch_first, enforce_sorted=is_sorted)
        compare(module, packed)
        compare(module, packed, state)


def test_recurrent_of_other_forms():
    x = normal(6, 5)
    compare(nn.RNN(5, 4, nonlinearity="relu", bias=False), x)
    compare(nn.GRU(5, 4), x, normal(1, 4, seed=1))
    compare(nn.LSTM(5, 4, num_layers=2, proj_size=3, bidirectional=True), normal(6, 3, 5))
    compare(nn.LSTM(5, 4), x)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells(kind):
    h = normal(3, 4, seed=1)
    for bias in (True, False):
        compare(kind(5, 4, bias=bias), normal(3, 5))
        compare(kind(5, 4, bias=bias), normal(3, 5), (h, 2 * h) if kind is nn.LSTMCell else h)
    compare(nn.RNNCell(5, 4, nonlinearity="relu"), normal(5))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 0])
def test_bags(mode, padding):
    tokens = torch.randint(1, 9, (3, 5), generator=torch.Generator().manual_seed(0))
    tokens[0, :2], tokens[1] = 0, 0
    compare(nn.EmbeddingBag(9, 4, mode=mode, padding_idx=padding), tokens)
    compare(nn.EmbeddingBag(9, 4, mode=mode), tokens.flatten(), torch.tensor([0, 4, 9]))
    if mode == "sum":
        weights = normal(3, 5)
        compare(nn.EmbeddingBag(9, 4, mode=mode, padding_idx=padding), tokens, per_sample_weights=weights)


def test_padding_of_a_table():
    tokens = torch.randint(0, 4, (3, 5), generator=torch.Generator().manual_seed(0))
    compare(nn.Embedding(9, 4, padding_idx=1), tokens)
    table = in_plain_operations(nn.Embedding(4, 2, padding_idx=1))
    weights, ids = torch.randn(3, 4, 2, requires_grad=True), torch.arange(4).repeat(3, 1)
    found = torch.vmap(lambda weight, ids: torch.func.functional_call(table, {"weight": weight}, (ids,)))(weights, ids)
    (grad,) = torch.autograd.grad(found.sum(), weights)
    assert grad[:, :, 0].tolist() == [[1, 0, 1, 1]] * 3
