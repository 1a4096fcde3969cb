"""The notebooks run from top to bottom, with settings that take seconds, and are stored without outputs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TINY = {"quickstart": {"EPOCHS": 2}, "own_model": {"EPOCHS": 2, "SIGNALS": 120}}
SHOWN = {"quickstart": r"codec: cc 1\.\d\d, recorded in runs/", "own_model": r"the same from runs/"}
PICTURES = {"quickstart": 3, "own_model": 2}


def tiny(notebook, values):
    """The notebook with these values in its cell of parameters."""
    (cell,) = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
    for name, value in values.items():
        cell.source, changed = re.subn(rf"^{name} = \d+", f"{name} = {value}", cell.source, flags=re.M)
        assert changed == 1, name
    return notebook


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs(path, tmp_path):
    notebook = tiny(nbformat.read(path, as_version=4), TINY[path.stem])
    copy = tmp_path / path.name
    nbformat.write(notebook, copy)
    command = [Path(sys.executable).with_name("jupyter-execute"), "--inplace", copy]
    env = {**os.environ, "IPYTHONDIR": str(tmp_path / "ipython"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    notebook = nbformat.read(copy, as_version=4)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == PICTURES[path.stem]
    text = "".join(output.text for output in outputs if output.output_type == "stream")
    assert re.search(SHOWN[path.stem], text), text


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_is_stored_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        for target in re.findall(r"\]\(([^)]+)\)", cell.source) if cell.cell_type == "markdown" else ():
            assert (path.parent / target).exists(), target
