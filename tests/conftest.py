"""Fixtures and helpers that all tests share."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels run on a CPU, slowly; read when they are first imported

settings.register_profile("codecl", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("codecl")

# Shells start what runs in the background with SIGINT ignored, and processes inherit that: Ctrl-C is tested here.
signal.signal(signal.SIGINT, signal.default_int_handler)

torch.set_num_threads(1)  # problems here are tiny: more threads only get in each other's way

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _fixed_generator():
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    """What is measured here stays here."""
    os.environ["CODECL_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def cli():
    """Runs the installed `codecl` entry point as a user would; gives the finished process."""

    def call(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("codecl")), *arguments]
        variables = {**os.environ, "COLUMNS": "140", **env}
        return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=300)

    return call
