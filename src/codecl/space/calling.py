"""The one place where a module is called: what goes in, and the tensor that counts of what comes out."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from codecl.data.inputs import Inputs
from codecl.errors import ConfigError


def call(module: nn.Module, parameters: Mapping[str, Tensor], inputs: Inputs) -> Tensor:
    """What the module with these parameters gives for a batch: a tuple is its arguments, a dict its named ones."""
    if isinstance(inputs, Mapping):
        out = functional_call(module, dict(parameters), (), dict(inputs))
    else:
        out = functional_call(module, dict(parameters), inputs if isinstance(inputs, tuple) else (inputs,))
    return output_of(out)


def output_of(out: Any) -> Tensor:
    """The logits of what a module gave: a tensor, the first of several, what a dict or an object calls `logits`."""
    found = out
    if isinstance(out, Mapping):
        found = out.get("logits")
    elif hasattr(out, "logits"):
        found = out.logits
    elif isinstance(out, tuple | list) and out:
        found = out[0]
    if not isinstance(found, Tensor):
        raise ConfigError(
            f"model: it gives {type(out).__name__}; it should give a tensor, a tuple that begins with one, or a dict or"
            " an object with `logits`"
        )
    return found
