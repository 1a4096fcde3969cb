"""A folder, a zip or a tar as names and bytes. Nothing is ever unpacked onto the disk."""

import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from codecl.errors import DataError

IN_MEMORY = 1 << 30  # bytes of a tar that are kept
BROKEN = (OSError, EOFError, zipfile.BadZipFile, tarfile.TarError, zlib.error, RuntimeError, NotImplementedError)


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
    try:
        opener = _zip if zipfile.is_zipfile(path) else _tar if tarfile.is_tarfile(path) else None
    except BROKEN as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    if opener is None:
        yield Tree(path, (), lambda name: b"")
        return
    try:
        archive, tree = opener(path)
    except BROKEN as error:
        raise DataError(f"{path}: not a whole archive ({error})") from error
    with archive:
        yield tree


def _tree(path: Path, names: list[str], fetch: Callable[[str], bytes]) -> Tree:
    seen = {name for name in names if not any(word.startswith((".", "__MACOSX")) for word in name.split("/"))}
    return Tree(path, tuple(sorted(seen)), fetch)


def _zip(path: Path) -> tuple[zipfile.ZipFile, Tree]:
    archive = zipfile.ZipFile(path)
    names = [member.filename for member in archive.infolist() if not member.is_dir()]
    return archive, _tree(path, names, archive.read)


def _tar(path: Path) -> tuple[tarfile.TarFile, Tree]:
    archive = tarfile.open(path)  # noqa: SIM115  (its user closes it)
    members: dict[str, tarfile.TarInfo] = {}
    held: dict[str, bytes] = {}
    room = IN_MEMORY
    for member in archive:
        if not member.isfile():
            continue
        name = member.name.removeprefix("./")
        members[name] = member
        if member.size <= room:  # going back in a .tar.gz means unpacking it from its start
            held[name] = _member(archive, member)
            room -= member.size
    return archive, _tree(path, list(members), lambda name: held.get(name) or _member(archive, members[name]))


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None  # only regular files are asked for
    data = file.read()
    if len(data) != member.size:
        raise EOFError("it ends too early")
    return data
