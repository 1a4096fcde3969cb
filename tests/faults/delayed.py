"""An agent whose messages are late: one in twenty leaves only after the deadline.

python -m tests.faults.delayed FILE …        as `codecl agent FILE …`
"""

import random
import sys
import threading

from codecl.cli import main
from codecl.peers.links import Link
from tests.faults.peers import HASTY

PART = 0.05
_put = Link.put


def late(self: Link, data: bytes, may_drop: bool = False) -> None:
    if may_drop and draws.random() < PART:
        threading.Timer(1.2 * HASTY.deadline, _put, (self, data, may_drop)).start()
    else:
        _put(self, data, may_drop)


if __name__ == "__main__":
    draws = random.Random(sys.argv[1])
    Link.put = late
    sys.argv[1:1] = ["agent"]
    main()
