"""Data set files are whole or not there, never replaced by accident, and read in one place."""

import os
import stat

import numpy as np
import pytest
import safetensors.numpy
import torch
from safetensors.torch import load_file, save_file

from codecl.cli.common import console_for
from codecl.cli.run import RunOptions, run_all
from codecl.data import add as adding
from codecl.data import store, streams
from codecl.data.catalogue import Verdict
from codecl.data.readers import ImportOptions
from codecl.data.streams import STREAMS
from codecl.errors import ConfigError, DataError
from codecl.exchange.cluster.ranks import Ranks
from codecl.runs.grid import grid, preset, resolve
from tests.data import canonical
from tests.problems import CPU


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("CODECL_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def test_what_is_written_is_what_the_streams_load(folder):
    made = canonical.arrays("cifar10", 20, 10)
    path = store.write("mine", made)
    assert path == folder / "mine.safetensors"
    loaded = streams.from_file("mine")
    for found, part in zip((*loaded.train, *loaded.test), store.PARTS, strict=True):
        np.testing.assert_array_equal(found.numpy(), getattr(made, part))
    assert store.names() == ["mine"]
    assert store.shapes("mine")["train_images"] == [20, 3, 32, 32]
    assert list(folder.iterdir()) == [path]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize("trouble", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_a_write_that_ends_early_leaves_what_was_there(folder, trouble, monkeypatch):
    store.write("mine", canonical.arrays("cifar10", 20, 10))
    before = (folder / "mine.safetensors").read_bytes()

    def half(held, path, names):
        path.write_bytes(b"half")
        raise trouble

    monkeypatch.setattr(safetensors.numpy, "save_file", half)
    with pytest.raises((KeyboardInterrupt, DataError)) as caught:
        store.write("mine", canonical.arrays("mnist", 20, 10))
    assert isinstance(trouble, type) or "cannot be written (No space left on device)" in str(caught.value)
    assert [path.read_bytes() for path in folder.iterdir()] == [before]


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CODECL_DATA", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"mine\.safetensors cannot be written \(.*[Ee]xists\)"):
        store.write("mine", canonical.arrays("mnist", 20, 10))


def test_missing_says_how_to_get_it(folder):
    for load in (streams.from_file, store.read):
        with pytest.raises(DataError, match=r"`codecl data fetch svhn` gets it, `codecl data add svhn PATH` takes"):
            load("svhn")
        for name in ("mine", "miniimagenet"):
            with pytest.raises(DataError, match=rf"{name}\.safetensors; `codecl data add {name} PATH` takes") as caught:
                load(name)
            assert str(folder) in str(caught.value)
            assert caught.value.exit_code == 3


def test_another_data_set_is_replaced_only_on_request(tmp_path):
    first, _ = canonical.write("mnist", tmp_path / "a", 20, 10, seed=1)
    second, made = canonical.write("mnist", tmp_path / "b", 20, 10, seed=2)
    assert adding.add("mine", first, ImportOptions()).written
    assert not adding.add("mine", first, ImportOptions()).written
    with pytest.raises(DataError, match="holds something else; `--again` replaces it"):
        adding.add("mine", second, ImportOptions())
    assert adding.add("mine", second, ImportOptions(), again=True).written
    np.testing.assert_array_equal(store.read("mine").train_images, made.train_images)
    store.path_of("mine").write_bytes(b"broken")
    with pytest.raises(DataError, match="holds something else"):
        adding.add("mine", second, ImportOptions())


def test_a_known_name_is_checked_before_anything_is_written(folder, tmp_path):
    path, _ = canonical.write("cifar10", tmp_path / "a", 20, 10)
    with pytest.raises(DataError, match=r"images are 3×32×32, should be 1×28×28; `--as-it-is` keeps it"):
        adding.add("mnist", path, ImportOptions())
    with pytest.raises(DataError, match=r"20 \+ 10 images, should be 50,000 \+ 10,000"):
        adding.add("cifar10", path, ImportOptions())
    assert not folder.exists()
    kept = adding.add("cifar10", path, ImportOptions(), as_it_is=True)
    assert kept.verdict == Verdict("wrong", "20 + 10 images, should be 50,000 + 10,000")


def test_what_is_not_sound_is_not_kept_at_all(folder, tmp_path):
    made = canonical.arrays("mnist", 20, 10)
    held = {part: getattr(made, part) for part in store.PARTS} | {"train_labels": np.zeros(20, int)}
    np.savez(tmp_path / "a.npz", **held)
    for name in ("mnist", "mine"):
        with pytest.raises(DataError, match="class 1 has no training images"):
            adding.add(name, tmp_path / "a.npz", ImportOptions(), as_it_is=True)
    assert not folder.exists()


@pytest.mark.parametrize("name", ["", "../up", "a b", ".hidden", "x/y", "-x"])
def test_names_that_are_none(name, tmp_path):
    with pytest.raises(ConfigError, match="letters, digits, - and _"):
        adding.add(name, tmp_path, ImportOptions())


def small(path, images=400):
    """A cifar100 with four images a class, in the canonical form."""
    labels = torch.randperm(images, generator=torch.Generator().manual_seed(0)) % 100
    pixels = torch.randint(256, (images, 3, 32, 32), dtype=torch.uint8)
    pixels[:, 0, 0, 0] = labels.to(torch.uint8)  # so that an image can be told
    held = {}
    for split in ("train", "test"):
        held |= {f"{split}_images": pixels.clone(), f"{split}_labels": labels.clone()}
    path.parent.mkdir(exist_ok=True)
    save_file(held, path)


def test_split_cifar100_is_ten_tasks_of_ten_classes_in_label_order(folder):
    small(folder / "cifar100.safetensors")
    tasks = STREAMS["split-cifar100"]()
    assert len(tasks) == 10
    for number, task in enumerate(tasks):
        for images, labels in (task.train, task.test):
            assert len(labels) == 40
            assert sorted(set(labels.tolist())) == list(range(10))
            assert torch.equal(images[:, 0, 0, 0].long(), labels + 10 * number)
    assert tasks[3].name == "classes 30-39"


def test_a_file_that_is_not_there_or_broken_is_said_in_one_line(folder):
    with pytest.raises(
        DataError, match=r"data set 'cifar100': there is no .*cifar100.safetensors; `codecl data fetch cifar100` gets"
    ):
        STREAMS["split-cifar100"]()
    folder.mkdir()
    (folder / "cifar100.safetensors").write_bytes(b"12345678 not a data set")
    with pytest.raises(DataError, match="cannot be read"):
        streams.from_file("cifar100")
    save_file({"train_images": torch.zeros(1, 3, 2, 2, dtype=torch.uint8)}, folder / "cifar100.safetensors")
    with pytest.raises(DataError, match="lacks train_labels, test_images, test_labels"):
        streams.from_file("cifar100")


def test_another_file_is_another_run(folder):
    def resolved():
        return resolve(preset("split-cifar100"), {})

    assert "data" not in resolved().sources  # `codecl show` works without it
    small(folder / "cifar100.safetensors")
    first = resolved()
    assert first.sources["data"] == resolved().sources["data"]
    small(folder / "cifar100.safetensors", 800)
    assert resolved().sources["data"] != first.sources["data"]


@pytest.mark.parametrize(
    "changes",
    [
        {"train_labels": torch.zeros(400, 1, dtype=torch.long)},
        {"train_labels": torch.zeros(3, dtype=torch.long)},
        {"test_images": torch.zeros(400, 3, 32, 32)},
        {"test_images": torch.zeros(0, 3, 32, 32, dtype=torch.uint8), "test_labels": torch.zeros(0).long()},
    ],
)
def test_a_file_with_other_shapes_is_said_in_one_line(folder, changes):
    path = folder / "cifar100.safetensors"
    small(path)
    save_file({**load_file(path), **changes}, path)
    with pytest.raises(
        DataError, match=r"_images of .* are torch\..* they should be uint8 \[n, channels, height, width\]"
    ):
        streams.from_file("cifar100")


def test_the_data_folder_is_the_cache_unless_it_is_named(folder, monkeypatch, tmp_path):
    assert store.folder() == folder
    monkeypatch.delenv("CODECL_DATA")
    monkeypatch.setenv("CODECL_CACHE", str(tmp_path / "cache"))
    assert store.folder() == tmp_path / "cache"
    monkeypatch.delenv("CODECL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert store.folder().name == "codecl"


def test_a_grid_reads_a_file_once_and_a_complete_run_reads_none(folder, tmp_path, monkeypatch):
    small(folder / "cifar100.safetensors", 800)
    reads, read = [], store.read_file
    monkeypatch.setattr(store, "read_file", lambda path: reads.append(path) or read(path))
    settings = ["train.epochs=1", "train.batch_size=20", "growth.images=4", "data.tasks=3"]
    configs = list(grid("split-cifar100", "codec,dpsgd", "2", None, None, settings))
    options = RunOptions(tmp_path / "runs", "cpu", Ranks("simulated", CPU), quiet=True, console=console_for(True))
    for trained in (True, False):
        results = run_all(configs, options).results
        assert [result.trained for result in results] == [trained] * 2
        assert [(result.metrics["tasks"], result.metrics["status"]) for result in results] == [(3, "complete")] * 2
        assert len(reads) == 1
    assert results[0].model(1)(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    store.path_of("cifar100").unlink()  # which file it was cannot be told any more
    with pytest.raises(DataError, match="data set 'cifar100': there is no"):
        run_all(configs, options)
