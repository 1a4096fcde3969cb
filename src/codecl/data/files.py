"""Data set files: `<name>.safetensors` in the data folder, with images and labels for training and test."""

import hashlib
from functools import cache
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from codecl.data.store import PARTS, folder, missing, path_of
from codecl.errors import DataError

__all__ = ["digest", "folder", "load"]


def digest(name: str) -> str | None:
    """Of the file's bytes; None where there is no such file."""
    path = path_of(name)
    try:
        facts = path.stat()
        return _digest(path, facts.st_size, facts.st_mtime_ns)
    except OSError:
        return None


@cache
def _digest(path: Path, size: int, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def load(name: str, at: Path | None = None) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """((training images, labels), (test images, labels)); images uint8 [n, channels, height, width]. `at`: see
    store.path_of."""
    path = path_of(name, at)
    if not path.is_file():
        raise missing(name, at)
    try:
        held = load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"data set {name!r}: {path} cannot be read ({error})") from error
    lacking = [part for part in PARTS if part not in held]
    if lacking:
        raise DataError(f"data set {name!r}: {path} lacks {', '.join(lacking)}")
    for split in ("train", "test"):
        images, labels = held[f"{split}_images"], held[f"{split}_labels"]
        if images.ndim != 4 or images.dtype != torch.uint8 or labels.shape != images.shape[:1] or not len(labels):
            raise DataError(
                f"data set {name!r}: {split}_images of {path} are {images.dtype} {list(images.shape)} with labels"
                f" {list(labels.shape)}; they should be uint8 [n, channels, height, width] with n labels"
            )
    return (held["train_images"], held["train_labels"]), (held["test_images"], held["test_labels"])
