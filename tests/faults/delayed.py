"""An agent whose messages are late: one in twenty leaves only after the deadline.

python -m tests.faults.delayed FILE …        as `codecl agent FILE …`
"""

import random
import sys
import threading

from codecl.cli import main
from codecl.peers.links import Links
from tests.faults.peers import HASTY

PART = 0.05
_send = Links.send


def late(self: Links, peer: int, data: bytes, may_drop: bool = False) -> bool:
    if may_drop and peer in self.up and draws.random() < PART:
        threading.Timer(1.2 * HASTY.deadline, _send, (self, peer, data, may_drop)).start()
        return True
    return _send(self, peer, data, may_drop)


if __name__ == "__main__":
    draws = random.Random(sys.argv[1])
    Links.send = late
    sys.argv[1:1] = ["agent"]
    main()
