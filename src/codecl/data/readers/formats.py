"""Readers of one split, training or test: its files in a tree -> images and labels.

CIFAR, MNIST, Fashion-MNIST and SVHN as their authors publish them, miniImageNet's pickles, and arrays as people keep
them: an .npz or a folder of .npy files."""

import io
import math
import struct
from typing import Any

import numpy as np

from codecl.data.readers import limits, matlab, unpickle
from codecl.data.readers.tree import Tree
from codecl.data.store import Array, Split
from codecl.errors import DataError

CHANNELS = (1, 3)
SIDE = 32
PIXELS = 3 * SIDE * SIDE
UNSIGNED_BYTE = 8  # in the head of an idx file


def cifar_pickles(tree: Tree, *names: str) -> Split:
    """Pickled dicts with `data` [n, 3072] and `labels`, or `fine_labels`."""
    return _joined([_cifar_pickle(tree, name) for name in names])


def cifar_records(label_bytes: int, tree: Tree, *names: str) -> Split:
    """Records of label bytes (CIFAR-100: a coarse and a fine one) and 3,072 pixels."""
    return _joined([_cifar_record(tree, name, label_bytes) for name in names])


def _joined(splits: list[Split]) -> Split:
    images, labels = zip(*splits, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def _cifar_pickle(tree: Tree, name: str) -> Split:
    what = tree.label(name)
    held = unpickle.load(tree.read(name), what)
    fine = isinstance(held, dict) and ("fine_labels" in held or b"fine_labels" in held)
    labels = as_labels(unpickle.field(held, "fine_labels" if fine else "labels", what), what)
    data = as_bytes(np.asarray(unpickle.field(held, "data", what)), what)
    if data.shape != (len(labels), PIXELS):
        raise DataError(f"{what}: data is {list(data.shape)}, should be [{len(labels)}, {PIXELS}]")
    return data.reshape(-1, 3, SIDE, SIDE), labels


def _cifar_record(tree: Tree, name: str, marks: int) -> Split:
    data = np.frombuffer(tree.read(name), np.uint8)
    if not len(data) or len(data) % (marks + PIXELS):
        raise DataError(f"{tree.label(name)}: {len(data):,} bytes are not whole records of {marks + PIXELS:,}")
    rows = data.reshape(-1, marks + PIXELS)
    return rows[:, marks:].reshape(-1, 3, SIDE, SIDE), rows[:, marks - 1].astype(np.int64)


def idx(tree: Tree, images: str, labels: str) -> Split:
    """Images [n, h, w] and labels [n]."""
    return _idx_array(tree, images, 3)[:, None], _idx_array(tree, labels, 1).astype(np.int64)


def _idx_array(tree: Tree, name: str, axes: int) -> Array:
    """The head: two zero bytes, the kind of numbers, the number of axes, then each axis' length, big-endian."""
    data, what = tree.read(name), tree.label(name)
    if data[:2] == b"\x1f\x8b":
        data = limits.unzipped(data, what)
    if data[:4] != bytes((0, 0, UNSIGNED_BYTE, axes)) or len(data) < 4 + 4 * axes:
        raise DataError(f"{what}: not an idx file of bytes with {axes} axes")
    shape = struct.unpack(f">{axes}I", data[4 : 4 + 4 * axes])
    body = np.frombuffer(data, np.uint8, offset=4 + 4 * axes)
    if body.size != math.prod(shape):
        raise DataError(f"{what}: {body.size:,} bytes for {list(shape)}")
    return body.reshape(shape)


def svhn(tree: Tree, name: str) -> Split:
    """A MATLAB file with `X` [32, 32, 3, n] and `y` [n, 1], in which label 10 is the digit 0."""
    what = tree.label(name)
    try:
        held = matlab.load(tree.read(name), what)
    except ValueError as error:
        raise DataError(f"{what}: not a whole MATLAB file ({error})") from error
    if "X" not in held or "y" not in held:
        raise DataError(f"{what}: there is no X and y in it")
    images, labels = held["X"], as_labels(held["y"], what)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != len(labels):
        raise DataError(f"{what}: X is {images.dtype} {list(images.shape)}, should be uint8 [h, w, c, {len(labels)}]")
    labels[labels == 10] = 0
    return np.ascontiguousarray(images.transpose(3, 2, 0, 1)), labels


def npy(tree: Tree, images: str, labels: str) -> Split:
    """Arrays of images and of labels."""
    return as_images(_npy(tree, images), tree.label(images)), as_labels(_npy(tree, labels), tree.label(labels))


def _npy(tree: Tree, name: str) -> Array:
    data = tree.read(name)
    try:
        limits.check_npy(data)
        return np.load(io.BytesIO(data), allow_pickle=False)
    except Exception as error:  # a broken head can raise anything
        raise DataError(f"{tree.label(name)}: cannot be read ({error})") from error


def pickles(tree: Tree, name: str) -> Split:
    """A dict with `images` [n, 84, 84, 3], an array or a list of arrays, and `labels`."""
    what = tree.label(name)
    held = unpickle.load(tree.read(name), what)
    images, labels = (unpickle.field(held, field, what) for field in ("images", "labels"))
    return as_images(images, what), as_labels(labels, what)


def as_images(array: Any, what: str) -> Array:
    """uint8 [n, channels, height, width]. Grey [n, h, w] and channels last [n, h, w, 1 or 3] are recognised; values
    must be whole and 0 to 255."""
    pixels = as_bytes(_array(array, what), what)
    if pixels.ndim == 3:
        return pixels[:, None]
    first, last = (pixels.ndim == 4 and pixels.shape[axis] in CHANNELS for axis in (1, -1))
    if first == last:
        raise DataError(f"{what}: images are {list(pixels.shape)}; [n, h, w], [n, c, h, w] or [n, h, w, c] is taken")
    return pixels if first else np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))


def as_bytes(array: Array, what: str) -> Array:
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind not in "iuf" or not array.size:
        raise DataError(f"{what}: images are {array.dtype} {list(array.shape)}; whole numbers from 0 to 255 are taken")
    low, high = array.min(), array.max()
    if not (low >= 0 and high <= 255 and (array.dtype.kind != "f" or bool((array == np.floor(array)).all()))):
        raise DataError(
            f"{what}: images go from {low:g} to {high:g} in {array.dtype}; whole numbers from 0 to 255 are taken"
        )
    return array.astype(np.uint8)


def as_labels(array: Any, what: str) -> Array:
    """int64 [n], from whole numbers [n] or [n, 1]."""
    labels = _array(array, what)
    if labels.dtype.kind not in "iu" or labels.ndim not in (1, 2) or labels.size != len(labels):
        raise DataError(f"{what}: labels are {labels.dtype} {list(labels.shape)}; n whole numbers are taken")
    return labels.reshape(-1).astype(np.int64)


def _array(array: Any, what: str) -> Array:
    """An array, also from a list of equal ones."""
    try:
        return np.asarray(array)
    except ValueError as error:  # of differing shapes
        raise DataError(f"{what}: images of differing shapes ({error})") from error
