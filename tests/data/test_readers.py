"""Each published format, and what people keep, comes out as it went in; what is broken is said in one line."""

import gzip
import pickle
import shutil
import tarfile
import zipfile

import numpy as np
import pytest
from safetensors.numpy import save_file

from codecl.data import readers, store
from codecl.data.catalogue import CATALOGUE
from codecl.data.readers import ImportOptions
from codecl.errors import DataError
from tests.data import canonical


def same(found, made):
    for part in store.PARTS:
        got, wanted = getattr(found, part), getattr(made, part)
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_published_format_gives_the_images_in_their_order(name, tmp_path):
    path, made = canonical.write(name, tmp_path, 120, 110)
    found = readers.read(path, ImportOptions(channels=CATALOGUE[name].shape[0]))
    same(found, made)
    assert found.train_images.shape[1:] == CATALOGUE[name].shape
    skipped = ("unreadable image files skipped: notMNIST/Test/A/RGVtb2NyYXRpY2FCb2xkT2xkc3R5bGUgQm9sZC50dGY=.png",)
    assert found.notes == (skipped if name == "notmnist" else ())


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_binary_and_unpacked_folders_give_the_same_as_python(name, tmp_path):
    binary = {"cifar10": canonical.cifar10_binary, "cifar100": canonical.cifar100_binary}[name]
    made = canonical.arrays(name, 120, 110)
    for writer in (canonical.WRITERS[name], binary):
        archive, _ = writer(tmp_path, made)
        same(readers.read(archive), made)
        same(readers.read(canonical.unpack(archive, tmp_path / writer.__name__)), made)


def test_idx_files_not_gzipped_and_both_side_by_side(tmp_path):
    path, made = canonical.write("mnist", tmp_path / "MNIST" / "raw", 20, 10)
    for file in list(path.iterdir()):
        file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
    same(readers.read(tmp_path), made)
    for file in path.glob("*.gz"):
        file.unlink()
    same(readers.read(tmp_path), made)


@pytest.mark.parametrize("form", ["channels first", "channels last", "grey", "keras", "column labels", "floats"])
def test_npz_as_people_save_them(form, tmp_path):
    made = canonical.arrays("mnist" if form == "grey" else "cifar10", 20, 10)
    names = ("x_train", "y_train", "x_test", "y_test") if form == "keras" else store.PARTS
    change = {"channels last": lambda x: x.transpose(0, 2, 3, 1), "grey": lambda x: x[:, 0], "floats": np.float32}
    images = change.get(form, lambda x: x)
    labels = (lambda y: y[:, None].astype(np.int32)) if form == "column labels" else (lambda y: y)
    held = [images(made.train_images), labels(made.train_labels), images(made.test_images), labels(made.test_labels)]
    np.savez(tmp_path / "mine.npz", **dict(zip(names, held, strict=True)))
    same(readers.read(tmp_path / "mine.npz"), made)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"train_images": np.random.default_rng(0).random((4, 8, 8))}, "whole numbers from 0 to 255"),
        ({"train_images": np.full((4, 8, 8), 300)}, "go from 300 to 300"),
        ({"train_images": np.full((4, 8, 8), np.nan)}, "whole numbers from 0 to 255"),
        ({"train_images": np.zeros((4, 8, 8, 8), np.uint8)}, r"\[4, 8, 8, 8\]; \[n, h, w\]"),
        ({"train_images": np.zeros((4, 8), np.uint8)}, r"images are \[4, 8\]"),
        ({"train_labels": np.eye(4)}, r"labels are float64 \[4, 4\]; n whole numbers"),
        ({"train_labels": np.eye(4, dtype=int)}, r"labels are int64 \[4, 4\]"),
        ({"train_images": np.array([{}] * 4, object)}, "allow_pickle=False"),
    ],
)
def test_npz_that_is_not_images(parts, says, tmp_path):
    whole = {part: np.zeros((4, 8, 8) if "images" in part else 4, np.uint8) for part in store.PARTS}
    np.savez(tmp_path / "mine.npz", **(whole | parts))
    with pytest.raises(DataError, match=says):
        readers.read(tmp_path / "mine.npz")


def test_a_data_set_file_is_taken_as_it_is(tmp_path):
    made = canonical.arrays("svhn", 20, 10)
    save_file({part: getattr(made, part) for part in store.PARTS}, tmp_path / "x.safetensors")
    same(readers.read(tmp_path / "x.safetensors"), made)


def spread(members, folder):
    for name, data in members.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def test_class_folders_sorted_grey_and_in_colour(tmp_path):
    for name in ("mnist", "cifar10"):
        members, made = canonical.by_class(canonical.arrays(name, 30, 20), "abcdefghij")
        folder = spread(members, tmp_path / name)
        (folder / "notes.txt").write_text("no image")
        (folder / "train" / ".hidden.png").write_bytes(b"")
        same(readers.read(folder), made)
    mixed = spread({"train/a/grey.png": canonical.png(np.full((1, 32, 32), 7, np.uint8))}, tmp_path / "cifar10")
    found = readers.read(mixed)
    assert (found.train_images[found.train_labels == 0][-1] == 7).all()
    assert found.train_images.shape[1:] == (3, 32, 32)


