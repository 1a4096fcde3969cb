"""What an archive or a file may become in memory: a hundred times its own size and some room, however it is packed."""

import io
import math
import zlib
from typing import BinaryIO

from codecl.errors import DataError

ROOM = 256 << 20  # bytes that anything may have
RATIO = 100  # of what is unpacked to what is packed: images do not shrink further
MAX_FILES = 1 << 22  # in an archive
CHUNK = 1 << 20


def most(packed: int) -> int:
    """So many bytes may come out of so many."""
    return ROOM + RATIO * packed


def unzipped(data: bytes, what: str, wbits: int = 31) -> bytes:
    """What gzip (`wbits` 31) or zlib (15) packed."""
    limit, unpacked, out = most(len(data)), 0, []
    try:
        while data:
            unpack = zlib.decompressobj(wbits)
            while data and not unpack.eof:
                out.append(unpack.decompress(data, CHUNK))
                unpacked += len(out[-1])
                data = unpack.unconsumed_tail
                if unpacked > limit:
                    raise DataError(f"{what}: unpacks to more than {limit:,} bytes, which no data set does")
            if not unpack.eof:
                raise EOFError("it ends too early")
            data = unpack.unused_data.lstrip(b"\0") if wbits == 31 else b""
    except (EOFError, zlib.error) as error:
        raise DataError(f"{what}: not a whole gzip file ({error})") from error
    return b"".join(out)


class Bounded(io.RawIOBase):
    """A file that gives no more than `limit` bytes from its start on."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self.file, self.limit = file, limit

    def read(self, size: int = -1) -> bytes:
        if size < 0 or self.file.tell() + size > self.limit:
            raise EOFError(f"it promises more than {self.limit:,} bytes, which no data set of its size has")
        return self.file.read(size)

    def seek(self, place: int, whence: int = 0) -> int:
        if whence or place > self.limit:
            raise EOFError(f"it promises more than {self.limit:,} bytes, which no data set of its size has")
        return self.file.seek(place)

    def tell(self) -> int:
        return self.file.tell()

    def close(self) -> None:
        self.file.close()
        super().close()


def check_npy(data: bytes) -> None:
    """The array that the head of an .npy file promises is there; ValueError where it is not."""
    import numpy as np

    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    head = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in head:
        raise ValueError(f"version {version[0]}.{version[1]} of .npy files is not read")
    shape, _, kind = head[version](file)
    promised = math.prod(shape) * kind.itemsize  # of objects: of their addresses, which np.load refuses
    if min(shape, default=0) < 0 or (promised > len(data) and not kind.hasobject):
        raise ValueError(f"{len(data):,} bytes for an array {list(shape)}")
