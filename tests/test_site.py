"""The documentation site: it builds without a warning, its links lead somewhere, its commands exist, and its reference
lacks nothing of what the code has."""

import html
import re
import shlex
import subprocess
import sys
from typing import get_args

import pytest
import yaml
from typer.main import get_command

import codecl
from codecl.cli import app
from codecl.methods import METHODS
from codecl.models import MODELS
from codecl.runs.config import RunConfig, flat
from codecl.runs.grid import presets
from codecl.train.events import Event, Recorded
from tests.conftest import ROOT

PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "benchmarks").glob("*.md"))]
PAGES += [ROOT / "README.md", ROOT / "CHANGELOG.md"]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.M | re.S)
CLI = get_command(app)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built strictly: any warning, also of a link that leads nowhere, is an error."""
    out = tmp_path_factory.mktemp("site")
    strict = ["-W", "--keep-going", "-n", "-q", "-E"]
    command = [sys.executable, "-m", "sphinx", *strict, "-d", out / "trees", "-c", "docs", ".", out / "html"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return out / "html"


def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(site):
    start = (site / "index.html").read_text()
    assert (site / re.search(r"url=([^\"]+)", start)[1]).is_file()
    for name in NAMES:
        page = site / name.replace(".md", ".html")
        assert page.is_file() == (name != "README.md"), name
        if page.is_file():
            loaded = re.findall(r"<(?:script|img|link|iframe)[^>]+(?:src|href)=\"(https?:[^\"]+)\"", page.read_text())
            assert loaded == [], name


def words_of(site, page):
    """What one reads on a page of the reference, without tags."""
    text = html.unescape(re.sub(r"<[^>]+>", "", (site / "docs" / "reference" / f"{page}.html").read_text()))
    return re.sub(r"[ \n]*\n[ \n]*", "\n", text)


def section_of(words, title):
    """From a heading to the next one."""
    return words.partition(f"\n{title}¶")[2].partition("¶")[0]


def config_fields(values, path=""):
    for name, field in type(values).model_fields.items():
        value = getattr(values, name)
        if hasattr(type(value), "model_fields"):
            yield from config_fields(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", field


FIELDS = dict(config_fields(RunConfig()))
OPTIONS = {f"method.{option}" for method in METHODS.values() for option in method.model_fields}


def test_the_reference_has_every_field_of_the_config_and_says_what_it_is(site):
    shown = words_of(site, "config")
    assert len(FIELDS) > 40
    for name, field in FIELDS.items():
        assert name in shown
        assert field.description, name
        assert " ".join(field.description.replace("`", "").split()) in " ".join(shown.split()), name
    for option in OPTIONS:
        assert option in shown


def commands(command=CLI, path=("codecl",)):
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


def test_the_reference_has_every_command_and_option(site):
    shown = words_of(site, "commands")
    assert len([*commands()]) > 20
    for path, command in commands():
        section = section_of(shown, " ".join(path))
        assert section, path
        for parameter in command.params:
            assert all(option in section for option in parameter.opts if option.startswith("-")), (path, parameter.name)


def test_the_reference_has_every_event_preset_and_exported_name(site):
    shown = words_of(site, "events")
    for kind in get_args(Recorded):
        section = section_of(shown, kind.model_fields["kind"].default)
        for name, field in kind.model_fields.items():
            assert field.exclude or name in Event.model_fields or name in section, (kind, name)
    listed = words_of(site, "presets")
    assert all(name in listed for name in presets())
    api = (site / "docs" / "reference" / "api.html").read_text()
    for name in codecl.__all__:
        if isinstance(getattr(codecl, name), dict):
            assert all(f">{entry}<" in api for entry in getattr(codecl, name)), name
        else:
            assert f'id="codecl.{name}"' in api, name


def prose(text):
    """A page without its code."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))