def test_a_test_part_is_cut_from_every_class_by_the_seed(tmp_path):
    members, _ = canonical.by_class(canonical.arrays("mnist", 100, 10), "abcdefghij")
    cut = {name.removeprefix("train/"): data for name, data in members.items() if name.startswith("train/")}
    folder = spread(cut, tmp_path / "own")
    with pytest.raises(DataError, match=r"no train and test folders .* `--test-part 0\.2` cuts"):
        readers.read(folder)
    first, again, other = (readers.read(folder, ImportOptions(test_part=0.2, seed=seed)) for seed in (1, 1, 2))
    assert np.bincount(first.test_labels).tolist() == [2] * 10
    assert np.bincount(first.train_labels).tolist() == [8] * 10
    same(first, again)
    assert not np.array_equal(first.test_images, other.test_images)
    whole = {image.tobytes() for images in (first.train_images, first.test_images) for image in images}
    assert len(whole) == 100, "no image is in both parts, none is lost"


def test_images_of_differing_size_need_a_size(tmp_path):
    members, _ = canonical.by_class(canonical.arrays("mnist", 20, 20), "abcdefghij")
    members["train/b/odd.png"] = canonical.png(np.zeros((1, 9, 30), np.uint8))
    folder = spread(members, tmp_path / "own")
    with pytest.raises(DataError, match=r"train/b/odd\.png is 30×9, others are 28×28; `--size N` makes all N×N"):
        readers.read(folder)
    assert readers.read(folder, ImportOptions(size=16)).train_images.shape == (21, 1, 16, 16)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda folder: shutil.rmtree(folder / "train" / "a"), "class 'a' has test images and no training images"),
        (lambda folder: [path.write_bytes(b"x") for path in folder.glob("test/*/*")], "no test image that can be read"),
    ],
)
def test_class_folders_that_do_not_fit(change, says, tmp_path):
    members, _ = canonical.by_class(canonical.arrays("mnist", 20, 20), "abcdefghij")
    folder = spread(members, tmp_path / "own")
    change(folder)
    with pytest.raises(DataError, match=says):
        readers.read(folder)


def test_broken_files_are_skipped_and_counted(tmp_path):
    members, _ = canonical.by_class(canonical.arrays("mnist", 20, 20), "abcdefghij")
    members |= {"train/a/x.png": b"", "train/b/y.png": b"broken"}
    found = readers.read(spread(members, tmp_path / "own"))
    assert found.notes == ("unreadable image files skipped: train/a/x.png and 1 more",)
    assert len(found.train_labels) == 20


@pytest.mark.parametrize("name", ["cifar10", "mnist", "svhn", "notmnist", "miniimagenet"])
def test_a_file_cut_short_is_one_line(name, tmp_path):
    path, _ = canonical.write(name, tmp_path, 120, 110)
    file = path if path.is_file() else sorted(path.iterdir())[0]
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(DataError) as caught:
        readers.read(path)
    assert "\n" not in str(caught.value)
    assert file.name in str(caught.value)


def test_a_zip_with_a_broken_list_of_its_files(tmp_path):
    path, _ = canonical.write("notmnist", tmp_path, 20, 20)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"PK\x01\x02", b"PK\x01\x09"))
    with pytest.raises(DataError, match=r"notMNIST\.zip: not a whole archive"):
        readers.read(path)


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(DataError, match=r"there is no .*nowhere; `codecl data add NAME PATH` takes a CIFAR archive"):
        readers.read(tmp_path / "nowhere")
    with pytest.raises(DataError, match="nothing in it that is known; taken is a CIFAR archive"):
        readers.read(tmp_path)
    path, _ = canonical.write("mnist", tmp_path / "idx", 20, 10)
    (path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"is there, but nothing for test labels beside it \(idx files\)"):
        readers.read(path)
    with pytest.raises(DataError, match="nothing in it that is known"):
        readers.read(path / "train-images-idx3-ubyte.gz")


def test_two_sets_in_one_folder_are_not_guessed_at(tmp_path):
    for name in ("MNIST", "FashionMNIST"):
        canonical.write("mnist", tmp_path / name / "raw", 20, 10)
    with pytest.raises(DataError, match=r"idx files in several folders \(FashionMNIST/raw, MNIST/raw\); name one"):
        readers.read(tmp_path)


def test_members_that_point_outside_go_nowhere(tmp_path):
    made = canonical.arrays("cifar100", 120, 110)
    archive, _ = canonical.cifar100_python(tmp_path, made)
    with tarfile.open(archive) as held:
        members = {f"../../outside/{name}": held.extractfile(name).read() for name in held.getnames()}
    evil = canonical.tar(tmp_path / "evil.tar.gz", members)
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as held:
        for name, data in members.items():
            held.writestr(name, data)
    before = sorted(tmp_path.parent.rglob("*"))
    for path in (evil, tmp_path / "evil.zip"):
        with pytest.raises(DataError, match="nothing in it that is known"):
            readers.read(path)
    assert sorted(tmp_path.parent.rglob("*")) == before


def test_pickles_of_floats_only_if_whole(tmp_path):
    made = canonical.arrays("miniimagenet", 100, 100)
    for name, (images, labels) in made.splits().items():
        held = {"images": images.transpose(0, 2, 3, 1).astype(np.float64), "labels": labels}
        (tmp_path / f"{name}.pkl").write_bytes(pickle.dumps(held, protocol=4))
    same(readers.read(tmp_path), made)
    held["images"] += 0.5
    (tmp_path / "test.pkl").write_bytes(pickle.dumps(held))
    with pytest.raises(DataError, match=r"test\.pkl: images go from 0.5 to 255.5 in float64; whole numbers"):
        readers.read(tmp_path)
