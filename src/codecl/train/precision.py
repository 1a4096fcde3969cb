"""How exactly a GPU multiplies. Mixing, agreement, growth and floods are always exact; training may be less so."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

Precision = Literal["highest", "tf32", "bf16"]


@contextmanager
def multiplying(precision: Precision, device: torch.device) -> Iterator[None]:
    """Float32 products with float32 operands (highest), or with operands rounded to 10 bits where the GPU is faster so.

    A CPU multiplies float32 exactly. `bf16` rounds as tf32 does; what it casts besides, anywhere, `Agents` casts."""
    switches = _switches() if device.type == "cuda" else []
    before = [getattr(owner, name) for owner, name, _, _ in switches]
    for owner, name, rounded, exact in switches:
        setattr(owner, name, exact if precision == "highest" else rounded)
    try:
        yield
    finally:
        for (owner, name, _, _), value in zip(switches, before, strict=True):
            setattr(owner, name, value)


def _switches() -> list[tuple[Any, str, Any, Any]]:
    """(where, name, rounded, exact) for products and convolutions. PyTorch has two sets of names for it and forbids to
    mix them: the older, unless the caller has used the newer."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    try:
        _ = matmul.allow_tf32, cudnn.allow_tf32
        return [(owner, "allow_tf32", True, False) for owner in (matmul, cudnn)]
    except RuntimeError:
        return [(owner, "fp32_precision", "tf32", "ieee") for owner in (matmul, getattr(cudnn, "conv"))]  # noqa: B009
