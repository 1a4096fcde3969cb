"""Dockerfile and compose.yaml, without Docker: what they copy is there, the commands in them are commands of ours, and
the four services are the four agents that `codecl peer init` makes."""

import re
import shlex
import tomllib

import pytest
import typer
import yaml

from codecl.cli import app
from codecl.peers import fleet
from tests.conftest import ROOT

COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
AGENTS = [f"agent-{agent}" for agent in range(4)]


def instructions():
    """(name, words) of each instruction of the Dockerfile, lines that go on joined."""
    text = (ROOT / "Dockerfile").read_text()
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#")).replace("\\\n", " ").splitlines()
    return [(line.split()[0], line.partition(" ")[2]) for line in lines if line.strip()]


def words_of(name):
    return [words for instruction, words in instructions() if instruction == name]


def parsed(line):
    """The arguments of a command as our command line reads them, which refuses what it does not know; nothing runs."""
    command, words = typer.main.get_command(app), shlex.split(line)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    return command.make_context(command.name, words).params


def mounts(service):
    """target -> (volume, part of it)"""
    found = {}
    for entry in SERVICES[service]["volumes"]:
        if isinstance(entry, str):
            volume, target = entry.split(":")[:2]
            found[target] = (volume, "")
        else:
            found[entry["target"]] = (entry["source"], entry["volume"]["subpath"])
    return found


@pytest.fixture(scope="module")
def made(cli, tmp_path_factory):
    """What the service `init` writes to its volume."""
    folder = tmp_path_factory.mktemp("compose")
    words = shlex.split(SERVICES["init"]["command"])
    words[words.index("--out") + 1] = "volume"
    done = cli(*words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "volume"


def test_what_the_dockerfile_copies_is_there_and_not_ignored():
    patterns = (ROOT / ".dockerignore").read_text().split()
    allowed = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    assert patterns[0] == "*"
    copied = [path for words in words_of("COPY") if "--from" not in words for path in words.split()[:-1]]
    assert set(copied) == set(allowed)
    assert all((ROOT / path).exists() for path in copied)
    needed = re.findall(r"hatch_build\.py|README\.md|LICENSE", (ROOT / "pyproject.toml").read_text())
    assert set(needed) <= set(copied)


def test_the_image_is_of_a_python_that_is_tested_and_runs_codecl_as_nobody_special():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = {re.match(r"python:(3\.\d+)-slim", words)[1] for words in words_of("FROM")}
    (version,) = versions
    assert f"Programming Language :: Python :: {version}" in project["classifiers"]
    assert words_of("USER") == ["1000"]
    assert words_of("ENTRYPOINT") == ['["codecl"]']
    assert "codecl" in project["scripts"]
    (install,) = (words for words in words_of("RUN") if "pip install" in words)
    (extras,) = re.findall(r"'\.\[(.*)\]'", install)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])


def test_the_command_in_the_dockerfile_is_one():
    (line,) = re.findall(r"docker run .* codecl (agent .*)$", (ROOT / "Dockerfile").read_text(), re.M)
    assert parsed(line) == parsed(SERVICES["agent-0"]["command"])


def test_every_service_runs_a_command_of_ours_in_volumes_of_the_image():
    folders = " ".join(words_of("RUN")).split()
    for service in SERVICES.values():
        assert service["image"] == "codecl"
        assert parsed(service["command"])
    for name in SERVICES:
        for target, (volume, _) in mounts(name).items():
            assert volume in COMPOSE["volumes"]
            assert target in folders, "the image has no such folder that user 1000 may write"
    with pytest.raises(Exception, match="No such option"):
        parsed("agent /agent/agent.yaml --nowhere")


def test_each_agent_has_its_own_folder_and_no_other(made):
    assert sorted(name for name in SERVICES if name.startswith("agent")) == AGENTS
    for name in AGENTS:
        params, where = parsed(SERVICES[name]["command"]), mounts(name)
        volume, part = where["/agent"]
        assert (volume, part) == (mounts("init")["/fleet"][0], name)
        assert not [target for target, (source, _) in where.items() if source == volume and target != "/agent"]
        assert where[str(params["out"])] == ("runs", "")
        file = made / part / params["file"].relative_to("/agent")
        assert fleet.read(file).settings.agent == int(name[-1])
    assert (made / "authority" / "key.pem").is_file()  # outside what any agent sees


def test_addresses_are_those_of_the_services(made):
    known = fleet.read(made / "agent-0" / "agent.yaml").fleet
    assert [address.host for address in known.addresses] == AGENTS
    for name, address in zip(AGENTS, known.addresses, strict=True):
        assert SERVICES[name]["expose"] == [str(address.port)] == words_of("EXPOSE")
        member = fleet.read(made / name / "agent.yaml")
        assert member.listen == f"0.0.0.0:{address.port}"
        check = " ".join(SERVICES[name]["healthcheck"]["test"])
        assert f":{address.port:04X} .* 0A " in check
    assert known.run_config().agents == len(AGENTS)


def test_keys_are_not_committed():
    assert "/fleet/" in (ROOT / ".gitignore").read_text().split()
