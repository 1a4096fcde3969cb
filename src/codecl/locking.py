"""One process at a time writes a folder."""

import os
from pathlib import Path

from codecl.errors import ConfigError


def hold(folder: Path) -> int | None:
    """Make sure that this process alone writes the folder. The lock goes with the process, however it ends."""
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


def held(folder: Path) -> bool | None:
    """Whether a process of this machine writes the folder, without taking its lock; None where that cannot be seen."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
        inode = folder.stat().st_ino  # the device is left out: some file systems tell the kernel another than us
    except OSError:
        return None
    return any(" FLOCK " in line and f":{inode} " in line for line in lines)
