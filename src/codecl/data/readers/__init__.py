"""What people have -> a data set. The kind is found from the files that are there; no name is trusted further."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from codecl.data import store
from codecl.data.readers import formats, pictures
from codecl.data.readers.pictures import ImportOptions
from codecl.data.readers.tree import Tree, opened
from codecl.errors import DataError

__all__ = ["TAKEN", "ImportOptions", "read"]
TAKEN = (
    "a CIFAR archive (python or binary), a folder with idx files, with SVHN's .mat files or with train.pkl and test.pkl"
    ", image files in class folders (also zipped), an .npz, or a .safetensors"
)
Roles = dict[str, list[str]]  # what a file is for -> the names of such files


class Kind(NamedTuple):
    """`needs`: the files that must lie in one folder, as patterns of their names. `read`: a split of it."""

    title: str
    needs: dict[str, str]
    read: Callable[..., store.Split]


def _pairs(images: str, labels: str, test: str = "test") -> dict[str, str]:
    """Files of images and files of labels; SPLIT in their patterns is `train`, or what `test` says."""
    patterns = {"images": images, "labels": labels}
    return {
        f"{split} {what}": pattern.replace("SPLIT", word)
        for split, word in (("train", "train"), ("test", test))
        for what, pattern in patterns.items()
    }


KINDS = (
    Kind("CIFAR-10 (python)", {"train": r"data_batch_\d+", "test": "test_batch"}, formats.cifar_pickles),
    Kind("CIFAR-100 (python)", {"train": "train", "test": "test"}, formats.cifar_pickles),
    Kind(
        "CIFAR-10 (binary)",
        {"train": r"data_batch_\d+\.bin", "test": r"test_batch\.bin"},
        partial(formats.cifar_records, 1),
    ),
    Kind("CIFAR-100 (binary)", {"train": r"train\.bin", "test": r"test\.bin"}, partial(formats.cifar_records, 2)),
    Kind(
        "idx files",
        _pairs(
            r"SPLIT[-_.]images[-_.]idx3[-_.]ubyte(\.gz)?", r"SPLIT[-_.]labels[-_.]idx1[-_.]ubyte(\.gz)?", "(t10k|test)"
        ),
        formats.idx,
    ),
    Kind("SVHN", {"train": r"train_32x32\.mat", "test": r"test_32x32\.mat"}, formats.svhn),
    Kind("pickles", {"train": r"train\.pkl", "test": r"test\.pkl"}, formats.pickles),
    Kind("arrays", _pairs(r"(SPLIT_images|x_SPLIT)\.npy", r"(SPLIT_labels|y_SPLIT)\.npy"), formats.npy),
)


def read(path: Path, options: ImportOptions | None = None) -> store.ImageSet:
    """The data set in a file, an archive or a folder."""
    if not path.exists():
        raise DataError(f"there is no {path}; `codecl data add NAME PATH` takes {TAKEN}")
    if path.suffix == ".safetensors":
        return store.read_file(path)
    with opened(path) as tree:
        for kind in KINDS:
            roles = _complete(tree, kind)
            if roles:
                return store.ImageSet(*_split("train", tree, kind, roles), *_split("test", tree, kind, roles))
        images = pictures.read(tree, options or ImportOptions())
        if images is not None:
            return images
        raise DataError(f"{path}: {_nearly(tree)}; taken is {TAKEN}")


def _split(split: str, tree: Tree, kind: Kind, roles: Roles) -> store.Split:
    """From all files of its role; where images and labels have roles of their own, from the first of each."""
    files = [names for role, names in roles.items() if role.startswith(split)]
    return kind.read(tree, *(files[0] if len(files) == 1 else [names[0] for names in files]))


def _complete(tree: Tree, kind: Kind) -> Roles | None:
    """The files of each role, all in one folder; None where this kind is not there."""
    complete = {folder: roles for folder, roles in _roles(tree, kind).items() if all(roles.values())}
    if len(complete) > 1:
        raise DataError(f"{tree.where}: {kind.title} in several folders ({', '.join(complete)}); name one of them")
    return next(iter(complete.values()), None)


def _roles(tree: Tree, kind: Kind) -> dict[str, Roles]:
    """By folder: the files that fit each role."""
    by_folder: dict[str, Roles] = {}
    for name in tree.names:
        file = PurePosixPath(name)
        for role, pattern in kind.needs.items():
            if re.fullmatch(pattern, file.name):
                roles = by_folder.setdefault(str(file.parent), {role: [] for role in kind.needs})
                roles[role].append(name)
    return by_folder


def _nearly(tree: Tree) -> str:
    """What is missing of the kind that comes nearest, in words."""
    for kind in KINDS:
        for roles in _roles(tree, kind).values():
            absent = [role for role, names in roles.items() if not names]
            there = next(name for names in roles.values() for name in names)
            return f"{there} is there, but nothing for {', '.join(absent)} beside it ({kind.title})"
    return "nothing in it that is known"
