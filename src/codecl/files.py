"""Files that nobody ever sees half written, a lock on a folder, and the user's cache folder."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from codecl.errors import ConfigError

UNFINISHED = ".part"  # ends the name of a file that is being written


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
