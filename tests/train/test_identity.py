"""Accuracy where nobody says the task: heads that one look can serve are served by one, with the same result."""

import pytest
from torch import nn

from codecl.train import identity
from codecl.train.loop import train
from tests.problems import build, config, convolutional, normed, tasks


class Probabilities(nn.Module):
    """Of one head's classes: those of several side by side would be others."""

    def __init__(self):
        super().__init__()
        self.net = convolutional()

    def forward(self, images):
        return self.net(images).log_softmax(1)


class Counting(Probabilities):
    def forward(self, images):
        return self.net(images).view(len(images), 3)


class Insisting(Probabilities):
    def forward(self, images):
        outputs = self.net(images)
        if outputs.shape[-1] != 3:
            raise ValueError("three classes")
        return outputs


CASES = {  # module, settings, the tasks that one look serves
    "heads": (convolutional, {}, [[0, 1, 2]]),
    "norms of the first task": (normed, {}, [[0, 1, 2]]),
    "own norms": (normed, {"norms": "own"}, [[0], [1], [2]]),
    "own statistics": (normed, {"train": {"norm_statistics": "task"}}, [[0], [1], [2]]),
    "own directions": (convolutional, {"own": {"directions": 1}}, [[0], [1], [2]]),
    "probabilities": (Probabilities, {}, [[0], [1], [2]]),
    "a number of classes": (Counting, {}, [[0], [1], [2]]),
    "a number that is insisted on": (Insisting, {}, [[0], [1], [2]]),
}


def trained(module, settings, stream):
    setup, _ = build(module, stream, config(**settings))
    (*_, last) = (event for event in train(setup, build(module, stream, config(**settings))[1]) if event.kind == "eval")
    return setup, last


@pytest.mark.parametrize("case", CASES)
def test_heads_side_by_side_give_what_each_gives(case, monkeypatch):
    make, settings, expected = CASES[case]
    setup, last = trained(make().double(), settings, tasks())
    groups = identity._alike(setup, last.state, setup.tasks)
    if case == "own directions":  # the first task has none
        assert sorted(number for group in groups for number in group) == [0, 1, 2]
        assert len(groups) > 1
    else:
        assert groups == expected
    monkeypatch.setattr(identity, "_alike", lambda *_: [[0], [1], [2]])
    assert last.without_identity == identity.accuracy(setup, last.state)


def test_tasks_that_see_images_otherwise_are_looked_at_apart():
    stream = [task._replace(mean=(0.1 * (number % 2),) * 2, std=(1.0, 1.0)) for number, task in enumerate(tasks())]
    setup, last = trained(convolutional().double(), {}, stream)
    assert identity._alike(setup, last.state, setup.tasks) == [[0, 2], [1]]
    assert 0 < last.without_identity <= 100
