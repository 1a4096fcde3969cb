"""Files that nobody ever sees half written, or that promise more than they should; a lock on a folder, the user's
cache folder, and a digest of the package's own files."""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from codecl.errors import ConfigError, printable

UNFINISHED = ".part"  # ends the name of a file that is being written
MAX_JSON = 64 << 20  # bytes of a file
MAX_DIGITS = 19  # of a whole number in one


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to fill, beside `path`: it takes its place when all went well, and is gone otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    try:
        unfinished.touch()
        mode = unfinished.stat().st_mode
        yield unfinished
        unfinished.chmod(mode)  # safetensors leaves a file that nobody else may read
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """All or nothing."""
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def read_bytes(path: Path, limit: int) -> bytes:
    """All of a plain file; ValueError for one of more than `limit` bytes, OSError for what is no file."""
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for, a device has no end
        raise OSError(f"{path.name} is not a plain file")
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"{path.name} has more than {limit:,} bytes")
    return data


def read_json(path: Path, limit: int = MAX_JSON) -> Any:
    """What a JSON file holds; ValueError says what is wrong with it."""
    return parse_json(read_bytes(path, limit))


def parse_json(data: bytes) -> Any:
    """Law: whole numbers are no longer than a machine's."""
    try:
        return json.loads(data, parse_int=_whole)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _whole(digits: str) -> int:
    if len(digits.lstrip("-")) > MAX_DIGITS:
        raise ValueError("a number in it is too long")
    return int(digits)


def shown(value: Any) -> Any:
    """Values of a JSON or YAML file with every text as it may be shown: without control characters."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [shown(item) for item in value]
    if isinstance(value, dict):
        return {shown(key): shown(item) for key, item in value.items()}
    return value


class RecordFile:
    """A file of lines that grows. Law: it holds whole lines, whatever fails; a line that could not be written is
    written with the next one."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
        self.length = os.lseek(self._handle, 0, os.SEEK_END)
        self._waiting = b""

    def add(self, line: str) -> None:
        self._waiting += line.encode()
        try:
            at = self.length
            while at < self.length + len(self._waiting):
                at += os.pwrite(self._handle, self._waiting[at - self.length :], at)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._handle, self.length)
            raise
        self.length, self._waiting = at, b""

    def sync(self) -> None:
        """All lines are on the disk; OSError where they are not."""
        self.add("")
        os.fsync(self._handle)

    def close(self) -> None:
        with suppress(OSError):
            self.add("")
        with suppress(OSError):
            os.close(self._handle)


def why_not(error: Exception) -> str:
    """Why something could not be written, in the system's words."""
    code = re.search(r"(?:code: |os error )(\d+)", str(error))  # of safetensors
    return getattr(error, "strerror", None) or (os.strerror(int(code[1])) if code else str(error))


def lock(folder: Path) -> int | None:
    """Make sure that this process alone writes the folder. The lock goes with the process, however it ends; closing
    the handle gives it up. None where the system has no locks."""
    try:
        import fcntl
    except ImportError:  # not on this system
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ConfigError(
            f"{folder}: another process is writing this run; wait for it or choose another --out"
        ) from None
    except OSError:  # a file system without locks
        os.close(handle)
        return None
    return handle


def is_locked(folder: Path) -> bool | None:
    """Whether a process of this machine writes the folder, without taking its lock; None where that cannot be seen."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
        inode = folder.stat().st_ino  # the device is left out: some file systems tell the kernel another than us
    except OSError:
        return None
    return any(" FLOCK " in line and f":{inode} " in line for line in lines)


def cache_folder() -> Path:
    """For what can be made again, data sets and measurements: `$CODECL_CACHE`, or the system's folder for caches."""
    if os.environ.get("CODECL_CACHE"):
        return Path(os.environ["CODECL_CACHE"])
    import pooch

    return Path(pooch.os_cache("codecl"))


def code_digest(package: Path = Path(__file__).parent) -> str:
    """Of the package's Python and YAML files: the same for a checkout, a copy of it and what pip installed."""
    files = [path for path in package.rglob("*") if path.suffix in (".py", ".yaml")]
    digest = hashlib.sha256()
    for name, path in sorted((path.relative_to(package).as_posix(), path) for path in files):
        text = path.read_bytes().replace(b"\r\n", b"\n")  # as a checkout on Windows may have them
        digest.update(b"%s\0%d\0%s" % (name.encode(), len(text), text))
    return digest.hexdigest()[:16]
