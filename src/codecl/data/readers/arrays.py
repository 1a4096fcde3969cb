"""Arrays as people keep them: an .npz or a folder of .npy files, and miniImageNet's pickles."""

import io
from typing import Any

import numpy as np

from codecl.data.readers import unpickle
from codecl.data.readers.tree import Tree
from codecl.data.store import Array, ImageSet, Split
from codecl.errors import DataError

CHANNELS = (1, 3)


def npz(tree: Tree, parts: dict[str, list[str]]) -> ImageSet:
    """`train_images`, `train_labels`, `test_images`, `test_labels`; or `x_train`, `y_train`, `x_test`, `y_test`."""

    def split(name: str) -> Split:
        images, labels = parts[f"{name} images"][0], parts[f"{name} labels"][0]
        return as_images(_npy(tree, images), tree.label(images)), as_labels(_npy(tree, labels), tree.label(labels))

    return ImageSet(*split("train"), *split("test"))


def _npy(tree: Tree, name: str) -> Array:
    data = tree.read(name)
    try:
        return np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError, MemoryError) as error:
        raise DataError(f"{tree.label(name)}: cannot be read ({error})") from error


def pickles(tree: Tree, parts: dict[str, list[str]]) -> ImageSet:
    """Dicts with `images` [n, 84, 84, 3], an array or a list of arrays, and `labels`."""

    def split(name: str) -> Split:
        what = tree.label(name)
        held = unpickle.load(tree.read(name), what)
        images, labels = (unpickle.field(held, field, what) for field in ("images", "labels"))
        return as_images(images, what), as_labels(labels, what)

    return ImageSet(*split(parts["train"][0]), *split(parts["test"][0]))


def as_images(array: Any, what: str) -> Array:
    """uint8 [n, channels, height, width]. Grey [n, h, w] and channels last [n, h, w, 1 or 3] are recognised; values
    must be whole and 0 to 255."""
    pixels = as_bytes(_array(array, what), what)
    if pixels.ndim == 3:
        return pixels[:, None]
    first, last = (pixels.ndim == 4 and pixels.shape[axis] in CHANNELS for axis in (1, 3 if pixels.ndim == 4 else -1))
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
