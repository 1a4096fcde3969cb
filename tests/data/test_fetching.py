"""`fetch` against a real server: what goes wrong leaves the folder as it was and can be repeated."""

import gc
import hashlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from codecl.data import add as adding
from codecl.data import store
from codecl.data.catalogue import CATALOGUE, File
from codecl.errors import DataError
from tests.cli.test_cli import failed
from tests.data import canonical
from tests.data.canonical import serving


@pytest.fixture(autouse=True)
def _no_connection_is_left_open():
    """One that is warns when it is collected, and a warning is an error."""
    yield
    gc.collect()


NOWHERE = "http://127.0.0.1:9"  # nobody listens there


@pytest.fixture
def folder(monkeypatch, tmp_path):
    room = tmp_path / "data"
    room.mkdir()
    (room / "other.txt").write_text("mine")
    monkeypatch.setenv("CODECL_DATA", str(room))
    return room


def contents(folder):
    return {str(path.relative_to(folder)): path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def small(name, folder, address="http://unused"):
    """A catalogue entry for a small made-up set, its arrays, and its files."""
    path, made = canonical.write(name, folder, 40, 20)
    files = {file.name: file.read_bytes() for file in (path.iterdir() if path.is_dir() else [path])}
    listed = tuple(
        File(file.name, (f"{address}/{file.name}",), hashlib.md5(files[file.name]).hexdigest())
        for file in CATALOGUE[name].files
    )
    return replace(CATALOGUE[name], files=listed, counts=((40, 20),), digests=(), exact=False), made, files


@pytest.mark.parametrize("name", ["mnist", "svhn", "cifar10", "notmnist"])
def test_a_good_server(name, folder, tmp_path):
    entry, made, files = small(name, tmp_path / "made")
    before = contents(folder)
    with serving(files) as (address, asked):
        kept = adding.fetch(entry, mirror=address)
        assert sorted(asked) == sorted(files)
    assert kept.verdict.status == "fits"
    for part in store.PARTS:
        np.testing.assert_array_equal(getattr(store.read(name), part), getattr(made, part))
    assert contents(folder).keys() - before.keys() == {f"{name}.safetensors"}, "the archives are gone"


def failing(kind, files, victim):
    """Arguments for the server, and what is said."""
    wrong = files[victim][:-1] + bytes([files[victim][-1] ^ 1])
    return {
        "checksum": (({**files, victim: wrong}, ()), "not the published file, its MD5 is not"),
        "cut": ((files, (victim,)), "the connection was cut"),
        "missing": (({name: data for name, data in files.items() if name != victim}, ()), "404 Not Found"),
    }[kind]


@pytest.mark.parametrize("kind", ["checksum", "cut", "missing"])
@pytest.mark.parametrize("name", ["cifar10", "mnist"])
def test_what_goes_wrong_leaves_nothing_and_can_be_repeated(kind, name, folder, tmp_path):
    entry, _, files = small(name, tmp_path / "made")
    victim = entry.files[0].name
    arguments, says = failing(kind, files, victim)
    before = contents(folder)
    with serving(*arguments) as (address, _), pytest.raises(DataError) as caught:
        adding.fetch(entry, mirror=address)
    line = str(caught.value)
    assert f"could not get {victim} ({address}/{victim}: {says}" in line
    assert f"`codecl data add {name} " in line
    assert "\n" not in line
    assert contents(folder) == before
    with serving(files) as (address, _):
        assert adding.fetch(entry, mirror=address).written


@pytest.mark.parametrize("kind", ["checksum", "cut", "missing"])
def test_verified_files_of_a_set_stay_and_are_not_fetched_again(kind, folder, tmp_path):
    entry, _, files = small("mnist", tmp_path / "made")
    names = [file.name for file in entry.files]
    arguments, _ = failing(kind, files, names[2])
    with serving(*arguments) as (address, _), pytest.raises(DataError, match="could not get t10k-images"):
        adding.fetch(entry, mirror=address)
    left = {path for path, data in contents(folder).items() if data is not False}
    assert left == {"other.txt", f"downloads/mnist/{names[0]}", f"downloads/mnist/{names[1]}"}
    with serving(files) as (address, asked):
        adding.fetch(entry, mirror=address)
        assert asked == names[2:]
    assert contents(folder).keys() == {"other.txt", "mnist.safetensors"}


def test_a_kept_file_that_was_spoilt_meanwhile_is_fetched_anew(folder, tmp_path):
    entry, _, files = small("mnist", tmp_path / "made")
    room = folder / "downloads" / "mnist"
    room.mkdir(parents=True)
    (room / entry.files[0].name).write_bytes(b"spoilt")
    with serving(files) as (address, asked):
        adding.fetch(entry, mirror=address)
        assert len(asked) == 4


def test_places_are_tried_in_order(folder, tmp_path):
    entry, _, files = small("cifar10", tmp_path / "made")
    (file,) = entry.files
    with serving({}) as (empty, first), serving(files) as (good, second):
        urls = tuple(f"{place}/{file.name}" for place in (NOWHERE, empty, good))
        adding.fetch(replace(entry, files=(replace(file, urls=urls),)))
        assert first == second == [file.name]


def test_nobody_there(folder, tmp_path):
    entry, _, _ = small("mnist", tmp_path / "made", NOWHERE)
    before = contents(folder)
    with pytest.raises(DataError) as caught:
        adding.fetch(entry)
    for file in entry.files:
        assert f"{NOWHERE}/{file.name}" in str(caught.value)
    assert "no connection" in str(caught.value)
    assert str(caught.value).endswith("elsewhere into one folder, then `codecl data add mnist FOLDER`")
    assert contents(folder) == before


def test_a_folder_that_was_not_there_is_not_left_behind(folder, tmp_path, monkeypatch):
    entry, _, _ = small("mnist", tmp_path / "made", NOWHERE)
    monkeypatch.setenv("CODECL_DATA", str(tmp_path / "new"))
    with pytest.raises(DataError):
        adding.fetch(entry)
    assert not (tmp_path / "new").exists()


def test_a_download_without_checksum_that_is_no_good_leaves_nothing(folder, tmp_path):
    entry, _, files = small("notmnist", tmp_path / "made")
    entry = replace(entry, files=tuple(replace(file, md5=None) for file in entry.files))
    before = contents(folder)
    with (
        serving({"notMNIST.zip": b"<html>gone</html>"}) as (address, _),
        pytest.raises(DataError, match="nothing in it"),
    ):
        adding.fetch(entry, mirror=address)
    assert contents(folder) == before
    with serving(files, cut=["notMNIST.zip"]) as (address, _), pytest.raises(DataError, match="was cut"):
        adding.fetch(entry, mirror=address)
    assert contents(folder) == before


def test_what_was_fetched_is_checked_like_anything_else(folder, tmp_path):
    entry, _, files = small("cifar10", tmp_path / "made")
    before = contents(folder)
    with serving(files) as (address, _), pytest.raises(DataError, match=r"40 \+ 20 images, should be 50,000 \+ 10,000"):
        adding.fetch(replace(entry, counts=CATALOGUE["cifar10"].counts), mirror=address)
    assert contents(folder) == before


def test_the_command_with_a_wrong_file_none_and_no_server(cli, folder, tmp_path):
    _, _, files = small("mnist", tmp_path / "made")
    before = contents(folder)
    where = {"cwd": tmp_path, "CODECL_DATA": str(folder)}
    with serving(files) as (address, _):
        done = cli("data", "fetch", "mnist", "--from", address, **where)
        assert "its MD5 is not f68b3c2dcbeaaa9f" in failed(done, 3)
    with serving({}) as (address, _):
        assert "404 Not Found" in failed(cli("data", "fetch", "svhn", "--from", address, **where), 3)
    line = failed(cli("data", "fetch", "cifar100", "--from", NOWHERE, **where), 3)
    assert "no connection" in line
    assert line.endswith(
        "download https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz elsewhere,"
        " then `codecl data add cifar100 cifar-100-python.tar.gz`"
    )
    assert contents(folder) == before


def test_ctrl_c_in_a_download_leaves_nothing(folder, tmp_path):
    _, _, files = small("mnist", tmp_path / "made")
    before = contents(folder)
    command = [str(Path(sys.executable).with_name("codecl")), "data", "fetch", "mnist", "--from"]
    with serving(files, stall=list(files)) as (address, asked):
        process = subprocess.Popen([*command, address], stderr=subprocess.PIPE, text=True, env=os.environ)
        end = time.monotonic() + 60
        while not (asked and contents(folder).keys() - before.keys() - {"downloads", "downloads/mnist"}):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "codecl: interrupted\n"
    assert contents(folder) == before
