"""Arrays of numbers in a MATLAB 5 file, which is how SVHN is published. Other readers of it crash on broken files."""

import math
import struct
from collections.abc import Iterator

import numpy as np

from codecl.data.readers import limits
from codecl.data.store import Array

HEAD = 128
MATRIX, COMPRESSED = 14, 15  # kinds of elements
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}


def load(data: bytes, what: str) -> dict[str, Array]:
    """The arrays of the file by name; what is no array of real numbers is left out. ValueError where it is broken."""
    order = {b"IM": "<", b"MI": ">"}.get(data[126:HEAD])
    if order is None:
        raise ValueError("its head is not that of MATLAB 5")
    found = {}
    for kind, body in _elements(data[HEAD:], order, padded=False):
        if kind == COMPRESSED:
            kind, body = next(_elements(limits.unzipped(body, what, 15), order), (0, b""))
        named = _array(body, order) if kind == MATRIX else None
        if named is not None:
            found[named[0]] = named[1]
    return found


def _elements(data: bytes, order: str, padded: bool = True) -> Iterator[tuple[int, bytes]]:
    """(kind, bytes) of one after another. A small one has its bytes in its tag."""
    at = 0
    while at + 8 <= len(data):
        kind, size = struct.unpack(f"{order}II", data[at : at + 8])
        if kind >> 16:
            kind, size = kind & 0xFFFF, kind >> 16
            yield kind, data[at + 4 : at + 4 + min(size, 4)]
            at += 8
            continue
        if size > len(data) - at - 8:
            raise ValueError(f"it promises {size:,} bytes and has {len(data) - at - 8:,}")
        yield kind, data[at + 8 : at + 8 + size]
        at += 8 + size + (-size % 8 if padded else 0)


def _array(body: bytes, order: str) -> tuple[str, Array] | None:
    """Its name and numbers: elements for flags, lengths of its axes, name, numbers, column by column."""
    parts = list(_elements(body, order))[:4]
    if len(parts) < 4 or parts[3][0] not in NUMBERS:
        return None
    _, (_, axes), (_, name), (kind, numbers) = parts
    shape = [int(length) for length in np.frombuffer(axes, f"{order}i4")]
    values = np.frombuffer(numbers, f"{order}{NUMBERS[kind]}")
    if min(shape, default=-1) < 0 or math.prod(shape) != len(values):
        raise ValueError(f"{len(values):,} numbers for an array {shape}")
    return name.decode("latin1"), values.reshape(shape, order="F")
