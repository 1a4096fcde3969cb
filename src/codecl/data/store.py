"""The data folder and the files in it, without torch: data set files are read and written whole or not at all."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codecl.data.catalogue import way_to
from codecl.errors import DataError
from codecl.files import cache_folder, replacing

NAMES = "class_names"  # in the file's metadata
SUFFIX = ".safetensors"
PARTS = ("train_images", "train_labels", "test_images", "test_labels")
Array = NDArray[Any]
Split = tuple[Array, Array]  # images and labels


@dataclass(frozen=True)
class ImageSet:
    """Images uint8 [n, channels, height, width] and int64 labels [n]; notes: what a reader left out; names: what the
    classes are called, where that is known."""

    train_images: Array
    train_labels: Array
    test_images: Array
    test_labels: Array
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def splits(self) -> dict[str, Split]:
        return {"train": (self.train_images, self.train_labels), "test": (self.test_images, self.test_labels)}


def folder() -> Path:
    """`$CODECL_DATA`, or the user's cache folder."""
    return Path(os.environ["CODECL_DATA"]) if os.environ.get("CODECL_DATA") else cache_folder()


def path_of(name: str, at: Path | None = None) -> Path:
    """The file of a data set: in the data folder, or `at` another, or the very file that `at` names."""
    return at if at is not None and at.suffix == SUFFIX else (at or folder()) / f"{name}{SUFFIX}"


def names() -> list[str]:
    """The data sets that are in the folder."""
    return sorted(path.stem for path in folder().glob("*.safetensors") if not path.name.startswith("."))


def missing(name: str, at: Path | None = None) -> DataError:
    if at is not None:
        return DataError(
            f"data.local_path: there is no {path_of(name, at)}, this agent's data set {name!r};"
            f" `codecl data add {name} PATH` makes such a file of what you have"
        )
    return DataError(
        f"data set {name!r}: there is no {path_of(name)}; {way_to(name)}, or set CODECL_DATA to the folder that has it"
    )


def read(name: str) -> ImageSet:
    """The data set of this name, as it is in the folder."""
    if not path_of(name).is_file():
        raise missing(name)
    return read_file(path_of(name))


def read_file(path: Path) -> ImageSet:
    """What a data set file holds; other tensors in it are left out."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as held:
            lacking = [part for part in PARTS if part not in held.keys()]  # noqa: SIM118  (not a dict)
            if lacking:
                raise DataError(f"{path} lacks {', '.join(lacking)}")
            return ImageSet(**{part: held.get_tensor(part) for part in PARTS}, names=_names(held.metadata()))
    except (OSError, SafetensorError, TypeError) as error:
        raise DataError(f"{path} cannot be read ({error})") from error


def class_names(name: str, at: Path | None = None) -> tuple[str, ...]:
    """What the classes of a data set file are called; empty where it does not say."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path_of(name, at), framework="np") as held:
            return _names(held.metadata())
    except (OSError, SafetensorError):
        return ()


def _names(metadata: Mapping[str, str] | None) -> tuple[str, ...]:
    try:
        names = json.loads((metadata or {}).get(NAMES, "[]"))
    except ValueError:
        return ()
    return tuple(map(str, names)) if isinstance(names, list) else ()


def shapes(name: str) -> dict[str, list[int]] | None:
    """The shape of each part, from the file's head alone; None where it cannot be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path_of(name), framework="np") as held:
            return {part: held.get_slice(part).get_shape() for part in PARTS}
    except (OSError, SafetensorError):
        return None


def write(name: str, images: ImageSet) -> Path:
    """The data set file of this name: complete, or not there."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    path = path_of(name)
    try:
        with replacing(path) as unfinished:
            held = {part: np.ascontiguousarray(getattr(images, part)) for part in PARTS}
            save_file(held, unfinished, {NAMES: json.dumps(images.names)} if images.names else None)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be written ({getattr(error, 'strerror', None) or error})") from error
    return path
