"""The rooms of the house: who may import whom, and that nothing lies in the hall."""

import ast
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "src" / "codecl"
HALL = {"__init__", "__main__", "api", "errors", "files", "learner", "registry", "seeding"}
ROOMS = (  # each imports only what stands above it, and the hall's errors, files, registry and seeding
    "data",
    "models",
    "space",
    "exchange",
    "methods",
    "train",
    "runs",
    "peers",
    "theory",
    "plan",
    "bench",
    "report",
    "api",
    "learner",
    "cli",
)
EVERYONE = {"errors", "files", "registry", "seeding"}


def imported(text: str) -> set[str]:
    """The rooms, and modules of the hall, that a source imports, at its top or anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module == "codecl":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("codecl."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("codecl.")}
    return found - {"__version__"}


def violations(files: dict[str, str]) -> list[str]:
    """`path imports room`, for each import that goes down the list."""
    out = []
    for path, text in files.items():
        room = path.split("/")[0].removesuffix(".py")
        allowed = EVERYONE | ({*ROOMS[: ROOMS.index(room) + 1]} if room in ROOMS else set())
        out += [f"{path} imports {other}" for other in sorted(imported(text) - allowed)]
    return out


def sources() -> dict[str, str]:
    paths = [path for path in PACKAGE.rglob("*.py") if path.name not in ("__main__.py",) and path.parent != PACKAGE]
    hall = [PACKAGE / f"{name}.py" for name in HALL - {"__init__", "__main__"}]
    return {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in (*paths, *hall)}


def test_a_room_imports_only_rooms_above_it():
    assert violations(sources()) == []


def test_nothing_lies_in_the_hall():
    assert {path.stem for path in PACKAGE.glob("*.py")} == HALL
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == {*ROOMS} - {"api", "learner"}


@pytest.mark.parametrize(
    ("path", "line", "found"),
    [
        ("space/chart.py", "from codecl.methods import METHODS", ["space/chart.py imports methods"]),
        ("data/task.py", "def f():\n    from codecl import api", ["data/task.py imports api"]),
        ("errors.py", "import codecl.runs.config", ["errors.py imports runs"]),
        ("cli/run.py", "from codecl import api\nfrom codecl.report.tables import results", []),
    ],
)
def test_the_rule_fails_when_it_is_broken(path, line, found):
    assert violations({path: line}) == found


def test_tests_mirror_the_rooms():
    beside = {"laws", "golden", "parity", "faults", "browser", "gpu", "__pycache__"}
    assert {path.name for path in Path(ROOT / "tests").iterdir() if path.is_dir()} - beside <= {*ROOMS}
