"""`codecl data` as a user types it."""

import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from codecl.data import store
from codecl.data.catalogue import CATALOGUE
from codecl.data.verify import counts_text, shape_text
from tests.cli.test_cli import failed as line
from tests.conftest import ROOT
from tests.data import canonical
from tests.data.canonical import serving
from tests.data.test_readers import spread

REAL = ROOT.parent / "shared" / "data"


@pytest.fixture
def data(cli, tmp_path):
    """Calls `codecl data …` on a folder of its own."""
    return lambda *words: cli("data", *map(str, words), cwd=tmp_path, CODECL_DATA=str(tmp_path / "data"))


def test_help_and_import_stay_light(cli, tmp_path):
    assert re.search(r"^\s+data\b", cli("--help", cwd=tmp_path).stdout, re.M)
    assert all(word in cli("data", cwd=tmp_path).stdout for word in ("list", "fetch", "add", "verify"))
    for module in ("codecl", "codecl.cli"):
        code = f"import sys, {module}; print({{'torch', 'scipy', 'pooch', 'PIL', 'numpy'}} & set(sys.modules))"
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


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
    assert "`--test-part 0.2` cuts one" in line(data("add", "letters", folder), 3)
    assert "--test-part: 1.5 is not allowed" in line(data("add", "letters", folder, "--test-part", "1.5"), 2)
    done = data("add", "letters", folder, "--test-part", "0.2", "--size", "14")
    assert done.stdout == f"letters: 50 + 10 images of 1×14×14, in {tmp_path / 'data' / 'letters.safetensors'} (own)\n"
    assert "there already, in" in data("add", "letters", folder, "--test-part", "0.2", "--size", "14").stdout
    assert "`--again` replaces it" in line(data("add", "letters", folder, "--test-part", "0.5", "--size", "14"), 3)
    done = data("verify")
    assert done.returncode == 0
    assert done.stdout.startswith("letters: own: shapes and labels are sound")


def test_verify_says_what_is_wrong(data, tmp_path):
    assert data("verify").stdout.startswith("no data sets in ")
    assert "`codecl data fetch svhn` gets it" in line(data("verify", "svhn"), 3)
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


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("fetch", "mnits"), 2, "NAME: 'mnits' is unknown, did you mean 'mnist'?; there are cifar10, "),
        (("fetch", "mnist", "--from", "ftp://x"), 2, "--from: 'ftp://x' is not allowed"),
        (("fetch", "miniimagenet"), 3, "then `codecl data add miniimagenet FOLDER`"),
        (("fetch",), 2, "Missing"),
        (("add", "mine", "nowhere"), 3, "there is no nowhere"),
        (("add", "a/b", "."), 2, "NAME: 'a/b' is not allowed"),
        (("add", "mine", ".", "--size", "0"), 2, "--size"),
        (("verify", "../x"), 2, "NAME: '../x' is not allowed"),
        (("remove", "mnist"), 2, "No such command"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(data, tmp_path, words, code, says):
    assert says in line(data(*words), code)
    assert not list(tmp_path.iterdir())


def test_fetch_does_not_repeat_or_replace_by_itself(data, tmp_path):
    path, _ = canonical.write("mnist", tmp_path / "a", 20, 10)
    assert data("add", "mnist", path, "--as-it-is").returncode == 0
    said = line(data("fetch", "mnist"), 3)
    assert "is there, but 20 + 10 images, should be 60,000 + 10,000; `--again` replaces it" in said
    (tmp_path / "data" / "mnist.safetensors").write_bytes(b"x")
    assert "cannot be read" in line(data("fetch", "mnist"), 3)


def test_on_a_terminal_a_download_shows_its_progress(tmp_path):
    main, side = pty.openpty()
    with serving({"cifar-10-python.tar.gz": bytes(3_000_000)}) as (address, _):
        command = [str(Path(sys.executable).with_name("codecl")), "data", "fetch", "cifar10", "--from", address]
        variables = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "CODECL_DATA": str(tmp_path)}
        process = subprocess.Popen(command, stdin=side, stdout=side, stderr=side, env=variables)
        os.close(side)
        screen = b""
        with suppress(OSError):  # the other side is closed
            while some := os.read(main, 65536):
                screen += some
        assert process.wait(timeout=60) == 3
    os.close(main)
    assert re.search(r"cifar-10-python\.tar\.gz .*3\.0/3\.0 MB", screen.decode())
    assert "codecl: data set 'cifar10': could not get cifar-10-python.tar.gz" in screen.decode()
    assert not list(tmp_path.iterdir())


def real(*parts):
    path = REAL.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"the real images are not at {path}")
    return path


@pytest.mark.parametrize("name", ["mnist", "notmnist"])
def test_the_real_images_are_ok(name, data, tmp_path):
    path = real(name, *(["notmnist.npz"] if name == "notmnist" else []))
    done = data("add", name, path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("(ok)\n")
    assert re.match(rf"{name}: ok: images and labels are ", data("verify", name).stdout)
    assert "there already, ok: " in data("fetch", name).stdout
    file = tmp_path / "data" / f"{name}.safetensors"
    spoilt = bytearray(file.read_bytes())
    spoilt[-1_000_000 if name == "mnist" else -100_000] ^= 1  # one pixel
    file.write_bytes(spoilt)
    done = data("verify", name)
    assert done.returncode == (3 if name == "mnist" else 0)
    assert "not the original's" in done.stdout or "not that of the known copy" in done.stdout


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
    commands = set(re.findall(r"^\$ codecl data (\w+)", page, re.M))
    assert commands == {"list", "fetch", "add", "verify"}
    shown = "".join(cli("data", command, "--help", cwd=tmp_path).stdout for command in commands)
    assert set(re.findall(r"--[a-z-]+[a-z]", page)) <= set(re.findall(r"--[a-z-]+[a-z]", shown))
