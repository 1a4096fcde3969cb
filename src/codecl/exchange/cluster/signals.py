"""A launcher ends all processes of a run when one of them has failed. There is a little time before it insists: for
finding out which one it was, and for writing down what is there."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

GRACE_S = 5  # a broken connection shows long before


@contextmanager
def on_terminate(error: Callable[[], Exception]) -> Iterator[None]:
    """In here SIGTERM raises this error, after some seconds in which a better reason may show.

    Left by an error, the process still ends only some seconds after the signal: it has that error to report."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return
    inside = True

    def wait(*_: Any) -> None:
        signal.alarm(GRACE_S)

    def end(*_: Any) -> None:
        if inside:
            raise error()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, wait), signal.signal(signal.SIGALRM, end)
    try:
        yield
    finally:
        inside = False
    signal.alarm(0)
    signal.signal(signal.SIGTERM, before[0])
    signal.signal(signal.SIGALRM, before[1])
