"""One way out to a neighbour: what waits for it, and for how long."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

from codecl.peers.certificates import Certificate
from codecl.peers.frames import tensor_bytes

MAX_WAITING = 1024  # frames that a neighbour does not take, before its link is closed
STALL_S, SLOW_BYTES = 30.0, 100_000  # a frame may take so many seconds, and one more for so many bytes


class Link:
    """One way out to a neighbour: frames wait here until gRPC takes them. Law: `max_rows` rows and `max_bytes` of other
    frames wait at most, and no frame is on its way for longer than its size allows; else the link is closed."""

    def __init__(self, peer: int, max_rows: int, counts: Counter[str], max_bytes: int = 1 << 40) -> None:
        self.peer, self.max_rows, self.counts, self.max_bytes = peer, max_rows, counts, max_bytes
        self.open, self.why = True, ""
        self.certificate: Certificate | None = None  # by which the neighbour proved who it is
        self._out: deque[tuple[bytes, bool]] = deque()
        self._bytes = 0  # that wait and may not be dropped
        self._until = float("inf")  # the frame that is on its way should be out
        self._changed = threading.Condition()
        self.cancel: Callable[[], Any] = lambda: None  # ends what waits for a neighbour that takes nothing

    def put(self, data: bytes, may_drop: bool = False) -> None:
        """Where the neighbour does not take them, the oldest rows make room: past steps are of no use to it."""
        with self._changed:
            size = tensor_bytes(data)
            self.counts.update(sent=size, headers_sent=len(data) - size)
            self._out.append((data, may_drop))
            self._bytes += 0 if may_drop else len(data)
            waiting = [number for number, (_, drop) in enumerate(self._out) if drop]
            if len(waiting) > self.max_rows:
                del self._out[waiting[0]]
            full = len(self._out) > MAX_WAITING or self._bytes > self.max_bytes
            stalled = time.monotonic() > self._until
            self._changed.notify()
        if full or stalled:
            self.close("it takes nothing")

    @property
    def waiting(self) -> int:
        """Frames that may not be dropped and are not taken yet."""
        with self._changed:
            return sum(not drop for _, drop in self._out)

    def has_room(self) -> bool:
        """For another large frame."""
        with self._changed:
            return self._bytes < self.max_bytes / 2

    def frames(self) -> Iterator[bytes]:
        while True:
            with self._changed:
                self._until = float("inf")
                while not self._out and self.open:
                    self._changed.wait()
                if not self._out:  # closed, and all is out
                    return
                data, may_drop = self._out.popleft()
                self._bytes -= 0 if may_drop else len(data)
                self._until = time.monotonic() + STALL_S + len(data) / SLOW_BYTES
            yield data

    def close(self, why: str = "", at_once: bool = True) -> None:
        with self._changed:
            self.open, self.why = False, self.why or why
            if at_once:
                self._out.clear()
                self._bytes = 0
            self._changed.notify_all()
        if at_once:
            self.cancel()
