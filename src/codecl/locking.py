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
