"""Fused modules in plain operations, so that every weight is seen where it multiplies: on our copy of a module, with
the same parameters under the same names. Law: each gives what PyTorch's own gives.

Shapes: B sequences, L places of a query, S of what it looks at, H heads, E features.
"""

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from codecl.space import recurrent
from codecl.space.operations import linears


def in_plain_operations(module: nn.Module) -> nn.Module:
    """Attention, tables and recurrent parts work in plain operations. Changes the module in place."""
    for part in module.modules():
        forward = PLAIN.get(type(part).forward)
        if forward is not None and "forward" not in vars(part) and not _has_more(part):
            part.forward = MethodType(forward, part)
        if isinstance(part, nn.Embedding | nn.EmbeddingBag):
            part.sparse = False  # the same gradients, as agents send them
        if isinstance(part, nn.TransformerEncoderLayer):
            part.activation_relu_or_gelu = 0  # no fused kernel of the whole layer
        if isinstance(part, nn.TransformerEncoder):
            part.enable_nested_tensor = part.use_nested_tensor = False
    return module


def _has_more(part: nn.Module) -> bool:
    """Keys and values besides those of its inputs: PyTorch's own forward stays, its weights are small ones."""
    return isinstance(part, nn.MultiheadAttention) and (part.bias_k is not None or part.add_zero_attn)


def attention(
    self: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """nn.MultiheadAttention."""
    if is_causal and attn_mask is None:
        raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
    is_batched = query.ndim == 3
    q, k, v = (_heads(self, each, is_batched) for each in _projected(self, query, key, value))
    mask = _mask(attn_mask, key_padding_mask, q, k)
    dropout = self.dropout if self.training else 0.0
    if need_weights or not q.is_cuda:  # the fused kernels of a CPU cannot be stacked
        scores_BHLS = (q * q.shape[-1] ** -0.5) @ k.mT
        weights = functional.softmax(scores_BHLS if mask is None else scores_BHLS + mask, dim=-1)
        weights = functional.dropout(weights, dropout, bool(dropout))
        found_BHLE = weights @ v
        weights = weights.mean(1) if average_attn_weights else weights
        weights = weights if is_batched else weights.squeeze(0)
    else:
        weights, found_BHLE = None, functional.scaled_dot_product_attention(q, k, v, mask, dropout)
    found_BLE = found_BHLE.transpose(1, 2).flatten(2)
    if not is_batched:
        found_BLE = found_BLE.squeeze(0)
    elif not self.batch_first:
        found_BLE = found_BLE.transpose(0, 1)
    return functional.linear(found_BLE, self.out_proj.weight, self.out_proj.bias), weights if need_weights else None


def _projected(self: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor) -> Any:
    """Queries, keys and values: one product where all three come from one input."""
    bias = self.in_proj_bias
    if not self._qkv_same_embed_dim:
        weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None, None, None) if bias is None else bias.chunk(3)
        return [functional.linear(*each) for each in zip((query, key, value), weights, biases, strict=True)]
    if query is key and key is value:
        return functional.linear(query, self.in_proj_weight, bias).chunk(3, -1)
    return linears((query, key, value), self.in_proj_weight, bias)


def _heads(self: nn.MultiheadAttention, values: Tensor, is_batched: bool) -> Tensor:
    """[B, H, L, E / H]."""
    if not is_batched:
        values = values.unsqueeze(0)
    elif not self.batch_first:
        values = values.transpose(0, 1)
    return values.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


def _mask(attn_mask: Tensor | None, key_padding_mask: Tensor | None, q_BHLE: Tensor, k_BHSE: Tensor) -> Tensor | None:
    """Both masks as what is added to scores [B, H, L, S], or to a part of them; None: nothing."""
    mask = None
    if attn_mask is not None:
        mask = _added(attn_mask, q_BHLE.dtype)
        mask = mask.unflatten(0, q_BHLE.shape[:2]) if mask.ndim == 3 else mask
    if key_padding_mask is not None:
        padding = _added(key_padding_mask, q_BHLE.dtype).reshape(k_BHSE.shape[0], 1, 1, k_BHSE.shape[2])
        mask = padding if mask is None else mask + padding
    return mask


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, float("-inf"))


def table(self: nn.Embedding, input: Tensor) -> Tensor:
    """nn.Embedding with padding, which gets no gradient in stacked agents either."""
    found = nn.Embedding.forward(self, input)
    if self.padding_idx is None:
        return found
    return torch.where((input == self.padding_idx)[..., None], found.detach(), found)


def bag(
    self: nn.EmbeddingBag, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
) -> Tensor:
    """nn.EmbeddingBag of bags [B, L] of one length; others, in one row, go PyTorch's own way."""
    if input.ndim != 2 or self.max_norm is not None or self.scale_grad_by_freq:
        return nn.EmbeddingBag.forward(self, input, offsets, per_sample_weights)
    found_BLE = functional.embedding(input, self.weight, self.padding_idx)
    if per_sample_weights is not None:
        found_BLE = found_BLE * per_sample_weights[..., None]
    counts = (torch.ones_like(input) if self.padding_idx is None else input != self.padding_idx)[..., None]
    if self.mode == "max":
        found_BLE = found_BLE.masked_fill(counts == 0, float("-inf")).amax(1)
        return found_BLE.masked_fill(counts.sum(1) == 0, 0.0)
    sums_BE = (found_BLE * counts).sum(1)
    return sums_BE if self.mode == "sum" else sums_BE / counts.sum(1).clamp(min=1)


PLAIN: dict[Any, Callable[..., Any]] = {
    nn.MultiheadAttention.forward: attention,
    nn.Embedding.forward: table,
    nn.EmbeddingBag.forward: bag,
    nn.LSTM.forward: recurrent.sequence,
    nn.GRU.forward: recurrent.sequence,
    nn.RNN.forward: recurrent.sequence,
    nn.LSTMCell.forward: recurrent.cell,
    nn.GRUCell.forward: recurrent.cell,
    nn.RNNCell.forward: recurrent.cell,
}
