"""The built wheel installs and works outside the checkout, with what it needs inside it."""

import json
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email.parser import Parser

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", folder, ROOT]
    subprocess.run(command, check=True, timeout=300)
    (path,) = folder.glob("codecl-*.whl")
    return path


def test_the_wheel_holds_images_notice_presets_and_licence(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        fields = Parser().parsestr(archive.read(metadata).decode())
    for needed in (
        "data/quickstart.npz",
        "data/NOTICE.md",
        "runs/presets/quickstart.yaml",
        "report/table1.csv",
        "report/assets/echarts.min.js",
        "report/assets/page.html",
        "py.typed",
    ):
        assert f"codecl/{needed}" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    requires = fields.get_all("Requires-Dist")
    assert any(line.startswith("torch>=2.8") for line in requires)
    assert not any("torchvision" in line for line in requires)
    assert fields["Requires-Python"] == ">=3.11"
    assert wheel.stat().st_size < 3_000_000


def test_the_wheel_runs_the_quickstart_outside_the_checkout(wheel, tmp_path):
    """In a virtual environment of its own that sees this one's dependencies but not this checkout."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    (site,) = home.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])  # its own .pth files stay unread
    install = [sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install", "-q", "--no-deps", wheel]
    subprocess.run(install, check=True, timeout=300)
    where = [home / "bin" / "python", "-c", "import codecl; print(codecl.__file__)"]
    assert str(site) in subprocess.run(where, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    done = subprocess.run(
        [home / "bin" / "codecl", "run", "--json", "--quiet", "--set", "train.epochs=2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    codec, dpsgd = json.loads(done.stdout)
    assert (codec["method"], dpsgd["method"]) == ("codec", "dpsgd")
    assert codec["bwt"] > dpsgd["bwt"]
    assert (tmp_path / codec["folder"] / "model" / "body.safetensors").is_file()


def test_importing_the_package_imports_nothing_heavy():
    """Names are looked up when they are used: `import codecl` costs next to nothing beside `import torch`."""
    code = "import sys, codecl; print(sorted({'torch', 'networkx', 'pydantic', 'typer', 'triton'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_library_does_not_import_triton_without_a_gpu():
    code = "import sys, codecl; codecl.fit; print('triton' in sys.modules, 'matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"
