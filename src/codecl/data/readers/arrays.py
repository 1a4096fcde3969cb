"""Arrays by name: an .npz or a folder of .npy files, and miniImageNet's pickles."""

import io

import numpy as np

from codecl.data.readers import unpickle
from codecl.data.readers.shapes import as_images, as_labels
from codecl.data.readers.tree import Tree
from codecl.data.store import Array, ImageSet, Split
from codecl.errors import DataError


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
