"""Items that are read anew in every epoch: what memory gives, random where they are, and reproducible always."""

import json
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import codecl
from codecl.data.config import DataConfig
from codecl.data.items import About, Items
from codecl.data.sources import Streamed, source_of
from codecl.data.task import Task, TaskData, TaskOptions
from codecl.errors import ConfigWarning, DataError
from codecl.plan import plan
from codecl.runs.config import merge, validate
from tests import launching
from tests.conftest import ROOT
from tests.data.sets import CLASSES, Broken, Dicts, Labelled, Noisy, Pairs, Pictures
from tests.faults.test_resume import numbers, same
from tests.problems import config, normed

SMALL = {
    "agents": 2,
    "train": {"epochs": 3, "batch_size": 4, "lr": 0.1, "execution": "stacked"},
    "growth": {"threshold": 0.9, "images": 12},
    "dtype": "float64",
}


def task_of(data, test=None, **fields):
    return Task(data, test or data, CLASSES, "streamed", **fields)


def data_of(task, agents=2, **fields):
    return TaskData(0, task, TaskOptions(agents, config=DataConfig(**fields)))


def fit(out, make, test=None, on_event=None, **more):
    torch.manual_seed(5)
    module = normed().float()
    stream = [task_of(make(), test and test()), task_of(make(), test and test())]
    return codecl.fit(module, stream, out=out, on_event=on_event, **merge(SMALL, more))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"augment": "crop-flip", "crop_fill": "mean"},
        {"validation": 0.25, "drop_last": False},
        {"partition": "dirichlet(0.5)", "steps_per_epoch": 3, "held_out": 0.2},
        {"sampling": "replacement", "held_out": 0.2},
        {"partition": "classes(2)", "sizes": "dirichlet(1)", "drop_last": False},
    ],
)
def test_streamed_items_are_those_of_memory(fields):
    task = task_of(Labelled(), Labelled(31), mean=(0.5, 0.25), std=(2.0, 1.0))
    memory, stream = (data_of(task, loading=loading, **fields) for loading in ("memory", "stream"))
    assert not memory.streamed
    assert stream.streamed
    assert memory.describe() == stream.describe()
    assert memory.class_counts() == stream.class_counts()

    def seen(data):
        yield from data.epoch(1, range(2), 5)
        yield from ((images,) for images in data.of_agent(1, 6))
        for parts in (data.test_images(7), data.held_out(0, 3, 1) if "held_out" in fields else ()):
            yield tuple(map(torch.cat, zip(*parts, strict=True))) or ()
        yield data.sample(0, 9), data.first(60)

    for ours, theirs in zip(seen(memory), seen(stream), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("more", [{}, {"train": {"norm_statistics": "task"}, "method": "d-ewc"}])
def test_a_run_ends_with_the_same_numbers_streamed_and_in_memory(tmp_path, more):
    one = fit(tmp_path / "memory", Pairs, data={"loading": "memory"}, **more)
    other = fit(tmp_path / "stream", Pairs, data={"loading": "stream"}, **more)
    ours, theirs = (numbers(result.folder) for result in (one, other))
    for kind in (ours, theirs):
        kind[1][0].pop("digest")  # of the config
    same(ours, theirs)


def test_a_random_augmentation_is_drawn_for_every_item_of_every_epoch():
    noisy = Noisy()
    data = data_of(task_of(noisy, Pairs()), loading="stream")
    drawn = []
    for epoch in (0, 1):
        noisy.seen.clear()
        batches = list(data.epoch(epoch, range(2), 4))
        assert sorted(index for index, _ in noisy.seen) == list(range(48)), "each once"
        assert len({values for _, values in noisy.seen}) == 48
        drawn.append(dict(noisy.seen))
        again = list(data.epoch(epoch, range(2), 4))
        assert all(torch.equal(a.images_AB, b.images_AB) for a, b in zip(batches, again, strict=True))
    assert all(drawn[0][index] != drawn[1][index] for index in range(48))
    (alone,) = {tuple(batch.images_AB.shape) for batch in data.epoch(0, [1], 4)}
    first, second = next(data.epoch(0, [1], 4)), next(data.epoch(0, range(2), 4))
    assert alone[0] == 1
    assert torch.equal(first.images_AB[0], second.images_AB[1]), "whoever else is here"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A streamed run of random items that never stops."""
    return numbers(fit(tmp_path_factory.mktemp("whole"), Noisy).folder)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_of_random_items_can_be_repeated_on_any_number_of_workers(tmp_path, whole, workers):
    same(numbers(fit(tmp_path, Noisy, data={"workers": workers}).folder), whole)


@pytest.mark.parametrize(("moment", "workers"), [(4, 0), (9, 2), (33, 0)])
def test_a_run_of_random_items_goes_on_in_the_middle_of_an_epoch(tmp_path, whole, moment, workers):
    seen = 0

    def stop(event):
        nonlocal seen
        seen += 1
        if seen == moment:
            raise KeyboardInterrupt

    settings = {"checkpoint": {"every": 1}, "data": {"workers": workers}}
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, Noisy, on_event=stop, **settings)
    same(numbers(fit(tmp_path, Noisy, **settings).folder), whole)


def test_the_same_streamed_call_is_answered_from_the_folder(tmp_path):
    first = fit(tmp_path, Noisy)
    assert not fit(tmp_path, Noisy).trained
    assert not fit(tmp_path, Noisy, data={"workers": 1}).trained, "who reads decides nothing"
    assert fit(tmp_path, lambda: Noisy(52)).trained
    data = Noisy(400)
    by_batch = {"epochs": 1, "norm_statistics": "batch"}  # those of the task are measured on many
    other = fit(tmp_path, lambda: data, Pairs, data={"steps_per_epoch": 1}, train=by_batch)
    assert other.folder != first.folder
    assert len({*data.reads}) < 120, "not everything was read"


def test_the_callers_generators_are_left_alone(tmp_path):
    def draw():
        return random.random(), np.random.rand(), torch.rand(()).item()

    def seed():
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)

    seed()
    expected = draw()
    for workers in (0, 1):
        seed()
        module = nn.Sequential(nn.Flatten(), nn.Linear(72, 4), nn.Dropout(), nn.Linear(4, CLASSES))
        seed()
        codecl.fit(
            module, [task_of(Noisy())], out=tmp_path / str(workers), **merge(SMALL, {"data": {"workers": workers}})
        )
        assert draw() == expected


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_item_that_a_worker_reads_is_named(workers):
    items = Items(Broken("raises"), About("scans", "training", CLASSES))
    source = Streamed(items, workers)
    picks = source.picks(torch.arange(12, 20)[:, None], torch.Generator())
    with pytest.raises(DataError, match=r"^task 'scans': training item 17: OSError: scan 17.png is truncated$"):
        list(source.read_ahead(picks.split(2)))


DIES = """
import os, time
import torch
from codecl.data.items import About, Items
from codecl.data.sources import Streamed
from codecl.errors import DataError
from tests.data.sets import Pairs

class Dies(Pairs):
    def __getitem__(self, index):
        if index == 40 and torch.utils.data.get_worker_info():
            time.sleep(0.3)
            os._exit(3)
        return super().__getitem__(index)

source = Streamed(Items(Dies(), About("scans", "training", 3)), 1)
try:
    list(source.read_ahead(source.picks(torch.arange(48)[:, None], torch.Generator()).split(4)))
except DataError as error:
    print(error)
"""


def test_a_worker_that_ends_is_said_in_one_line():
    done = subprocess.run([sys.executable, "-c", DIES], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("data.workers: a process that reads items failed: RuntimeError: DataLoader worker")
    assert done.stdout.count("\n") == 1


OWN = """
import torch

class Own(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.rand(2) + index, index % 3

def together(items):
    images, labels = zip(*items)
    return torch.stack(images), torch.tensor(labels)
"""
STARTED = """
import multiprocessing, sys
import torch
from codecl.data.items import About, Items, picks
from codecl.registry import lookup

multiprocessing.set_start_method(sys.argv[1])
data, together = (lookup("data.stream", {}, f"own.py:{name}") for name in ("Own", "together"))
items = Items(data(), About("own", "training", 3, together))
chosen = picks(torch.arange(8)[:, None], torch.Generator().manual_seed(0))
for batch in items.batches(chosen.split(4), workers=1):
    print(batch.images_AB.tolist(), batch.labels_AB.tolist())
"""


@pytest.mark.parametrize("start", ["spawn", "forkserver"])  # macOS; Linux from Python 3.14 on
def test_a_worker_that_was_not_forked_knows_the_users_own_file(tmp_path, start):
    (tmp_path / "own.py").write_text(OWN)
    forked, other = (
        subprocess.run([sys.executable, "-c", STARTED, how], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        for how in ("fork", start)
    )
    assert other.returncode == 0, other.stderr
    assert other.stdout == forked.stdout
    assert other.stdout.count("\n") == 2


def test_labels_are_read_only_where_they_decide_who_has_what():
    task = task_of(Pairs())
    assert data_of(task, loading="stream").images_of_classes() is None
    with pytest.warns(ConfigWarning, match="training labels: all 48 items are read for them once"):
        skewed = data_of(task, loading="stream", partition="skew(1.0)")
    assert skewed.class_counts() == data_of(task, partition="skew(1.0)").class_counts()
    unequal = data_of(task, loading="stream", sizes="dirichlet(1)")
    assert unequal.class_counts() is None
    assert unequal.images_of_agents() == data_of(task, sizes="dirichlet(1)").images_of_agents()
    assert data_of(task_of(Labelled()), loading="stream", partition="skew(1.0)").class_counts()  # and no warning


def test_pictures_of_bytes_are_scaled_as_they_are_read():
    data = data_of(task_of(Pictures("RGB")), loading="stream")
    images = next(data.epoch(0, [0], 6)).images_AB
    assert images.dtype == torch.float32
    assert images.max() == 1


@pytest.mark.parametrize("form", [Pairs, Noisy, Dicts])
def test_a_plan_is_made_of_any_form(form):
    settings = config(agents=2, model="mlp", dtype="float32")
    planned = plan(settings, tasks=[task_of(form()), task_of(form())], measure=True)
    assert [task.images for task in planned.tasks] == [48, 48]
    assert planned.memory_bytes > 0


def test_a_schedule_that_watches_held_out_items(tmp_path):
    train = {"schedule": "plateau", "epochs": 4, "plateau": {"patience": 1}}
    settings = {"agents": 1, "train": train, "method": "dpsgd"}
    runs = [
        fit(tmp_path / loading, Pairs, data={"held_out": 0.2, "loading": loading}, **settings).metrics
        for loading in ("memory", "stream")
    ]
    assert runs[0]["accuracy_matrix"] == runs[1]["accuracy_matrix"]


def test_tensors_are_never_streamed():
    pair = torch.zeros(4, 2), torch.arange(4) % CLASSES
    assert not source_of(TensorDataset(*pair), About("x", "test", CLASSES), "stream").streamed


def test_who_reads_is_no_part_of_a_runs_digest():
    settings = config()
    others = {
        key: validate(merge(settings.model_dump(mode="json"), {"data": {key: value}}))
        for key, value in {"workers": 3, "loading": "stream"}.items()
    }
    assert others["workers"].digest() == settings.digest() != others["loading"].digest()


RANK = """
import json, sys
from pathlib import Path
from tests.data.sets import Noisy
from tests.data.test_streaming import fit

result = fit(Path(sys.argv[1]), Noisy, data={"workers": 1})
print(json.dumps(result.metrics["accuracy_matrix"]))
"""


def test_ranks_of_a_cluster_read_what_one_process_reads(tmp_path, whole):
    done = launching.run(2, ["-c", RANK, str(tmp_path)], ROOT)
    assert [code for code, *_ in done] == [0, 0], done
    (path,) = tmp_path.rglob("events.jsonl")
    losses = [
        [event["loss"] for event in events if event["kind"] == "epoch"]
        for events in (numbers(path.parent)[1], whole[1])
    ]
    assert torch.allclose(*map(torch.tensor, losses), rtol=0, atol=1e-10)
    assert {out for _, out, _ in done} == {json.dumps(whole[0]["accuracy_matrix"]) + "\n"}


MEMORY = """
import resource, sys, tempfile
import torch
from torch import nn
import codecl
from tests.data.sets import Huge

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # MiB

def fit(size):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))
    settings = {"train": {"epochs": 2, "batch_size": 16, "execution": "loop"}, "growth": {"images": 16}}
    task = codecl.Task(Huge(size), Huge(size // 200), 10)
    with tempfile.TemporaryDirectory() as out:
        data = {"loading": "stream", "steps_per_epoch": 5, "workers": int(sys.argv[2])}
        codecl.fit(module, [task], out=out, data=data, **settings)

fit(2000)
before = peak()
fit(int(sys.argv[1]))
print(peak() - before)
"""


@pytest.mark.parametrize(("size", "workers"), [(100_000, 0), pytest.param(2_000_000, 2, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_number_of_items(size, workers):
    """2 million of these images are 366 MiB as bytes and 1.4 GiB as numbers; picks are 16 bytes an item."""
    command = [sys.executable, "-W", "ignore", "-c", MEMORY, str(size), str(workers)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < (10 if size < 10**6 else 100)  # MiB
