"""The files of CIFAR, MNIST, Fashion-MNIST and SVHN, as their authors publish them."""

import gzip
import io
import struct
import zlib
from collections.abc import Callable

import numpy as np

from codecl.data.readers import unpickle
from codecl.data.readers.arrays import as_bytes, as_labels
from codecl.data.readers.tree import Tree
from codecl.data.store import Array, ImageSet, Split
from codecl.errors import DataError

SIDE = 32
PIXELS = 3 * SIDE * SIDE
UNSIGNED_BYTE = 8  # in the head of an idx file


def cifar_pickles(tree: Tree, parts: dict[str, list[str]]) -> ImageSet:
    """Pickled dicts with `data` [n, 3072] and `labels`, or `fine_labels`."""
    return _cifar(tree, parts, _pickled)


def cifar_records(label_bytes: int, tree: Tree, parts: dict[str, list[str]]) -> ImageSet:
    """Records of label bytes (CIFAR-100: a coarse and a fine one) and 3,072 pixels."""
    return _cifar(tree, parts, lambda tree, name: _records(tree, name, label_bytes))


def _cifar(tree: Tree, parts: dict[str, list[str]], read: Callable[[Tree, str], Split]) -> ImageSet:
    def joined(split: str) -> Split:
        images, labels = zip(*(read(tree, name) for name in parts[split]), strict=True)
        return np.concatenate(images), np.concatenate(labels)

    return ImageSet(*joined("train"), *joined("test"))


def _pickled(tree: Tree, name: str) -> Split:
    what = tree.label(name)
    held = unpickle.load(tree.read(name), what)
    fine = isinstance(held, dict) and ("fine_labels" in held or b"fine_labels" in held)
    labels = as_labels(unpickle.field(held, "fine_labels" if fine else "labels", what), what)
    data = as_bytes(np.asarray(unpickle.field(held, "data", what)), what)
    if data.shape != (len(labels), PIXELS):
        raise DataError(f"{what}: data is {list(data.shape)}, should be [{len(labels)}, {PIXELS}]")
    return data.reshape(-1, 3, SIDE, SIDE), labels


def _records(tree: Tree, name: str, marks: int) -> Split:
    data = np.frombuffer(tree.read(name), np.uint8)
    if not len(data) or len(data) % (marks + PIXELS):
        raise DataError(f"{tree.label(name)}: {len(data):,} bytes are not whole records of {marks + PIXELS:,}")
    rows = data.reshape(-1, marks + PIXELS)
    return rows[:, marks:].reshape(-1, 3, SIDE, SIDE), rows[:, marks - 1].astype(np.int64)


def idx(tree: Tree, parts: dict[str, list[str]]) -> ImageSet:
    """Four files: images [n, h, w] and labels [n], for training and test."""
    images = {split: _idx_array(tree, parts[f"{split} images"][0], 3)[:, None] for split in ("train", "test")}
    labels = {split: _idx_array(tree, parts[f"{split} labels"][0], 1).astype(np.int64) for split in ("train", "test")}
    return ImageSet(images["train"], labels["train"], images["test"], labels["test"])


def _idx_array(tree: Tree, name: str, axes: int) -> Array:
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


def svhn(tree: Tree, parts: dict[str, list[str]]) -> ImageSet:
    """Two MATLAB files with `X` [32, 32, 3, n] and `y` [n, 1], in which label 10 is the digit 0."""
    return ImageSet(*_matlab(tree, parts["train"][0]), *_matlab(tree, parts["test"][0]))


def _matlab(tree: Tree, name: str) -> Split:
    from scipy.io import loadmat

    what = tree.label(name)
    try:
        held = loadmat(io.BytesIO(tree.read(name)), variable_names=["X", "y"])
    except DataError:
        raise
    except Exception as error:  # a broken file can raise anything
        raise DataError(f"{what}: not a whole MATLAB file ({error})") from error
    if "X" not in held or "y" not in held:
        raise DataError(f"{what}: there is no X and y in it")
    images, labels = held["X"], as_labels(held["y"], what)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != len(labels):
        raise DataError(f"{what}: X is {images.dtype} {list(images.shape)}, should be uint8 [h, w, c, {len(labels)}]")
    labels[labels == 10] = 0
    return np.ascontiguousarray(images.transpose(3, 2, 0, 1)), labels
