"""`codecl data` as a user types it; and from files as they are published to data sets, a run, the table."""

import csv
import io
import json
import re
import subprocess
import sys

import numpy as np
import pytest

from codecl.data import store
from codecl.data.catalogue import CATALOGUE
from codecl.data.streams import FIVE
from codecl.data.verify import counts_text, shape_text
from tests.cli.test_cli import failed
from tests.conftest import ROOT
from tests.data import canonical
from tests.data.canonical import serving
from tests.data.test_readers import spread
from tests.launching import ENTRY, on_a_terminal

REAL = ROOT.parent / "shared" / "data"
TINY = ("--set", "train.epochs=1", "--set", "growth.images=4", "--agents", "2", "--quiet", "--json")


@pytest.fixture
def data(cli, tmp_path):
    """Calls `codecl data …` on a folder of its own."""
    return lambda *words: cli("data", *map(str, words), cwd=tmp_path, CODECL_DATA=str(tmp_path / "data"))


def test_help(cli, tmp_path):
    assert re.search(r"^\s+data\b", cli("--help", cwd=tmp_path).stdout, re.M)
    assert all(word in cli("data", cwd=tmp_path).stdout for word in ("list", "fetch", "add", "verify"))


def test_list_shows_what_is_known_and_what_is_there(data, tmp_path):
    shown = data("list").stdout
    for name in CATALOGUE:
        assert re.search(rf"^{name} .* -\s*$", shown, re.M)
    assert f"folder: {tmp_path / 'data'}" in shown
    path, _ = canonical.write("svhn", tmp_path / "a", 20, 10)
    assert data("add", "svhn", path, "--as-it-is").returncode == 0
    assert data("add", "mine", path).returncode == 0
    for name in ("bad", "[red]"):
        (tmp_path / "data" / f"{name}.safetensors").write_bytes(b"x")
    shown = data("list").stdout
    assert re.search(r"^svhn +3×32×32 +10 +73,257 +26,032 +246 MB +there, 20 \+ 10 images", shown, re.M)
    assert re.search(r"^mine +3×32×32 +20 +10 +your own", shown, re.M)
    assert re.search(r"^bad +broken", shown, re.M)
    assert re.search(r"^\[red\] +broken", shown, re.M)


@pytest.mark.parametrize("name", CATALOGUE)
def test_add_in_the_published_format(name, data, tmp_path, monkeypatch):
    path, made = canonical.write(name, tmp_path / "a", 100, 100)
    assert "should be" in data("add", name, path).stderr
    assert not (tmp_path / "data").exists()
    done = data("add", name, path, "--as-it-is")
    assert done.returncode == 0, done.stderr
    *notes, kept = done.stderr.strip().splitlines()
    assert kept.startswith(f"codecl: {name}: kept as it is, though 100 + 100 images, should be ")
    assert len(notes) == (name == "notmnist")
    assert done.stdout.startswith(f"{name}: 100 + 100 images of ")
    monkeypatch.setenv("CODECL_DATA", str(tmp_path / "data"))
    np.testing.assert_array_equal(store.read(name).test_images, made.test_images)


def test_add_ones_own_and_verify(data, tmp_path):
    members, _ = canonical.by_class(canonical.arrays("mnist", 60, 10), "abcdefghij", ("train", "other"))
    folder = spread({name[6:]: file for name, file in members.items() if name.startswith("train/")}, tmp_path / "own")
    assert "`--test-part 0.2` cuts one" in failed(data("add", "letters", folder), 3)
    assert "--test-part: 1.5 is not allowed" in failed(data("add", "letters", folder, "--test-part", "1.5"), 2)
    done = data("add", "letters", folder, "--test-part", "0.2", "--size", "14")
    assert done.stdout == f"letters: 50 + 10 images of 1×14×14, in {tmp_path / 'data' / 'letters.safetensors'} (own)\n"
    assert "there already, in" in data("add", "letters", folder, "--test-part", "0.2", "--size", "14").stdout
    assert "`--again` replaces it" in failed(data("add", "letters", folder, "--test-part", "0.5", "--size", "14"), 3)
    done = data("verify")
    assert done.returncode == 0
    assert done.stdout.startswith("letters: own: shapes and labels are sound")