def slugs(text):
    """The anchors that GitHub gives to headings."""
    titles = re.findall(r"^#{1,6} (.+)$", FENCE.sub("", text), re.M)
    plain = (re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", title).replace("`", "") for title in titles)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in plain}


@pytest.mark.parametrize("name", NAMES)
def test_links_and_anchors_lead_somewhere(name):
    page = ROOT / name
    text = page.read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
        if re.match(r"\w+:", target):
            assert re.fullmatch(r"https?://[\w.-]+\.[a-z]+(/\S*)?", target), target
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        assert other.exists(), target
        assert other.is_relative_to(ROOT), target
        if anchor:
            assert anchor in slugs(other.read_text()), target


def test_every_decision_is_listed():
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"\]\(([^)]+)\)", (folder / "README.md").read_text())
    assert sorted(listed) == sorted(page.name for page in folder.glob("0*.md"))


def console_commands(text):
    """Every `codecl …` in console blocks, also behind a launcher; a list of words each."""
    blocks = [body for _, language, body in FENCE.findall(text) if language == "console"]
    for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
        for part in re.sub(r"(^|\s)#.*", "", line).split(";"):
            words = shlex.split(part.strip().removeprefix("$ "))
            starts = words[:1] in (["codecl"], ["torchrun"]) or (words and "=" in words[0])
            if starts and "codecl" in words:
                yield [word for word in words[words.index("codecl") + 1 :] if word != "…"]


COMMANDS = [
    (name, words) for name, page in zip(NAMES, PAGES, strict=True) for words in console_commands(page.read_text())
]


def test_there_are_commands_to_look_at():
    assert len(COMMANDS) > 60
    assert {"docs/start.md", "docs/peers.md", "docs/cluster.md", "README.md"} <= {name for name, _ in COMMANDS}


@pytest.mark.parametrize(("name", "words"), COMMANDS, ids=lambda value: value if isinstance(value, str) else None)
def test_every_command_in_the_documents_exists_with_its_options(name, words):
    command, path = CLI, ["codecl"]
    while hasattr(command, "commands"):
        assert words, f"{name}: {' '.join(path)} takes a command"
        path.append(words.pop(0))
        command = command.commands[path[-1]]
    given = command.make_context(" ".join(path), words).params  # raises on what it does not know
    assert given.get("preset") is None or given["preset"] in presets()
    for setting in given.get("settings") or ():
        field = setting.partition("=")[0]
        known = field in FIELDS or field in OPTIONS or field in ("method", "model", "topology")
        known = known or field == "method.strength"  # of the method that docs/extend.md writes
        assert known or (field.startswith("model.") and model_option(field)), f"{name}: --set {setting}"


def model_option(field):
    from inspect import signature

    return any(field.removeprefix("model.") in signature(model).parameters for model in MODELS.values())


@pytest.mark.parametrize("name", NAMES)
def test_configs_in_the_documents_have_fields_that_exist(name):
    for _, language, body in FENCE.findall((ROOT / name).read_text()):
        if language == "yaml":
            assert set(flat(yaml.safe_load(body))) <= set(FIELDS), name


def test_data_of_ones_own_run(tmp_path):
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "own-data.md").read_text(), re.S)
    (tmp_path / "own.py").write_text("\n".join(examples))
    done = subprocess.run([sys.executable, "-W", "error", "own.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    scores = [float(line) for line in done.stdout.split()]
    assert len(scores) == len(examples) == 2
    assert min(scores) > 90


def test_the_model_of_ones_own_runs(tmp_path):
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "own-model.md").read_text(), re.S)
    assert len(examples) == 2
    (tmp_path / "own.py").write_text("\n".join(examples))
    done = subprocess.run([sys.executable, "-W", "error", "own.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[0]) > 90


def test_the_pretrained_start_runs(tmp_path):
    example = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "pretrained.md").read_text(), re.S)[1]
    (tmp_path / "own.py").write_text(example)
    done = subprocess.run([sys.executable, "own.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    acc, bwt, cc = map(float, done.stdout.split())
    assert acc > 90
    assert bwt > -5
    assert cc > 2
    assert "init: 29 of 31 tensors are from pretrained.safetensors; of another shape there: head.weight" in done.stderr
