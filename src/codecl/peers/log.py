"""What goes to the log of a peer, however often it happens."""

import logging
import threading
import time
from collections.abc import Hashable
from typing import Any

QUIET_S = 5.0  # between two lines of the log about one thing


class RateLimitedLog:
    """A log that one who does the same over and over does not fill. Law: a line a topic in QUIET_S seconds."""

    def __init__(self, log: logging.Logger) -> None:
        self._log, self._said, self._lock = log, dict[Hashable, float](), threading.Lock()

    def __call__(self, level: int, topic: Hashable, line: str, *about: Any) -> None:
        now = time.monotonic()
        with self._lock:
            self._said = {known: when for known, when in self._said.items() if now - when < QUIET_S}
            if topic in self._said:
                return
            self._said[topic] = now
        self._log.log(level, line, *about)