def test_verify_says_what_is_wrong(data, tmp_path):
    assert data("verify").stdout.startswith("no data sets in ")
    assert "`codecl data fetch svhn` gets it" in failed(data("verify", "svhn"), 3)
    path, _ = canonical.write("cifar10", tmp_path / "a", 20, 10)
    assert data("add", "cifar10", path, "--as-it-is").returncode == 0
    assert data("add", "mine", path).returncode == 0
    (tmp_path / "data" / "bad.safetensors").write_bytes(b"x")
    done = data("verify")
    assert done.returncode == 3
    assert done.stderr == ""
    bad, known, mine = done.stdout.splitlines()
    assert re.match(r"bad: wrong: .*bad\.safetensors cannot be read", bad)
    assert known == "cifar10: wrong: 20 + 10 images, should be 50,000 + 10,000"
    assert mine.startswith("mine: own: ")
    assert data("verify", "mine").returncode == 0


def test_fetch_does_not_repeat_or_replace_by_itself(data, tmp_path):
    path, _ = canonical.write("mnist", tmp_path / "a", 20, 10)
    assert data("add", "mnist", path, "--as-it-is").returncode == 0
    said = failed(data("fetch", "mnist"), 3)
    assert "is there, but 20 + 10 images, should be 60,000 + 10,000; `--again` replaces it" in said
    (tmp_path / "data" / "mnist.safetensors").write_bytes(b"x")
    assert "cannot be read" in failed(data("fetch", "mnist"), 3)


def test_on_a_terminal_a_download_shows_its_progress(tmp_path):
    with serving({"cifar-10-python.tar.gz": bytes(3_000_000)}) as (address, _):
        command = [ENTRY, "data", "fetch", "cifar10", "--from", address]
        code, screen = on_a_terminal(command, tmp_path, TERM="xterm-256color", COLUMNS="120", CODECL_DATA=str(tmp_path))
    assert code == 3
    assert re.search(r"cifar-10-python\.tar\.gz .*3\.0/3\.0 MB", screen)
    assert "codecl: data set 'cifar10': could not get cifar-10-python.tar.gz" in screen
    assert not list(tmp_path.iterdir())


def real(*parts):
    path = REAL.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"the real images are not at {path}")
    return path


@pytest.mark.parametrize(
    ("name", "status", "says"),
    [("mnist", "ok", "images and labels are the original's"), ("notmnist", "near", "not the original: the small notM")],
)
def test_what_is_said_of_the_real_images(name, status, says, data, tmp_path):
    path = real(name, *(["notmnist.npz"] if name == "notmnist" else []))
    done = data("add", name, path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"({status})\n")
    assert (f"codecl: {name}: {says}" in done.stderr) == (status == "near")
    verified = data("verify", name)
    assert verified.returncode == 0
    assert verified.stdout.startswith(f"{name}: {status}: {says}")
    assert f"there already, {status}: {says}" in data("fetch", name).stdout
    file = tmp_path / "data" / f"{name}.safetensors"
    spoilt = bytearray(file.read_bytes())
    spoilt[-1_000_000 if name == "mnist" else -100_000] ^= 1  # one pixel
    file.write_bytes(spoilt)
    done = data("verify", name)
    assert done.returncode == (3 if name == "mnist" else 0)
    assert ("not the original's" if name == "mnist" else "has nothing to be compared with") in done.stdout


@pytest.mark.parametrize(("name", "status"), [("mnist", "ok"), ("notmnist", "near")])
def test_what_is_said_of_unpacked_images(name, status, data, tmp_path):
    subprocess.run([sys.executable, str(real("unpack.py")), str(tmp_path / "data"), name], check=True)
    assert data("verify", name).stdout.startswith(f"{name}: {status}: ")


