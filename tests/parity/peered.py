"""What every peer of test_peers.py runs: the cases of spread.py, each in a fleet of its own.

python -m tests.parity.peered FOLDER AGENT CASE …        FOLDER/CASE/agent-AGENT/agent.yaml is the agent's file
"""

import sys
from functools import partial
from pathlib import Path

import torch

from codecl.peers import agent as peer
from codecl.peers import fleet
from codecl.peers.decisions import PeersConfig
from codecl.peers.history import History
from codecl.peers.node import Node
from tests.parity.spread import story


def main(folder: Path, agent: int, cases: list[str]) -> None:
    found = {}
    for case in cases:
        member = fleet.read(folder / case / f"agent-{agent}" / "agent.yaml")
        opened = []

        def joined(graph, dtype, device, member=member, opened=opened):
            node = Node(graph, dtype, device, peer.identity_of(member), PeersConfig(deadline=None, silence=60, meet=60))
            node.open(History(bytes(32), ()), 2, 1 << 24, partial(peer.connect, member))
            node.meet()
            opened.append(node)
            return node

        found[case] = story(case, joined)
        (node,) = opened
        node.linger()
        found[case]["links"] = {other: count.model_dump() for other, count in node.close().items()}
        found[case]["missed"] = len(node.journal.take_missed())
    torch.save(found, folder / f"{agent}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
