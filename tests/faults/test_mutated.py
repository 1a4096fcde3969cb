"""Mutated data sets, run folders, checkpoints and frames give one line or what they hold, within bounds of memory and
time. A sample; all 20,000 in `make long`."""

import io
import itertools
import random
import resource
import shutil
import time
import warnings
from collections import Counter
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest
import torch
from PIL import Image
from rich.console import Console

import codecl
from codecl.data import readers
from codecl.data.readers import ImportOptions
from codecl.data.split import SplitOf
from codecl.data.verify import judge
from codecl.errors import CONTROL, CodeclError
from codecl.report import compare, formats
from codecl.report.configurations import finished, gather
from codecl.report.page import page_of, render
from codecl.report.tables import results
from codecl.runs import checkpoint, next_task
from codecl.runs.follow import Follower
from codecl.runs.predict import predict
from tests.faults import mutations
from tests.faults.mutations import either, json_file, lines, mutated, promising, tensors, yaml_file
from tests.problems import recorded_run

MEMORY, SECONDS = 2 << 30, 20.0  # beyond what is there before; for one file
FILES = {  # of a run folder, and how each is changed
    "config.yaml": either(yaml_file),
    "metrics.json": either(json_file),
    "events.jsonl": either(lines),
    "model/tasks.json": either(json_file),
    "model/body.safetensors": either(tensors),
    "model/task-1.safetensors": either(tensors),
    "CHECKPOINT/checkpoint.json": either(json_file),
    "CHECKPOINT/state.safetensors": either(tensors),
}


