"""MNIST's and Fashion-MNIST's idx files, gzipped or not."""

import gzip
import struct
import zlib

import numpy as np

from codecl.data.readers.tree import Tree
from codecl.data.store import Array, ImageSet
from codecl.errors import DataError

UNSIGNED_BYTE = 8


def read(tree: Tree, parts: dict[str, list[str]]) -> ImageSet:
    """Four files: images [n, h, w] and labels [n], for training and test."""
    images = {split: _array(tree, parts[f"{split} images"][0], 3)[:, None] for split in ("train", "test")}
    labels = {split: _array(tree, parts[f"{split} labels"][0], 1).astype(np.int64) for split in ("train", "test")}
    return ImageSet(images["train"], labels["train"], images["test"], labels["test"])


def _array(tree: Tree, name: str, axes: int) -> Array:
    """The head: two zero bytes, the kind of numbers, the number of axes, then each axis' length, big-endian."""
    data, what = tree.read(name), tree.label(name)
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{what}: not a whole gzip file ({error})") from error
    if data[:4] != bytes((0, 0, UNSIGNED_BYTE, axes)) or len(data) < 4 + 4 * axes:
        raise DataError(f"{what}: not an idx file of bytes with {axes} axes")
    shape = struct.unpack(f">{axes}I", data[4 : 4 + 4 * axes])
    body = np.frombuffer(data, np.uint8, offset=4 + 4 * axes)
    if body.size != np.prod(shape, dtype=np.int64):
        raise DataError(f"{what}: {body.size:,} bytes for {list(shape)}")
    return body.reshape(shape)
