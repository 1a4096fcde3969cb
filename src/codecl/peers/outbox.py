"""What a node sends over its links."""

import time
from collections.abc import Callable
from typing import Any

from codecl.exchange.base import Tensors
from codecl.peers import frames, votes
from codecl.peers.frames import FrameKind
from codecl.peers.history import Commit, History
from codecl.peers.link import Link
from codecl.peers.links import Links


class Outbox:
    """What a node sends. Law: every frame says who sends it, where it is, and what it knows of the others."""

    def __init__(self, links: Links, header: Callable[[], dict[str, Any]]) -> None:
        self.links, self.header = links, header
        self._sent_at: dict[tuple[int, FrameKind], float] = {}

    def send(self, peer: int, kind: FrameKind, tensors: Tensors | None = None, **fields: Any) -> bool:
        """Whether there is a link to take it."""
        link = self.links.link_to(peer)
        if link is None:
            return False
        link.put(frames.encode(kind, tensors, **self.header(), **fields))
        return True

    def send_at_most_every(self, seconds: float, peer: int, kind: FrameKind, **fields: Any) -> bool:
        """Send it, unless this neighbour got one of this kind just now."""
        now = time.monotonic()
        if now - self._sent_at.get((peer, kind), -seconds) < seconds:
            return False
        self._sent_at[peer, kind] = now
        return self.send(peer, kind, **fields)

    def send_commit(self, peer: int, commit: Commit) -> bool:
        signed = {"manifest": commit.manifest, "signature": commit.signature, "history": votes.raw(commit.approvals)}
        return self.send(peer, FrameKind.COMMIT, commit.tensors, **signed)

    def send_lacking(self, peer: int, ids: list[bytes], history: History) -> Link | None:
        """The commits that a neighbour with these ids lacks; its link, where it lacks none."""
        link = self.links.link_to(peer)
        if link is None or link.waiting > 1:
            return None  # it has not taken what it asked for before; it will ask again
        for commit in history.lacking(ids):
            if not link.has_room():
                return None
            self.send_commit(peer, commit)
        return link if history.ids == ids else None

    def request_commits(self, held: list[bytes], rows: bool = False) -> None:
        """Ask all neighbours for commits that are not among these, and for their rows."""
        for peer in self.links.up:
            self.send(peer, FrameKind.REQUEST, history=held, number=int(rows))

    def beat(self) -> None:
        """A sign of life to all neighbours."""
        for peer in self.links.up:
            self.send(peer, FrameKind.BEAT)
