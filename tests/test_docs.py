"""What the documents say is what happens: every file in docs/extend.md runs, every command in README.md works."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

EXTEND = (ROOT / "docs" / "extend.md").read_text()
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", EXTEND, re.S))
COMMANDS = re.findall(r"^\$ (codecl .*)$", EXTEND, re.M)
TINY = ["--set", "train.epochs=1", "--set", "train.batch=50"]


def run(command, cwd):
    words = shlex.split(command)
    words[0] = str(Path(sys.executable).with_name("codecl"))
    return subprocess.run([*words, *TINY], cwd=cwd, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("extend")
    for name, text in FILES.items():
        (path / name).write_text(f"# {name}\n{text}")
    return path


def test_the_examples_are_all_there_and_short():
    assert set(FILES) == {"anchored.py", "smallworld.py", "tinynet.py", "mine.py"}
    assert all(text.count("\n") < 30 for text in FILES.values())


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_in_extend(folder, command):
    done = run(command, folder)
    assert done.returncode == 0, done.stderr
    assert "results" in done.stdout
    assert done.stderr == ""


def test_the_example_of_ones_own_data(folder):
    done = subprocess.run([sys.executable, "-W", "error", "mine.py"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[0]) > 90
