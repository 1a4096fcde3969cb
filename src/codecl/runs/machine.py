"""What a run uses of the machine: its device, threads, generators and exact products; and what is recorded of it."""

import math
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

import codecl
from codecl.errors import ConfigError, RunFailed
from codecl.files import code_digest
from codecl.seeding import derive
from codecl.train.execution import multiplying


@contextmanager
def seeded(seed: int, purpose: str, device: torch.device) -> Iterator[None]:
    """PyTorch's own generators set for this purpose, and put back as the caller had them."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(derive(seed, purpose))
        yield


@contextmanager
def compute_settings(device: torch.device) -> Iterator[None]:
    """No more threads than this process may use, and exact products; both put back as the caller had them. A device
    that has too little memory is an error in one line."""
    before = torch.get_num_threads()
    torch.set_num_threads(min(before, processors()))
    try:
        with multiplying("highest", device):
            yield
    except torch.OutOfMemoryError as error:
        what = ". ".join(str(error).split(". ")[:2])
        raise RunFailed(
            f"{device}: out of memory ({what}); use fewer agents there, a smaller train.batch_size or"
            " train.execution=loop, and see what else runs on it"
        ) from error
    finally:
        torch.set_num_threads(before)


def processors() -> int:
    """What the scheduler and the container's quota allow: PyTorch counts the cores of the machine."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # no quota
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
        return max(1, min(allowed, math.ceil(int(quota) / int(period))))
    return allowed


def device_of(name: str) -> torch.device:
    """auto: a GPU where there is one."""
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device: {name!r} is not one of auto, cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device: cuda was asked for but PyTorch sees no GPU; use --device auto or cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def environment(device: torch.device) -> dict[str, Any]:
    """Of this process, at work on this device."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "codecl": codecl.__version__,
        "code": code_digest(),
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
