"""What CONTRIBUTING.md and its neighbours say is so."""

import re
import shlex

import pytest
import yaml

from tests.conftest import ROOT

PAGES = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
TARGETS = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M)


def test_the_method_that_contributing_shows_runs(cli, tmp_path):
    ((name, text),) = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", CONTRIBUTING, re.S)
    assert text.count("\n") < 30
    (tmp_path / name).write_text(text)
    (command,) = re.findall(r"^\$ codecl (.*)$", CONTRIBUTING, re.M)
    tiny = ["--set", "train.epochs=1", "--set", "train.batch_size=50", "--set", "data.tasks=2"]
    done = cli(*shlex.split(command), *tiny, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "signed" in done.stdout.lower()


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", (ROOT / page).read_text()):
        assert target.startswith("https://") or (ROOT / target.partition("#")[0]).exists(), target


def test_targets_and_folders_that_contributing_names_are_there():
    named = re.findall(r"(?:`|\$ )make ([a-z]+)", CONTRIBUTING)
    assert {"test", "quick", "lint", "long"} <= set(named) <= set(TARGETS)
    for path in re.findall(r"`((?:src|tests|benchmarks|docs)(?:/[\w./]+)?)`", CONTRIBUTING):
        assert (ROOT / path).exists(), path


def test_the_workflow_runs_what_make_has():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    commands = [step["run"] for step in workflow["jobs"]["test"]["steps"] if "run" in step]
    made = [command.removeprefix("make ") for command in commands if command.startswith("make ")]
    assert made == ["test"]
    assert set(made) <= set(TARGETS)


@pytest.mark.parametrize("name", ["bug", "question"])
def test_forms_for_issues_ask_for_something(name):
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
    assert form["name"]
    assert form["description"]
    assert any(field.get("validations", {}).get("required") for field in form["body"])


def test_the_changelog_has_its_usual_form():
    """Keep a Changelog: versions, newest first, each with some of six kinds of change, and no kind twice."""
    text = (ROOT / "CHANGELOG.md").read_text()
    heads = re.findall(r"^## (.*)$", text, re.M)
    assert heads[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", head) for head in heads[1:])
    for section in re.split(r"^## .*$", text, flags=re.M)[1:]:
        kinds = re.findall(r"^### (.*)$", section, re.M)
        assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
        assert len(kinds) == len(set(kinds))
