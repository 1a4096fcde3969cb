"""Is a data set what it should be: counts, shapes, labels, a class without images, and the content digest."""

import hashlib

import numpy as np

from codecl.data.catalogue import CATALOGUE, Entry, Verdict
from codecl.data.store import ImageSet, path_of, read_file
from codecl.errors import DataError


def content_digest(images: ImageSet) -> str:
    """SHA-256 over the sorted SHA-256s of each (label, image), training then test; labels as 8 little-endian bytes.

    Law: any order of the images of a split gives the same digest; any other pixel or label gives another one."""
    digest = hashlib.sha256()
    for pixels, labels in images.splits().values():
        pairs = zip(labels.astype("<i8"), pixels, strict=True)
        each = (hashlib.sha256(label.tobytes() + image.tobytes()).digest() for label, image in pairs)
        digest.update(b"".join(sorted(each)))
    return digest.hexdigest()


def judge(images: ImageSet, entry: Entry | None) -> Verdict:
    """The verdict on a data set; `entry` is None for one's own."""
    wrong = _unsound(images) or (_unlike(images, entry) if entry else "") or _classes(images, entry)
    if wrong:
        return Verdict("wrong", wrong)
    if entry is None:
        return Verdict("own", "shapes and labels are sound; a data set of your own has nothing to be compared with")
    digest = content_digest(images)
    if digest in entry.digests:
        whose = "the original's" if entry.exact else "those of the known copy"
        return Verdict("ok", f"images and labels are {whose} (content digest {digest[:16]}…)")
    if digest in entry.near_copies:
        return Verdict("near", f"not the original: {entry.near_copies[digest]}")
    if entry.exact:
        return Verdict("wrong", f"counts and shapes fit, but images or labels are not the original's ({digest[:16]}…)")
    beside = "is not that of the known copy" if entry.digests else "has nothing to be compared with"
    return Verdict("fits", f"counts, shapes and labels as published; the content digest {digest[:16]}… {beside}")


def verify(name: str) -> Verdict:
    """The verdict on the data set file of this name."""
    try:
        return judge(read_file(path_of(name)), CATALOGUE.get(name))
    except DataError as error:
        return Verdict("wrong", str(error))


def _unsound(images: ImageSet) -> str:
    """What no data set may have, in words; empty where all is well."""
    for split, (pixels, labels) in images.splits().items():
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or not pixels.size:
            return f"{split}_images are {pixels.dtype} {list(pixels.shape)}, not uint8 [n, channels, height, width]"
        if labels.dtype != np.int64 or labels.shape != pixels.shape[:1]:
            return f"{split}_labels are {labels.dtype} {list(labels.shape)}, not int64 [{len(pixels)}]"
        if labels.min() < 0:
            return f"{split}_labels go down to {labels.min()}; they should start at 0"
    train, test = images.train_images.shape[1:], images.test_images.shape[1:]
    return "" if train == test else f"training images are {shape_text(train)}, test images {shape_text(test)}"


def _unlike(images: ImageSet, entry: Entry) -> str:
    """How it differs from what is published, in words."""
    shape = images.train_images.shape[1:]
    if shape != entry.shape:
        return f"images are {shape_text(shape)}, should be {shape_text(entry.shape)}"
    counts = len(images.train_labels), len(images.test_labels)
    if counts not in entry.counts:
        return f"{counts_text(counts)} images, should be {' or '.join(map(counts_text, entry.counts))}"
    highest = max(images.train_labels.max(), images.test_labels.max())
    return f"labels go up to {highest}, should be below {entry.classes}" if highest >= entry.classes else ""


def _classes(images: ImageSet, entry: Entry | None) -> str:
    """The class that has no images, in words."""
    classes = entry.classes if entry else int(max(images.train_labels.max(), images.test_labels.max())) + 1
    for split, (_, labels) in images.splits().items():
        present = np.unique(labels)
        gaps = np.flatnonzero(present != np.arange(len(present)))
        absent = int(gaps[0]) if len(gaps) else len(present)
        if absent < classes:
            return f"class {absent} has no {'training' if split == 'train' else 'test'} images"
    return ""


def shape_text(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))


def counts_text(counts: tuple[int, int]) -> str:
    return f"{counts[0]:,} + {counts[1]:,}"
