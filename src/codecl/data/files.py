"""Data set files: `<name>.safetensors` in the data folder, with images and labels for training and test."""

import os
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from codecl import cache
from codecl.errors import DataError

PARTS = ("train_images", "train_labels", "test_images", "test_labels")


def folder() -> Path:
    """`$CODECL_DATA`, or the user's cache folder."""
    return Path(os.environ["CODECL_DATA"]) if os.environ.get("CODECL_DATA") else cache.folder()


def load(name: str) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """((training images, labels), (test images, labels)); images uint8 [n, channels, height, width]."""
    path = folder() / f"{name}.safetensors"
    if not path.is_file():
        raise DataError(
            f"data set {name!r}: there is no {path}; put the file there, or set CODECL_DATA to the folder that has it"
        )
    try:
        held = load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"data set {name!r}: {path} cannot be read ({error})") from error
    missing = [part for part in PARTS if part not in held]
    if missing:
        raise DataError(f"data set {name!r}: {path} lacks {', '.join(missing)}")
    return (held["train_images"], held["train_labels"]), (held["test_images"], held["test_labels"])