@pytest.mark.slow
def test_the_real_cifar100_is_ok(data, tmp_path):
    unpack = [sys.executable, str(real("unpack.py")), str(tmp_path / "data"), "cifar100"]
    subprocess.run(unpack, check=True, capture_output=True)
    assert data("verify", "cifar100").stdout.startswith("cifar100: ok: ")


def test_the_page_on_data_names_what_there_is(cli, tmp_path):
    page = (ROOT / "docs" / "data.md").read_text()
    for entry in CATALOGUE.values():
        assert (
            f"| `{entry.name}` | {shape_text(entry.shape)} | {entry.classes} | {counts_text(entry.counts[0])} |" in page
        )
        assert all(f"| `{entry.name}` | {words} |" in page for words in entry.near_copies.values())
    commands = set(re.findall(r"^\$ codecl data (\w+)", page, re.M))
    assert commands == {"list", "fetch", "add", "verify"}
    shown = "".join(cli("data", command, "--help", cwd=tmp_path).stdout for command in commands)
    assert set(re.findall(r"--[a-z-]+[a-z]", page)) <= set(re.findall(r"--[a-z-]+[a-z]", shown))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Images there are made, of the right shapes and far too few: nothing of them is a result."""
    monkeypatch.setenv("CODECL_DATA", str(tmp_path / "data"))
    return tmp_path


def add_made(cli, name, folder, train, test):
    path, _ = canonical.write(name, folder / "published" / name, train, test)
    done = cli("data", "add", name, str(path), "--as-it-is", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "kept as it is" in done.stderr  # it has not the published counts


def rows(cli, folder):
    done = cli("table", "runs", "--paper", "--format", "csv", cwd=folder)
    return list(csv.DictReader(io.StringIO(done.stdout)))


@pytest.mark.long
def test_five_datasets_from_published_files_to_the_table(cli, folder):
    for name in FIVE:
        add_made(cli, name, folder, 40, 20)
    done = cli("run", "five-datasets", *TINY, "--set", "train.batch_size=5", "--method", "codec,d-ewc", cwd=folder)
    assert done.returncode == 0, done.stderr
    ours = json.loads(done.stdout)
    for run in ours:
        assert (run["status"], run["tasks"], run["benchmark"]) == ("complete", 5, "five-datasets")
        assert [len([x for x in row if x is not None]) for row in run["accuracy_matrix"]] == [1, 2, 3, 4, 5]
    codec = ours[0]
    assert codec["traffic"]["cc_by_task"][4] > 1.2 > 1.01 > codec["traffic"]["cc_by_task"][0]
    assert len(codec["free_by_task"][0]) == 20  # shortcuts carry a basis too
    table = rows(cli, folder)
    assert [(row["method"], row["paper_acc"]) for row in table] == [("d-ewc", ""), ("codec", "")]  # 2 agents: not there
    assert cli("data", "verify", cwd=folder).returncode == 3  # and nobody takes these for the real sets


@pytest.mark.long
def test_split_miniimagenet_from_published_files_to_the_table(cli, folder):
    add_made(cli, "miniimagenet", folder, 800, 200)
    more = ("--set", "data.tasks=2", "--set", "train.batch_size=4", "--set", "train.test_batch_size=10")
    done = cli("run", "split-miniimagenet", *TINY, *more, "--agents", "4", cwd=folder)
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)
    assert (run["status"], run["tasks"]) == ("complete", 2)
    assert run["free_by_task"][0]["block4b.conv2"] == 1440
    (row,) = rows(cli, folder)
    assert float(row["paper_acc"]) == 59.0
    assert "data.tasks=2" in row["variant"]


def test_without_the_files_one_line_says_how_to_get_them(cli, folder):
    said = failed(cli("run", "five-datasets", *TINY, cwd=folder), 3)
    assert "data set 'cifar10': there is no" in said
    assert "codecl data fetch cifar10" in said
