"""Versions, device and commit: what a number needs beside it."""

import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

import codecl


def environment(device: torch.device) -> dict[str, Any]:
    """Of this process, at work on this device."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "codecl": codecl.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "device": device.type,
        "device_name": name,
        "threads": torch.get_num_threads(),
    }


def _commit() -> str | None:
    """Of the checkout that the package runs from, if it does; `+changes` where files differ from it."""
    folder = Path(__file__).resolve().parent
    if not (folder.parents[2] / ".git").exists():
        return None
    try:
        head, changes = (
            subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=5, check=True)
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() + ("+changes" if changes.stdout.strip() else "")
