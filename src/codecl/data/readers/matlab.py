"""SVHN's cropped digits: `X` [32, 32, 3, n] and `y` [n, 1], in which label 10 is the digit 0."""

import io

import numpy as np

from codecl.data.readers.shapes import as_labels
from codecl.data.readers.tree import Tree
from codecl.data.store import ImageSet, Split
from codecl.errors import DataError


def read(tree: Tree, parts: dict[str, list[str]]) -> ImageSet:
    """Two MATLAB files."""
    return ImageSet(*_split(tree, parts["train"][0]), *_split(tree, parts["test"][0]))


def _split(tree: Tree, name: str) -> Split:
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
