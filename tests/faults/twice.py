"""Calls in one process, under a launcher:  python -m tests.faults.twice FOLDER [other]

Two after one another; `other`: a model of its own at every rank."""

import os
import sys

import torch

import codecl
from tests.faults.victim import module
from tests.problems import tasks

if __name__ == "__main__":
    given = module()
    if "other" in sys.argv:
        torch.manual_seed(int(os.environ["RANK"]))
        torch.nn.init.normal_(given[0].weight)
    for seed in (1, 2):
        result = codecl.fit(given, tasks(1), seed=seed, out=sys.argv[1], train={"epochs": 1, "batch_size": 4})
        print("done", seed, result.metrics["status"], flush=True)
