"""What every rank of test_cluster.py runs: cases in turn, writing down all that happened to its agents.

python -m tests.parity.spread FOLDER CASE …        under the variables of a launcher
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from codecl.exchange import Simulated
from codecl.exchange.cluster.ranks import joined
from codecl.runs.build import BuildExchange
from codecl.train.loop import train
from tests.problems import CPU, build, config, convolutional, tasks

METHODS: dict[str, dict[str, Any]] = {
    "one": {"method": "codec"},
    "all": {"method": "codec", "growth": {"subspace_from": "all"}},
    "ewc": {"method": "d-ewc"},
}
ONE_WAY = ((0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (2, 0), (1, 4))
CASES: dict[str, Mapping[str, Any]] = {
    **{
        f"{kind} {name}": {**METHODS[kind], "agents": 8, "topology": name}
        for name in ("ring", "torus")
        for kind in METHODS
    },
    "star of five": {"agents": 5, "topology": "star", **METHODS["all"]},
    "random": {"agents": 5, "topology": {"name": "erdos-renyi", "edge_probability": 0.6}, **METHODS["one"]},
    "one way": {"agents": 5, "topology": {"name": "graph", "edges": ONE_WAY}, **METHODS["ewc"]},
    "combine": {"agents": 5, "topology": "ring", "train": {"order": "adapt-then-combine", "momentum": 0.5}},
    "four": {"agents": 4, "topology": "ring", **METHODS["one"]},
    "four all": {"agents": 4, "topology": "complete", **METHODS["all"]},
    "norms": {"agents": 5, "topology": "ring-undirected", "train": {"norm_statistics": "task"}},
}


def normed() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


def story(case: str, exchange: BuildExchange = Simulated) -> dict[str, Any]:
    """All parameters of the agents here after every step, every recorded fact, and what was flooded."""
    torch.manual_seed(0)
    module = normed() if case == "norms" else convolutional()
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
            done = event.state
            weights = {**done.parameters, **done.heads[-1], **done.norms[-1]}
            flooded.append({"weights": weights, "memory": dict(done.memory)})
        facts.append(event.record())
    return {"agents": list(setup.exchange.agents), "steps": steps, "facts": facts, "flooded": flooded}


def round_bytes(here: Any, case: str) -> int:
    """What this rank hands to the network in one round of ten numbers an agent."""
    setup, _ = build(convolutional(), tasks(1), config(**CASES[case]), here.exchange)
    rows = torch.zeros(len(setup.exchange.agents), 10, dtype=torch.float64)
    before = setup.exchange.wire.sent_bytes
    setup.exchange.start(rows, "train").wait()
    return int(setup.exchange.wire.sent_bytes - before)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with joined("cluster", CPU) as here:
        found = {case: {**story(case, here.exchange), "bytes": round_bytes(here, case)} for case in sys.argv[2:]}
    torch.save(found, Path(sys.argv[1]) / f"{here.rank}.pt")
