"""Data set files are whole or not there, and are never replaced by accident."""

import os
import stat

import numpy as np
import pytest
import safetensors.numpy

from codecl.data import add as adding
from codecl.data import store, streams
from codecl.data.readers import ImportOptions
from codecl.errors import ConfigError, DataError
from tests.data import canonical


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
    assert kept.verdict == ("wrong", "20 + 10 images, should be 50,000 + 10,000")


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
