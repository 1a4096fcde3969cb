"""The data folder and the files in it, without torch: data set files are read and written whole or not at all."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codecl.data.catalogue import CATALOGUE
from codecl.errors import DataError, printable
from codecl.files import cache_folder, parse_json, replacing

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


def path_of(name: str, path: Path | None = None) -> Path:
    """The file of a data set: in the data folder, or in the folder `path`, or the very file that `path` names."""
    return path if path is not None and path.suffix == SUFFIX else (path or folder()) / f"{name}{SUFFIX}"


def names() -> list[str]:
    """The data sets that are in the folder."""
    return sorted(path.stem for path in folder().glob("*.safetensors") if not path.name.startswith("."))


def missing(name: str, path: Path | None = None) -> DataError:
    add = f"`codecl data add {name} PATH`"
    if path is not None:
        return DataError(
            f"data.local_path: there is no {path_of(name, path)}, this agent's data set {name!r};"
            f" {add} makes such a file of what you have"
        )
    fetch = f"`codecl data fetch {name}` gets it, " if name in CATALOGUE and CATALOGUE[name].files else ""
    return DataError(
        f"data set {name!r}: there is no {path_of(name)}; {fetch}{add} takes what you have, or set CODECL_DATA to the"
        " folder that has it"
    )


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


def read(name: str, path: Path | None = None) -> ImageSet:
    """The data set of this name, as its file has it; `path`: see path_of."""
    if not path_of(name, path).is_file():
        raise missing(name, path)
    try:
        return read_file(path_of(name, path))
    except DataError as error:
        raise DataError(f"data set {name!r}: {error}") from error


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


def _names(metadata: Mapping[str, str] | None) -> tuple[str, ...]:
    try:
        names = parse_json((metadata or {}).get(NAMES, "[]").encode())
    except ValueError:
        return ()
    return tuple(printable(str(name)) for name in names) if isinstance(names, list) else ()


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
