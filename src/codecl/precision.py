"""How exactly a GPU multiplies. Mixing, agreement, growth and floods are always exact; training may be less so."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Precision = Literal["highest", "tf32", "bf16"]


@contextmanager
def multiplying(precision: Precision, device: torch.device) -> Iterator[None]:
    """Float32 products with float32 operands (highest), or with operands rounded to 10 bits where the GPU is faster so.

    A CPU always multiplies exactly. `bf16` rounds as tf32 does; what it casts besides, `Agents` casts."""
    if device.type != "cuda":
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision != "highest"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
