"""A run in a process of its own, to be killed:  python -m tests.faults.victim FOLDER METHOD [SECONDS [exact] [stuck]]

Dropout, norms with statistics of the task, momentum and augmentation: everything that has a state or a generator."""

import os
import sys
import time

import torch
from torch import nn

import codecl
from tests.problems import tasks


def module(dropout: float = 0.3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Flatten(),
        nn.Linear(144, 8),
        nn.Tanh(),
        nn.Linear(8, 3),
    )


def run(out, method="codec", on_event=None, every=7, exact=False, **more):
    """Three tasks of four epochs; `every`: steps between checkpoints; `exact`: float64, no dropout."""
    return codecl.fit(
        module(0.0 if exact else 0.3),
        tasks(),
        method=method,
        out=out,
        on_event=on_event,
        data={"augment": "crop-flip"},
        growth={"threshold": 0.9, "images": 8},
        train={
            "epochs": 4,
            "batch_size": 4,
            "lr": 0.02,
            "momentum": 0.9,
            "norm_statistics": "task",
            "execution": "loop",
        },
        checkpoint={"every": every},
        dtype="float64" if exact else "float32",
        **more,
    )


if __name__ == "__main__":
    print("ready", flush=True)
    pause = float(sys.argv[3]) if len(sys.argv) > 3 else 0.002
    stuck = "stuck" in sys.argv and os.environ["RANK"] == "1"
    run(
        sys.argv[1],
        sys.argv[2],
        on_event=lambda event: time.sleep(300 if stuck and event.kind == "grow" else pause),
        exact="exact" in sys.argv,
    )
