"""LSTM, GRU, RNN and their cells in plain operations.

Shapes: T steps, B sequences, I inputs, H hidden units, K what a cell adds up (gates · H); a step of packed sequences
has as many rows as sequences that are long enough.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence

Hidden = tuple[Tensor, ...]  # (h,), or (h, c) of an LSTM
Cell = Callable[[Tensor, Tensor, Hidden], Hidden]  # from the inputs' part, the hidden part [B, K] and the state


def _lstm(inputs_BK: Tensor, hidden_BK: Tensor, state: Hidden) -> Hidden:
    i, f, g, o = (inputs_BK + hidden_BK).chunk(4, -1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru(inputs_BK: Tensor, hidden_BK: Tensor, state: Hidden) -> Hidden:
    (reset, update, new), (by_reset, by_update, by_new) = inputs_BK.chunk(3, -1), hidden_BK.chunk(3, -1)
    n = (new + (reset + by_reset).sigmoid() * by_new).tanh()
    z = (update + by_update).sigmoid()
    return (n + z * (state[0] - n),)


def _tanh(inputs_BK: Tensor, hidden_BK: Tensor, state: Hidden) -> Hidden:
    return ((inputs_BK + hidden_BK).tanh(),)


def _relu(inputs_BK: Tensor, hidden_BK: Tensor, state: Hidden) -> Hidden:
    return ((inputs_BK + hidden_BK).relu(),)


CELLS: dict[str, Cell] = {"LSTM": _lstm, "GRU": _gru, "RNN_TANH": _tanh, "RNN_RELU": _relu}


def cell(self: Any, input: Tensor, hx: Any = None) -> Any:
    """nn.LSTMCell, nn.GRUCell and nn.RNNCell."""
    is_lstm = isinstance(self, nn.LSTMCell)
    step = _lstm if is_lstm else _gru if isinstance(self, nn.GRUCell) else CELLS[f"RNN_{self.nonlinearity.upper()}"]
    if hx is None:
        zeros = input.new_zeros(*input.shape[:-1], self.hidden_size)
        hx = (zeros, zeros) if is_lstm else zeros
    state = tuple(hx) if is_lstm else (hx,)
    inputs = functional.linear(input, self.weight_ih, self.bias_ih)
    state = step(inputs, functional.linear(state[0], self.weight_hh, self.bias_hh), state)
    return state if is_lstm else state[0]


def sequence(self: Any, input: Tensor | PackedSequence, hx: Any = None) -> tuple[Any, Any]:
    """nn.LSTM, nn.GRU and nn.RNN: the part of the inputs for all steps at once, then step by step."""
    packed = input if isinstance(input, PackedSequence) else None
    data: Tensor = packed.data if packed else input  # type: ignore[assignment]
    is_batched = packed is not None or data.ndim == 3
    if not is_batched:
        data = data.unsqueeze(1)
    elif packed is None and self.batch_first:
        data = data.transpose(0, 1)
    sizes = packed.batch_sizes.tolist() if packed else None
    start = _start(self, data, sizes[0] if sizes else data.shape[1], hx, packed, is_batched)
    directions, final = 2 if self.bidirectional else 1, []
    for layer in range(self.num_layers):
        if layer and self.dropout:
            data = functional.dropout(data, self.dropout, self.training)
        outputs = []
        for direction in range(directions):
            first = tuple(part[directions * layer + direction] for part in start)
            steps, last = _direction(self, f"l{layer}{'_reverse' * direction}", data, sizes, first, bool(direction))
            outputs.append(torch.cat(steps) if packed else torch.stack(steps))
            final.append(last)
        data = torch.cat(outputs, -1)
    hidden = tuple(torch.stack(parts) for parts in zip(*final, strict=True))
    if packed:
        hidden = hidden if packed.unsorted_indices is None else tuple(h[:, packed.unsorted_indices] for h in hidden)
        return packed._replace(data=data), hidden if self.mode == "LSTM" else hidden[0]
    if not is_batched:
        data, hidden = data.squeeze(1), tuple(part.squeeze(1) for part in hidden)
    elif self.batch_first:
        data = data.transpose(0, 1)
    return data, hidden if self.mode == "LSTM" else hidden[0]


def _start(self: Any, data: Tensor, batch: int, hx: Any, packed: PackedSequence | None, is_batched: bool) -> Hidden:
    """The state before the first step, of all layers and directions."""
    if hx is None:
        count = self.num_layers * (2 if self.bidirectional else 1)
        h = data.new_zeros(count, batch, self.proj_size or self.hidden_size)
        return (h, data.new_zeros(count, batch, self.hidden_size)) if self.mode == "LSTM" else (h,)
    state = tuple(hx) if self.mode == "LSTM" else (hx,)
    if packed is not None and packed.sorted_indices is not None:
        return tuple(part[:, packed.sorted_indices] for part in state)
    return state if is_batched else tuple(part.unsqueeze(1) for part in state)


def _direction(
    self: Any, name: str, data: Tensor, sizes: Sequence[int] | None, first: Hidden, is_reverse: bool
) -> tuple[list[Tensor], Hidden]:
    """(what comes out of each step, the state after the last step of each sequence) of a layer in one direction."""
    weight, bias = getattr(self, f"weight_hh_{name}"), getattr(self, f"bias_hh_{name}", None)
    inputs = functional.linear(data, getattr(self, f"weight_ih_{name}"), getattr(self, f"bias_ih_{name}", None))
    of_steps = list(inputs.split(sizes) if sizes else inputs.unbind())
    outputs: list[Tensor] = []
    ended: list[Hidden] = []  # of sequences that are shorter than others, the shortest first
    state = tuple(part[: len(of_steps[-1])] for part in first) if is_reverse and sizes else first
    for inputs_BK in reversed(of_steps) if is_reverse else of_steps:
        rows, before = len(inputs_BK), len(state[0])
        if rows > before:
            state = tuple(torch.cat([part, of_first[before:rows]]) for part, of_first in zip(state, first, strict=True))
        elif rows < before:
            ended.append(tuple(part[rows:] for part in state))
            state = tuple(part[:rows] for part in state)
        state = CELLS[self.mode](inputs_BK, functional.linear(state[0], weight, bias), state)
        if self.proj_size:
            state = functional.linear(state[0], getattr(self, f"weight_hr_{name}")), *state[1:]
        outputs.append(state[0])
    if ended:
        state = tuple(torch.cat(parts) for parts in zip(state, *reversed(ended), strict=True))
    return outputs[::-1] if is_reverse else outputs, state
