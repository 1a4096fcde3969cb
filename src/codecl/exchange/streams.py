"""Work of the device beside its other work."""

from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch

T = TypeVar("T")


def beside(work: Callable[[], T], device: torch.device) -> Callable[[], T]:
    """Start this; what comes back waits for it. On a CPU it is done at once, on a GPU in a stream of its own."""
    if device.type != "cuda":
        result = work()
        return lambda: result
    stream = _stream(device)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = work()

    def wait() -> T:
        torch.cuda.current_stream().wait_stream(stream)
        return result

    return wait


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
