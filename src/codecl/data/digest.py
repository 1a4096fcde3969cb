"""What a data set holds as one number, whatever the order of its images."""

import hashlib

from codecl.data.store import Array, ImageSet


def content(images: ImageSet) -> str:
    """SHA-256 over the sorted SHA-256s of each (label, image), training then test; labels as 8 little-endian bytes.

    Law: any order of the images of a split gives the same digest; any other pixel or label gives another one."""
    whole = hashlib.sha256()
    for pixels, labels in images.splits().values():
        for one in sorted(_each(pixels, labels)):
            whole.update(one)
    return whole.hexdigest()


def _each(pixels: Array, labels: Array) -> list[bytes]:
    marks = labels.astype("<i8")
    return [
        hashlib.sha256(mark.tobytes() + image.tobytes()).digest() for mark, image in zip(marks, pixels, strict=True)
    ]
