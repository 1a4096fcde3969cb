"""A run in a process of its own, to be killed:  python -m tests.faults.victim FOLDER METHOD [SECONDS [exact] [stuck]]
Two short ones after one another:              python -m tests.faults.victim FOLDER twice [other]

Dropout, norms with statistics of the task, momentum and augmentation: everything that has a state or a generator.
`other`: a model of its own at every rank."""

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


SETTINGS = {"data": {"augment": "crop-flip"}, "growth": {"threshold": 0.9, "images": 8}}
TRAIN = {"batch_size": 4, "lr": 0.02, "momentum": 0.9, "norm_statistics": "task", "execution": "loop"}


def run(out, method="codec", on_event=None, every=7, exact=False, **more):
    """Three tasks of four epochs; `every`: steps between checkpoints; `exact`: float64, no dropout."""
    settings = {**SETTINGS, "train": {"epochs": 4, **TRAIN}, "checkpoint": {"every": every}, **more}
    given, dtype = (module(0.0), "float64") if exact else (module(), "float32")
    return codecl.fit(given, tasks(), method=method, out=out, on_event=on_event, dtype=dtype, **settings)


def twice(out: str) -> None:
    given = module()
    if "other" in sys.argv:
        torch.manual_seed(int(os.environ["RANK"]))
        torch.nn.init.normal_(given[0].weight)
    for seed in (1, 2):
        result = codecl.fit(given, tasks(1), seed=seed, out=out, train={"epochs": 1, "batch_size": 4})
        print("done", seed, result.metrics["status"], flush=True)


def main(out: str, method: str, pause: str = "0.002", *options: str) -> None:
    print("ready", flush=True)
    stuck = "stuck" in options and os.environ["RANK"] == "1"

    def wait(event):
        time.sleep(300 if stuck and event.kind == "grow" else float(pause))

    run(out, method, on_event=wait, exact="exact" in options)


if __name__ == "__main__":
    if sys.argv[2] == "twice":
        twice(sys.argv[1])
    else:
        main(*sys.argv[1:])
