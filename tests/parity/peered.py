"""What every peer of test_peers.py runs: the cases of spread.py, each in a fleet of its own.

python -m tests.parity.peered FOLDER AGENT CASE …        FOLDER/CASE/agent-AGENT/agent.yaml is the agent's file
"""

import sys
from functools import partial
from pathlib import Path

import torch

from codecl.peers import agent as peer
from codecl.peers import fleet
from codecl.peers import rejoin as returning
from codecl.peers.exchange import Peers
from codecl.peers.history import Archive
from codecl.peers.membership import Rules
from tests.parity.spread import story


def main(folder: Path, agent: int, cases: list[str]) -> None:
    found = {}
    for case in cases:
        member = fleet.read(folder / case / f"agent-{agent}" / "agent.yaml")
        opened = []

        def joined(graph, dtype, device, member=member, opened=opened):
            peers = Peers(graph, dtype, device, peer.who(member), Rules(None, 60, 60))
            peers.box.open(Archive(bytes(32), ()), 2, 1 << 24, partial(peer.connected, member))
            returning.meet(peers)
            opened.append(peers)
            return peers

        found[case] = story(case, joined)
        returning.linger(opened[0])
        opened[0].box.close()
        found[case]["links"] = opened[0].box.bytes
        found[case]["missed"] = len(opened[0].missed)
    torch.save(found, folder / f"{agent}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
