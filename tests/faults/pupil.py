"""One task of a learner in a process of its own:  python -m tests.faults.pupil OUT NUMBER [kill]

The first makes the learner, the others open its folder with a module of other weights. Old tasks are given as test data
alone. `kill`: it kills itself in the middle of the task."""

import os
import signal
import sys
from pathlib import Path

import torch

import codecl
from tests.faults.victim import SETTINGS, TRAIN, module
from tests.problems import tasks

MORE = {**SETTINGS, "train": {"epochs": 3, **TRAIN}, "checkpoint": {"every": 7}}
COUNT = 5


def learner(out: Path, number: int, **more: object) -> codecl.Learner:
    if number == 0:
        return codecl.Learner(module(), out=out, **MORE, **more)
    other = module()
    for parameter in other.parameters():
        torch.nn.init.constant_(parameter, 0.5)
    (folder,) = (path.parent for path in out.glob("*/*/config.yaml"))
    return codecl.Learner.open(folder, other, **more)


def main(out: Path, number: int, kill: bool) -> None:
    def stop(event):
        if kill and event.kind == "epoch" and event.epoch == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    stream = tasks(COUNT)
    tests = {task.name: task.test for task in stream[:number]}
    learner(out, number, on_event=stop).learn(stream[number], test_again=tests)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), "kill" in sys.argv)
