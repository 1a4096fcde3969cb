"""The user's folder for things that can be made again: data sets, and what was measured on this machine."""

import os
import sys
from pathlib import Path


def folder() -> Path:
    """`$CODECL_CACHE`, or `codecl` in the system's folder for caches."""
    if os.environ.get("CODECL_CACHE"):
        return Path(os.environ["CODECL_CACHE"])
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "codecl"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "codecl"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "codecl"
