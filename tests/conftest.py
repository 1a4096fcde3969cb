"""Fixtures and helpers that all tests share."""

import io
import os
import shutil
import signal
import subprocess
import sys
import warnings
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import settings

from codecl.cli import main
from codecl.errors import ConfigWarning
from tests import problems

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels run on a CPU, slowly; read when they are first imported

EXAMPLES = int(os.environ.get("EXAMPLES", "25"))  # of each law; `make long` tries more
settings.register_profile("codecl", deadline=None, max_examples=EXAMPLES, derandomize=True)
settings.load_profile("codecl")

# Shells start what runs in the background with SIGINT ignored, and processes inherit that: Ctrl-C is tested here.
signal.signal(signal.SIGINT, signal.default_int_handler)

torch.set_num_threads(1)  # problems here are tiny: more threads only get in each other's way

ROOT = Path(__file__).parent.parent


LONGEST_FIRST = [  # so that no worker is left with one of them at the end
    "test_docs.py",
    "test_quickstart.py",
    "test_exchanges.py",
    "test_ranks.py",
    "test_kernels.py",
    "test_resume.py",
    "test_cli.py",
    "test_site.py",
    "test_notebooks.py",
    "test_terminals.py",
    "test_watch.py",
]


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONGEST_FIRST.index(item.path.name) if item.path.name in LONGEST_FIRST else 99)


@pytest.fixture(autouse=True)
def _fixed_generator():
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    """What is measured here stays here."""
    os.environ["CODECL_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """codec and dpsgd on a ring of 4, two seeds each. To be read only."""
    return problems.record(tmp_path_factory.mktemp("runs"), "codec,dpsgd", seeds="1,2")


@pytest.fixture
def copied(recorded, tmp_path):
    """The runs of `recorded`, to be changed."""
    return shutil.copytree(recorded, tmp_path / "runs")


Finished = subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def process():
    """Runs the installed `codecl` entry point as a user would; gives the finished process."""

    def call(*arguments: str, cwd: Path, **env: str) -> Finished:
        command = [str(Path(sys.executable).with_name("codecl")), *arguments]
        variables = {**os.environ, "COLUMNS": "140", **env}
        return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=300)

    return call


@pytest.fixture(scope="session")
def cli():
    """What `process` gives, without the seconds that a new process takes to import PyTorch: `main` in this one."""

    def call(*arguments: str, cwd: Path, **env: str) -> Finished:
        out, err, code = io.StringIO(), io.StringIO(), 0
        with ExitStack() as undo:
            undo.enter_context(mock.patch.dict(os.environ, {"COLUMNS": "140", **env}))
            undo.enter_context(mock.patch.object(sys, "argv", ["codecl", *arguments]))
            undo.enter_context(mock.patch.object(warnings, "formatwarning", warnings.formatwarning))
            undo.enter_context(warnings.catch_warnings())
            warnings.simplefilter("default")  # they are for the user to read, as in a process
            warnings.simplefilter("ignore", ConfigWarning)  # tests are full of runs that are too short
            undo.enter_context(chdir(cwd))
            undo.enter_context(redirect_stdout(out))
            undo.enter_context(redirect_stderr(err))
            try:
                main()
            except SystemExit as end:
                code = end.code
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

    return call
