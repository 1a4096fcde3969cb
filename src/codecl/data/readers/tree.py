"""A folder, a zip or a tar as names and bytes. Nothing is ever unpacked onto the disk."""

import bz2
import gzip
import lzma
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codecl.data.readers import limits
from codecl.data.readers.limits import Bounded
from codecl.errors import DataError

IN_MEMORY = 1 << 30  # bytes of a tar that are kept
PACKED: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
BROKEN = (
    *(OSError, EOFError, ValueError, KeyError, IndexError, OverflowError, RuntimeError, NotImplementedError),
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, struct.error),
)


@dataclass(frozen=True)
class Tree:
    """`names`: of the files, with `/`, sorted, without hidden ones and those that point outside."""

    where: Path
    names: tuple[str, ...]
    fetch: Callable[[str], bytes]

    def read(self, name: str) -> bytes:
        try:
            return self.fetch(name)
        except BROKEN as error:
            raise DataError(f"{self.label(name)}: cannot be read ({error})") from error

    def label(self, name: str) -> str:
        """How a file is called in errors."""
        return f"{self.where}: {name}"


@contextmanager
def opened(path: Path) -> Iterator[Tree]:
    """The files in a folder or an archive."""
    if path.is_dir():
        files = [Path(folder) / file for folder, _, files in os.walk(path) for file in files]
        names = [file.relative_to(path).as_posix() for file in files]
        yield _tree(path, names, lambda name: (path / name).read_bytes())
        return
    with ExitStack() as stack:
        try:
            tree = _archive(path, stack)
        except BROKEN as error:
            raise DataError(f"{path}: not a whole archive ({error})") from error
        yield tree


def _archive(path: Path, stack: ExitStack) -> Tree:
    """A zip or a tar, open as long as the stack; without files where it is neither."""
    if zipfile.is_zipfile(path):
        return _zip(path, stack.enter_context(zipfile.ZipFile(path)))
    with path.open("rb") as file:
        start = file.read(8)
    opener = next((opener for magic, opener in PACKED.items() if start.startswith(magic)), open)
    limit = limits.most(path.stat().st_size)
    try:
        archive = tarfile.TarFile(fileobj=stack.enter_context(Bounded(opener(path, "rb"), limit)))
    except tarfile.ReadError:  # no tar
        return Tree(path, (), lambda name: b"")
    return _tar(path, stack.enter_context(archive))


def _tree(path: Path, names: list[str], fetch: Callable[[str], bytes]) -> Tree:
    seen = {name for name in names if not any(word.startswith((".", "__MACOSX")) for word in name.split("/"))}
    return Tree(path, tuple(sorted(seen)), fetch)


def _zip(path: Path, archive: zipfile.ZipFile) -> Tree:
    members = [member for member in archive.infolist() if not member.is_dir()]
    _check(path, len(members), sum(member.file_size for member in members))
    return _tree(path, [member.filename for member in members], archive.read)


def _check(path: Path, count: int, unpacked: int) -> None:
    """Refuse what would fill the memory."""
    limit = limits.most(path.stat().st_size)
    if count > limits.MAX_FILES or unpacked > limit:
        what = f"{count:,} files, {unpacked:,} bytes when unpacked"
        raise DataError(f"{path}: holds {what}; the most that is taken is {limits.MAX_FILES:,} and {limit:,}")


def _tar(path: Path, archive: tarfile.TarFile) -> Tree:
    members: dict[str, tarfile.TarInfo] = {}
    held: dict[str, bytes] = {}
    room, unpacked = IN_MEMORY, 0
    for count, member in enumerate(archive, 1):
        unpacked += max(0, member.size)
        _check(path, count, unpacked)
        if not member.isfile() or member.issparse():  # a sparse one is mostly holes
            continue
        name = member.name.removeprefix("./")
        members[name] = member
        if member.size <= room:  # going back in a .tar.gz means unpacking it from its start
            held[name] = _member(archive, member)
            room -= member.size
    return _tree(path, list(members), lambda name: held.get(name) or _member(archive, members[name]))


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None  # only regular files are asked for
    data = file.read()
    if len(data) != member.size:
        raise EOFError("it ends too early")
    return data
