"""Data set files in the data folder, and the streams that are cut from them."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from codecl.data import store, streams
from codecl.data.streams import STREAMS
from codecl.errors import DataError
from codecl.runs.config import preset, resolve


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("CODECL_DATA", str(tmp_path))
    return tmp_path


def small(path, images=400):
    """A cifar100 with four images a class, in the canonical form."""
    labels = torch.randperm(images, generator=torch.Generator().manual_seed(0)) % 100
    pixels = torch.randint(256, (images, 3, 32, 32), dtype=torch.uint8)
    pixels[:, 0, 0, 0] = labels.to(torch.uint8)  # so that an image can be told
    held = {}
    for split in ("train", "test"):
        held |= {f"{split}_images": pixels.clone(), f"{split}_labels": labels.clone()}
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


def test_the_data_folder_is_the_cache_unless_it_is_named(monkeypatch, tmp_path):
    assert store.folder() == tmp_path
    monkeypatch.delenv("CODECL_DATA")
    monkeypatch.setenv("CODECL_CACHE", str(tmp_path / "cache"))
    assert store.folder() == tmp_path / "cache"
    monkeypatch.delenv("CODECL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert store.folder().name == "codecl"


def test_the_preset_runs_on_a_small_file(cli, folder):
    small(folder / "cifar100.safetensors", 800)
    settings = ["train.epochs=1", "train.batch_size=4", "growth.images=4"]
    options = [word for setting in settings for word in ("--set", setting)]
    done = cli("run", "split-cifar100", "--agents", "2", *options, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "runs").exists()
    assert '"tasks": 10' in done.stdout
