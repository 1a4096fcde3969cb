"""What every process of test_exchanges.py runs: cases in turn, writing down all that happened to its agents.

python -m tests.parity.spread ranks FOLDER CASE …          under the variables of a launcher
python -m tests.parity.spread AGENT FOLDER CASE …          each case in a fleet of its own, FOLDER/CASE
"""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from codecl.exchange import Simulated
from codecl.exchange.cluster.ranks import joined
from codecl.runs.build import BuildExchange
from codecl.train.loop import train
from tests.problems import CPU, build, config, convolutional, normed, tasks

METHODS: dict[str, dict[str, Any]] = {
    "one": {"method": "codec"},
    "all": {"method": "codec", "growth": {"subspace_from": "all"}},
    "ewc": {"method": "d-ewc"},
}
MASKED = {"method": "codec", "growth": {"subspace_from": "all", "pool": "masked"}}
ONE_WAY = ((0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (2, 0), (1, 4))
ADAM = {"optimizer": "adamw", "lr": 0.003, "weight_decay": 0.1, "clip_norm": 1.0}
AFTER = {"order": "adapt-then-combine"}
FIRST = {"directions": 4, "first_task": True}
CASES: dict[str, Mapping[str, Any]] = {
    **{
        f"{kind} {name}": {**METHODS[kind], "agents": 8, "topology": name}
        for name in ("ring", "torus")
        for kind in METHODS
    },
    "star of five": {"agents": 5, "topology": "star", **METHODS["all"]},
    "dpsgd": {"agents": 5, "topology": "ring", "method": "dpsgd"},
    "private": {"agents": 5, "topology": "star", "method": "dpsgd", "privacy": {"clip": 0.05}},
    "masked star": {"agents": 5, "topology": "star", **MASKED},
    "four masked": {"agents": 4, "topology": "ring", "own": {"directions": 2}, **MASKED},
    "random": {"agents": 5, "topology": {"name": "erdos-renyi", "edge_probability": 0.6}, **METHODS["one"]},
    "one way": {"agents": 5, "topology": {"name": "graph", "edges": ONE_WAY}, **METHODS["ewc"]},
    "combine": {"agents": 5, "topology": "ring", "train": {"order": "adapt-then-combine", "momentum": 0.5}},
    "adamw": {"agents": 5, "topology": "ring", "train": ADAM},
    "four adamw": {"agents": 4, "topology": "ring", "train": ADAM},
    "diffusion": {"agents": 5, "topology": "star", "train": {**AFTER, "correction": "exact-diffusion"}},
    "tracking": {"agents": 5, "topology": "star", "train": {**AFTER, "correction": "gradient-tracking"}},
    "four diffusion": {"agents": 4, "topology": "complete", "train": {**AFTER, "correction": "exact-diffusion"}},
    "four quasi": {
        "agents": 4,
        "topology": "ring-undirected",
        "train": {**AFTER, "correction": "quasi-global", "momentum": 0.5},
    },
    "four tracking": {"agents": 4, "topology": "torus", "train": {**AFTER, "correction": "gradient-tracking"}},
    "rounds": {"agents": 5, "topology": "star", "train": {"gossip_rounds": 3}},
    "four rounds": {"agents": 4, "topology": "ring-undirected", "train": {**AFTER, "gossip_rounds": 2}},
    "four tracking rounds": {
        "agents": 4,
        "topology": "ring",
        "train": {**AFTER, "lr": 0.02, "correction": "gradient-tracking", "gossip_rounds": 2},
    },
    "one peer": {"agents": 5, "topology": "one-peer-exponential"},
    "eight one peer": {"agents": 8, "topology": "one-peer-exponential", "train": {"gossip_rounds": 2}},
    "one peer bits": {
        "agents": 8,
        "topology": "one-peer-exponential",
        "message": {"bits": 4},
        "train": {"gossip_rounds": 3},
    },
    "four one peer": {"agents": 4, "topology": "one-peer-exponential", "own": {"directions": 2}},
    "four one peer tracking": {
        "agents": 4,
        "topology": "one-peer-exponential",
        "train": {**AFTER, "lr": 0.02, "correction": "gradient-tracking"},
    },
    "four one peer in eight": {
        "agents": 4,
        "topology": "one-peer-exponential",
        "message": {"bits": 8},
        "train": {"gossip_rounds": 2},
    },
    "four": {"agents": 4, "topology": "ring", **METHODS["one"]},
    "four unequal": {
        "agents": 4,
        "topology": "ring",
        "data": {"partition": "dirichlet(0.5)", "sizes": "dirichlet(1)"},
        "train": {"batch_size": 4},
        **METHODS["all"],
    },
    "four clipped": {"agents": 4, "topology": "complete", "message": {"robust": "clip"}},
    "four and a liar": {
        "agents": 4,
        "topology": "complete",
        "message": {"robust": "clip"},
        "faults": {"liar": 2, "lie": "echo"},
    },
    "liars": {
        "agents": 5,
        "topology": "complete",
        "message": {"robust": "clip"},
        "faults": {"liar": (0, 3), "lie": "nan"},
    },
    "votes": {
        "agents": 5,
        "topology": "star",
        "growth": {"robust": "vote", "slack": 3.0},
        "faults": {"liar": 2, "lie": None, "flood": "outside"},  # its turn is in the second task
        "own": {"directions": 2},
    },
    "four votes": {
        "agents": 4,
        "topology": "ring-undirected",
        "growth": {"robust": "vote", "slack": 3.0},
        "faults": {"liar": 0, "lie": None, "flood": "weights"},  # its turn is in the first task
    },
    "four all": {"agents": 4, "topology": "complete", **METHODS["all"]},
    "norms": {"agents": 5, "topology": "ring-undirected", "train": {"norm_statistics": "task"}},
    "gossiped norms": {"agents": 5, "topology": "ring", "train": {"norm_statistics": "gossip"}, **METHODS["all"]},
    "four gossiped norms": {
        "agents": 4,
        "topology": "ring",
        "train": {"norm_statistics": "gossip"},
        "own": {"directions": 2},
    },
    "eight bits": {"agents": 8, "topology": "torus", "message": {"bits": 8}, **METHODS["one"]},
    "four bits": {"agents": 5, "topology": "star", "message": {"bits": 4}, "train": {"order": "adapt-then-combine"}},
    "four in eight": {"agents": 4, "topology": "complete", "message": {"bits": 8}, **METHODS["all"]},
    "four in four": {
        "agents": 4,
        "topology": "ring",
        "message": {"bits": 4},
        "own": {"directions": 2},
        **METHODS["one"],
    },
    "four in parts": {"agents": 4, "topology": "ring", "message": {"bits": 4, "keep": 0.5}},
    "four in bfloat16": {"agents": 4, "topology": "ring-undirected", "message": {"bits": "bfloat16"}},
    "own eight": {"agents": 8, "topology": "ring", "own": {"directions": 2}, **METHODS["all"]},
    "own norms": {"agents": 5, "topology": "ring", "own": {"directions": 2}, "norms": "own"},
    "own share": {"agents": 5, "topology": "star", "own": {"share": 0.2}, "free": {"directions": 4}, **METHODS["all"]},
    "own four": {"agents": 4, "topology": "ring", "own": {"directions": 2}, "norms": "own", **METHODS["one"]},
    "own four all": {"agents": 4, "topology": "complete", "own": {"directions": 2}, "free": FIRST, **METHODS["all"]},
}


def openings(case: str) -> list[int]:
    """Of two tasks, the stages in which directions are chosen."""
    if CASES[case].get("free") == FIRST:
        return [0, 2]
    return [1] if "own" in CASES[case] else []


def with_norm() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


def wide() -> nn.Module:
    """Of three chunks."""
    return nn.Sequential(nn.Flatten(), nn.Linear(72, 32), nn.ReLU(), nn.Linear(32, 3))


MODELS = {
    "norms": with_norm,
    "gossiped norms": with_norm,
    "four gossiped norms": normed,
    "four in parts": wide,
    "own norms": normed,
    "own four": normed,
}


def story(case: str, exchange: BuildExchange = Simulated) -> dict[str, Any]:
    """All parameters of the agents here after every step, every recorded fact, and what was flooded."""
    torch.manual_seed(0)
    module = MODELS.get(case, convolutional)()
    settings = config(**{**CASES[case], "train": {"batch_size": 3, **CASES[case].get("train", {})}})
    setup, state = build(module, tasks(2), settings, exchange)
    steps, facts, flooded = [], [], []
    for event in train(setup, state):
        if event.kind == "task":
            layout = event.agents.layout
        if event.kind == "step":
            steps.append([layout.parameters(row.clone()) for row in event.coords_AD])
            continue
        if event.kind == "flood":
            done, kept = event.state, event.state.kept[-1]
            body = {f"body/{name}": value for name, value in done.parameters.items()}
            weights = {**body, **kept.model(setup.roles.layers, done.parameters), **kept.statistics}
            own = {f"own/{name}": basis for name, basis in kept.directions.items()}
            flooded.append({"weights": weights, "memory": {**done.memory, **own}})
        facts.append(event.record())
    return {"agents": list(setup.exchange.agents), "steps": steps, "facts": facts, "flooded": flooded}


def round_bytes(exchange: BuildExchange, case: str) -> int:
    """What this rank hands to the network in one round of ten numbers an agent."""
    setup, _ = build(convolutional(), tasks(1), config(**CASES[case]), exchange)
    rows = torch.zeros(len(setup.exchange.agents), 10, dtype=torch.float64)
    before = setup.exchange.wire.sent_bytes
    setup.exchange.start(rows, "train").wait()
    return int(setup.exchange.wire.sent_bytes - before)


def story_of_peer(case: str, folder: Path, agent: int) -> dict[str, Any]:
    from codecl.peers import agent as peer
    from codecl.peers import fleet
    from codecl.peers.decisions import PeersConfig
    from codecl.peers.history import History
    from codecl.peers.node import Node

    member, opened = fleet.read(folder / case / f"agent-{agent}" / "agent.yaml"), []

    def meet(graph, dtype, device):
        rules, voting = PeersConfig(deadline=None, silence=60, meet=60), case == "four votes"
        node = Node(graph, dtype, device, peer.identity_of(member), rules, voting)
        history = History(bytes(32), (), openings(case))
        node.open(history, 2 + len(openings(case)), 1 << 24, partial(peer.connect, member))
        node.meet()
        opened.append(node)
        return node

    told = story(case, meet)
    told["facts"] = [fact for fact in told["facts"] if fact["kind"] != "vote"]  # others may have decided before
    (node,) = opened
    node.linger()
    links = {other: count.model_dump() for other, count in node.close().items()}
    return {**told, "links": links, "missed": len(node.journal.take_missed())}


def main(number: str, folder: Path, cases: list[str]) -> None:
    if number == "ranks":
        with joined("cluster", CPU) as ranks:
            told = {case: {**story(case, ranks.exchange), "bytes": round_bytes(ranks.exchange, case)} for case in cases}
        number = str(ranks.rank)
    else:
        told = {case: story_of_peer(case, folder, int(number)) for case in cases}
    torch.save(told, folder / f"{number}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