@contextmanager
def bounded():
    """What takes more memory fails."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, before[1]))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def outcome(call):
    """heard, or refused in one line; anything else is raised."""
    began = time.monotonic()
    said, line = "heard", "-"
    try:
        call()
    except CodeclError as error:
        said, line = "refused", str(error)
    assert line
    assert not CONTROL.search(line), line
    assert time.monotonic() - began < SECONDS
    return said


def on_a_page(folder):
    text = render(page_of(gather([folder]), None, datetime.now()))
    assert text.count("</script>") == text.count("<script")


def in_a_table(folder):
    formats.show(results(finished([folder])), Console(file=io.StringIO(), width=120))


def looked_at(folder):
    from codecl.cli.display import drawn

    view = Follower(folder).look()
    Console(file=io.StringIO(), width=100).print(drawn(view, 100, 40))


def extended(folder):
    past = next_task.read_past(folder)
    next_task.module_of(past, None, ())
    next_task.extended(past.config, "next", {})


CALLS = {
    "page": on_a_page,
    "table": in_a_table,
    "watch": looked_at,
    "compare": lambda folder: compare.compare(folder, folder),
    "load": lambda folder: codecl.load(folder, 0),
    "load all": lambda folder: codecl.load(folder),
    "predict": lambda folder: predict(folder, None, [folder.parent / "image.png"]),
    "learner": codecl.Learner.open,
    "extend": extended,
    "checkpoint": lambda folder: checkpoint.latest(folder / "checkpoint", torch.device("cpu")),
}
USEFUL = {  # what reads a file, beside what reads them all
    "config.yaml": ("load", "extend", "learner", "compare", "page", "table", "watch", "predict"),
    "metrics.json": ("page", "table", "compare", "watch", "learner"),
    "events.jsonl": ("page", "watch", "extend"),
    "model/tasks.json": ("load", "load all", "predict", "learner", "extend"),
    "model/body.safetensors": ("load", "predict"),
    "model/task-1.safetensors": ("load", "load all", "predict"),
    "CHECKPOINT/checkpoint.json": ("checkpoint", "extend", "learner"),
    "CHECKPOINT/state.safetensors": ("checkpoint", "extend", "learner"),
}


def sealed(place):
    """A checkpoint whose digests fit what it holds: whoever changes one can do that."""
    facts = checkpoint.files.read_json(place / checkpoint.FACTS)
    if isinstance(facts, dict):
        facts.pop("digest", None)
        facts["tensors_digest"] = checkpoint._digest(place / checkpoint.TENSORS)
        text = checkpoint.json.dumps({**facts, "digest": checkpoint._own_digest(facts)})
        (place / checkpoint.FACTS).write_text(text)


def run_folders(source, place, rng, count):
    """Outcomes of mutated run folders."""
    folder = shutil.copytree(source, place / "run")
    Image.new("L", (28, 28)).save(place / "image.png")
    (at,) = (folder / "checkpoint").glob("[0-9]*")
    counts = Counter()
    for number, name in zip(range(count), itertools.cycle(FILES), strict=False):
        path = folder / name.replace("CHECKPOINT", f"checkpoint/{at.name}")
        whole = {one: one.read_bytes() for one in (path, at / checkpoint.FACTS)}
        path.write_bytes(FILES[name](path.read_bytes(), rng))
        if "CHECKPOINT" in name and rng.random() < 0.7:
            with suppress(ValueError, TypeError):
                sealed(at)
        what = USEFUL[name][(number // len(FILES)) % len(USEFUL[name])]
        try:
            counts[name, outcome(partial(CALLS[what], folder))] += 1
        except Exception as error:
            kept = shutil.copytree(folder, place / "failed", dirs_exist_ok=True)
            raise AssertionError(f"{what} of {name} in {kept}") from error
        for one, data in whole.items():
            one.write_bytes(data)
    return counts


def read_set(path):
    images = readers.read(path, ImportOptions(test_part=0.2, size=8))
    judge(images, None)


def sets(place, rng, count):
    """Outcomes of mutated data sets, in every form."""
    alone, arrays = mutations.data_sets()
    several = mutations.folder_forms(arrays)
    whole = mutations.data_set_file(place / "whole.safetensors", arrays)
    kinds = [*alone, *several, "safetensors", "stream"]
    counts = Counter()
    for number in range(count):
        kind, change = kinds[number % len(kinds)], rng.choice([mutated, promising])
        folder = place / "set"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        if kind in several:
            odd = rng.choice(list(several[kind]))
            for name, data in several[kind].items():
                (folder / name).write_bytes(change(data, rng) if name == odd else data)
            call = partial(read_set, folder)
        elif kind in alone:
            (folder / kind).write_bytes(change(alone[kind], rng))
            call = partial(read_set, folder / kind)
        else:
            path = folder / "mine.safetensors"
            path.write_bytes(either(tensors)(whole, rng))
            classes, total, order = (rng.choice([None, number]) for number in (1, 3, 7))
            own = SplitOf("mine", classes, total, order=order)
            call = (
                (lambda path=path: read_set(path))
                if kind == "safetensors"
                else (lambda own=own, at=folder: _tasks(own, at))
            )
        try:
            counts[kind, outcome(call)] += 1
        except Exception as error:
            kept = shutil.copytree(folder, place / "failed", dirs_exist_ok=True)
            raise AssertionError(f"{kind} in {kept}") from error
    return counts


def _tasks(own, folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CODECL_DATA", str(folder))
        own.tasks()


def mutated_frames(rng, count):
    """Outcomes of mutated frames of peers."""
    pytest.importorskip("grpc")
    from tests.laws.test_frames import frame_or_refused, valid_frames

    valid, counts = list(valid_frames()), Counter()
    for number in range(count):
        change = rng.choice([mutated, promising])
        heard = frame_or_refused(change(valid[number % len(valid)], rng))
        counts["frame", "heard" if heard else "refused"] += 1
    return counts


def all_of(recorded, place, folders, data_sets, frames, seed=0):
    rng = random.Random(seed)
    began = time.monotonic()
    with bounded():
        counts = run_folders(recorded_run(recorded), place, rng, folders)
        counts += sets(place, rng, data_sets)
        counts += mutated_frames(rng, frames)
    return counts, time.monotonic() - began


def test_a_sample_of_mutated_files_is_read_or_refused_in_one_line(recorded, tmp_path):
    counts, seconds = all_of(recorded, tmp_path, 160, 80, 200)
    assert sum(counts.values()) == 440
    assert seconds < 60


@pytest.mark.long
def test_20_000_mutated_files_are_read_or_refused_in_one_line(recorded, tmp_path):
    counts, seconds = all_of(recorded, tmp_path, 8_000, 6_000, 6_000, seed=1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    for (kind, said), count in sorted(counts.items()):
        print(f"{kind:32} {said:8} {count:6}")
    print(f"{sum(counts.values()):,} in {seconds:.0f} s, at most {peak} MB in all")
    assert sum(counts.values()) == 20_000
    for kind in {kind for kind, _ in counts}:
        assert counts[kind, "refused"] > 10, kind
