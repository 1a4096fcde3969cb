"""CIFAR-10 and CIFAR-100: the python pickles and the binary records."""

from collections.abc import Callable

import numpy as np

from codecl.data.readers import unpickle
from codecl.data.readers.shapes import as_bytes, as_labels
from codecl.data.readers.tree import Tree
from codecl.data.store import ImageSet, Split
from codecl.errors import DataError

SIDE = 32
PIXELS = 3 * SIDE * SIDE


def python(tree: Tree, parts: dict[str, list[str]]) -> ImageSet:
    """Pickled dicts with `data` [n, 3072] and `labels`, or `fine_labels`."""
    return _both(tree, parts, _pickled)


def binary10(tree: Tree, parts: dict[str, list[str]]) -> ImageSet:
    """Records of one label byte and 3,072 pixels."""
    return _both(tree, parts, lambda tree, name: _records(tree, name, 1))


def binary100(tree: Tree, parts: dict[str, list[str]]) -> ImageSet:
    """Records of a coarse and a fine label byte and 3,072 pixels."""
    return _both(tree, parts, lambda tree, name: _records(tree, name, 2))


def _both(tree: Tree, parts: dict[str, list[str]], read: Callable[[Tree, str], Split]) -> ImageSet:
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
