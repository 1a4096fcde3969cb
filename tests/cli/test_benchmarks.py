"""The paper's other benchmarks, the whole way: files as they are published -> data sets -> a run -> the table.

The images are made, of the right shapes and far too few: nothing here is a result."""

import csv
import io
import json

import pytest

from codecl.data.streams import FIVE
from tests.data.canonical import write

TINY = ("--set", "train.epochs=1", "--set", "growth.images=4", "--agents", "2", "--quiet", "--json")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CODECL_DATA", str(tmp_path / "data"))
    return tmp_path


def add(cli, name, folder, train, test):
    path, _ = write(name, folder / "published" / name, train, test)
    done = cli("data", "add", name, str(path), "--as-it-is", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "kept as it is" in done.stderr  # it has not the published counts


def rows(cli, folder):
    done = cli("table", "runs", "--paper", "--format", "csv", cwd=folder)
    return list(csv.DictReader(io.StringIO(done.stdout)))


@pytest.mark.long
def test_five_datasets_from_published_files_to_the_table(cli, folder):
    for name in FIVE:
        add(cli, name, folder, 40, 20)
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
    add(cli, "miniimagenet", folder, 800, 200)
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
    done = cli("run", "five-datasets", *TINY, cwd=folder)
    assert done.returncode == 3
    (line,) = done.stderr.strip().splitlines()
    assert "data set 'cifar10': there is no" in line
    assert "codecl data fetch cifar10" in line
