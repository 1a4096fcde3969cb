"""Key files: their owner's alone from the moment they exist, and refused where others can read them."""

import os
import stat
from pathlib import Path

from codecl.errors import ConfigError
from codecl.runs import yamlfile


def write_key(path: Path, key: bytes) -> None:
    """All or nothing. Law: no file with a key ever has a mode but 0600."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def read_key(path: Path, way_out: str) -> bytes:
    """What a key file holds; ConfigError where others than its owner can read or write it."""
    key = yamlfile.read_bytes(path, way_out)
    mode = stat.S_IMODE(path.stat().st_mode)
    if os.name == "posix" and mode & 0o077:
        raise ConfigError(f"{path}: others can read this key (mode {mode:o}); chmod 600 {path}")
    return key
