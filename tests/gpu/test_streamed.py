"""On a GPU: streamed items give what items in memory give, also by workers, and dropout is not disturbed."""

import pytest
import torch
from torch import nn

from codecl.data.task import Task
from tests.data.sets import CLASSES, Noisy, Pairs, Reader, Sequences, padded
from tests.gpu.test_graph import furthest, run
from tests.problems import config

if not torch.cuda.is_available():
    pytest.skip("these tests need a GPU", allow_module_level=True)

SMALL = {"agents": 2, "train": {"batch_size": 4, "epochs": 2, "norm_statistics": "task"}}


def net():
    torch.manual_seed(0)
    inner = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5)
    return nn.Sequential(*inner, nn.Linear(64, CLASSES))


def loaded(data, module=net, collate=None, more=None, **fields):
    task = Task(data, data, CLASSES, collate=collate)
    return run(module(), [task, task], config(**SMALL, **(more or {}), data={"stream": "own", **fields}))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("augment", ["none", "crop-flip"])
def test_streamed_items_are_those_of_memory(workers, augment):
    memory = loaded(Pairs(), loading="memory", augment=augment)
    assert furthest(memory, loaded(Pairs(), loading="stream", workers=workers, augment=augment)) < 1e-9


def test_random_items_are_the_same_on_any_number_of_workers():
    one, other = (loaded(Noisy(), workers=workers) for workers in (0, 2))
    assert one[1] == other[1]


def test_several_inputs():
    def reader():
        torch.manual_seed(0)
        return Reader()

    dense = {"dense": ["embedding.weight"]}
    memory, stream = (loaded(Sequences(), reader, padded, dense, loading=how) for how in ("memory", "stream"))
    assert furthest(memory, stream) < 1e-9
