"""What is published holds what it needs: the source archive, the wheel made from it, and their metadata. The wheel
installs and works outside the checkout."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

import codecl
from codecl.files import code_digest
from tests.conftest import ROOT

pytestmark = pytest.mark.slow

BEHIND = {".ci", ".gitignore"}  # what serves the checkout alone


class Built(NamedTuple):
    archive: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """As a release is made: the archive from the checkout, the wheel from the archive."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=300)
    (archive,) = folder.glob("codecl-*.tar.gz")
    wheel = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", folder, archive]
    subprocess.run(wheel, check=True, timeout=300)
    (path,) = folder.glob("codecl-*.whl")
    return Built(archive, path)


@pytest.fixture(scope="module")
def fields(built):
    with zipfile.ZipFile(built.wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(metadata).decode())


def test_the_wheel_holds_every_file_of_the_package(built):
    files = (path for path in (ROOT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    package = {str(path.relative_to(ROOT / "src")) for path in files}
    with zipfile.ZipFile(built.wheel) as archive:
        names = set(archive.namelist())
    assert {name for name in names if ".dist-info/" not in name} == package
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
    assert built.wheel.stat().st_size < 3_000_000


def test_the_archive_holds_every_file_of_the_checkout(built):
    """So its tests can be run from it."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a checkout")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    tracked = {name for name in listed if name and (ROOT / name).is_file() and name.split("/")[0] not in BEHIND}
    with tarfile.open(built.archive) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    assert tracked <= names
    assert built.archive.stat().st_size < 5_000_000


def test_the_index_would_take_both(built):
    check = [sys.executable, "-m", "twine", "--no-color", "check", "--strict", *built]
    done = subprocess.run(check, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


def test_the_metadata_is_complete(fields):
    requires = fields.get_all("Requires-Dist")
    assert any(line.startswith("torch>=2.8") for line in requires)
    assert not any("torchvision" in line for line in requires)
    assert fields["Requires-Python"] == ">=3.11"
    assert fields["License-Expression"] == "MIT"
    urls = dict(line.split(", ") for line in fields.get_all("Project-URL"))
    assert set(urls) == {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    classifiers = "\n".join(fields.get_all("Classifier"))
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    tested = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert re.findall(r"Python :: (3\.\d+)", classifiers) == tested == ["3.11", "3.12", "3.13", "3.14"]


def test_links_in_the_description_lead_to_the_repository(fields):
    """On the package's page there is nothing beside the text that a relative link could name."""
    text, readme = fields.get_payload(), (ROOT / "README.md").read_text()
    relative = re.findall(r"\]\(((?!https?:|#)[^)]+)\)", readme)
    assert relative
    source = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    for target in relative:
        assert f"]({target})" not in text
        assert re.search(rf"\]\({re.escape(source)}/(blob|raw)/main/{re.escape(target)}\)", text)
    assert re.findall(r"```.*?```", text, re.S) == re.findall(r"```.*?```", readme, re.S)


def test_every_place_names_this_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == codecl.__version__
    assert re.search(
        rf"^## \[(Unreleased|{re.escape(codecl.__version__)})\]", (ROOT / "CHANGELOG.md").read_text(), re.M
    )


def test_the_address_stands_in_one_place():
    """Whoever publishes codecl changes the lines of pyproject.toml and nothing else."""
    source = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    owner = source.removeprefix("https://").removesuffix("/codecl")
    pages = [*ROOT.glob("*.md"), *ROOT.glob("*.cff"), *(ROOT / ".github").rglob("*.*"), *(ROOT / "docs").rglob("*.md")]
    assert [str(page) for page in pages if owner in page.read_text()] == []


def test_the_wheel_runs_the_quickstart_outside_the_checkout(built, tmp_path):
    """In a virtual environment of its own that sees this one's dependencies but not this checkout."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    (site,) = home.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])  # its own .pth files stay unread
    pip = [sys.executable, "-m", "pip", "--python", home / "bin" / "python"]
    subprocess.run([*pip, "install", "-q", "--no-deps", built.wheel], check=True, timeout=300)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(program, *arguments):
        command = [home / "bin" / program, *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert str(site) in run("python", "-c", "import codecl; print(codecl.__file__)")
    codec, dpsgd = json.loads(run("codecl", "run", "--json", "--quiet", "--set", "train.epochs=2"))
    assert (codec["method"], dpsgd["method"]) == ("codec", "dpsgd")
    assert codec["bwt"] > dpsgd["bwt"]
    assert (tmp_path / codec["folder"] / "model" / "body.safetensors").is_file()
    environment = json.loads((tmp_path / codec["folder"] / "environment.json").read_text())
    assert (environment["commit"], environment["code"]) == (None, code_digest())


def test_importing_the_package_imports_nothing_heavy():
    """Names are looked up when they are used: `import codecl` costs next to nothing beside `import torch`."""
    code = "import sys, codecl; print(sorted({'torch', 'networkx', 'pydantic', 'typer', 'triton'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_library_does_not_import_triton_without_a_gpu():
    code = "import sys, codecl; codecl.fit; print('triton' in sys.modules, 'matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"
