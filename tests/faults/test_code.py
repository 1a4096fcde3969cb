"""A folder from somebody else runs no code that its config names, unless the user allows it."""

import json

import pytest
import torch
import yaml
from PIL import Image
from torch import nn

import codecl
from codecl import api
from codecl.cli.watch import go_on
from codecl.errors import ConfigError
from codecl.models import convnet
from codecl.peers import fleet
from codecl.peers.decisions import PeersConfig
from codecl.runs import code
from codecl.runs.config import parse, validate
from codecl.runs.grid import setting
from tests.problems import perceptron, recorded_run, tasks

FIELDS = {
    "method.name": "method",
    "model.name": "model",
    "topology.name": "topology",
    "data.stream": "data.stream",
    "train.loss": "train.loss",
    "train.score": "train.score",
}
EVIL = "import pathlib\npathlib.Path(MARK).write_text('ran')\ndef f(*args, **options):\n    raise SystemExit(9)\n"
FORMS = ("evil.py:f", "evil:f")  # a file, a module of a package


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """Code that leaves a mark when it is imported."""
    mark = tmp_path / "mark"
    place = tmp_path / "here"
    place.mkdir()
    (place / "evil.py").write_text(EVIL.replace("MARK", repr(str(mark))))
    monkeypatch.syspath_prepend(place)
    monkeypatch.chdir(place)
    monkeypatch.delitem(__import__("sys").modules, "evil", raising=False)
    Image.new("L", (28, 28)).save(place / "image.png")
    return mark


def rename(folder, field, name):
    """The folder's config with this name in a field."""
    path = folder / "config.yaml"
    from codecl.runs.config import merge

    path.write_text(yaml.safe_dump(merge(yaml.safe_load(path.read_text()), setting(f"{field}={json.dumps(name)}"))))


COMMANDS = (
    "predict RUN image.png",
    "extend RUN --task next",
    "table RUN",
    "frontier RUN --commands",
    "compare RUN RUN",
    "report RUN --no-figures",
    "watch RUN --once",
    "plan --like RUN",
)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("field", FIELDS)
def test_no_command_runs_code_that_a_folder_names(trap, copied, cli, field, name):
    folder = recorded_run(copied)
    rename(folder, field, name)
    for command in COMMANDS:
        done = cli(*command.replace("RUN", str(folder)).split(), cwd=trap.parent / "here")
        assert not trap.exists(), command
        refuses = command.startswith("extend") or (command.startswith("predict") and field == "model.name")
        if refuses:
            assert done.returncode == 2
            assert f"its config names code, {FIELDS[field]}: {name}, which would run here; look at it" in done.stderr
            assert len(done.stderr.splitlines()) == 1
        assert "Traceback" not in done.stderr
    assert go_on(folder) == "the command that started it goes on where it stopped"  # as `watch` says of a stopped one
    assert not trap.exists()


@pytest.mark.parametrize("field", FIELDS)
def test_no_call_runs_code_that_a_folder_names(trap, copied, field):
    folder = recorded_run(copied)
    rename(folder, field, "evil.py:f")
    calls = [
        lambda: codecl.Learner.open(folder),
        lambda: codecl.fit(perceptron(), tasks(1), after=folder, out=copied),
        lambda: codecl.Learner.open(folder, convnet((1, 28, 28), 10)),
    ]
    calls += [lambda: codecl.load(folder), lambda: codecl.load(folder, 0)] if field == "model.name" else []
    for call in calls:
        with pytest.raises(ConfigError, match="its config names code"):
            call()
    assert not trap.exists()
    codecl.load(folder, 0, convnet((1, 28, 28), 10))  # the way out
    assert not trap.exists()


@pytest.mark.parametrize("command", ["predict RUN image.png --allow-code", "extend RUN --task next --allow-code"])
def test_the_user_may_allow_it(trap, copied, cli, command):
    folder = recorded_run(copied)
    rename(folder, "model.name", "evil.py:f")
    cli(*command.replace("RUN", str(folder)).split(), cwd=trap.parent / "here")
    assert trap.exists()


NET = (
    "from torch import nn\ndef net(shape, classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, classes))\n"
)


def test_what_the_users_own_command_names_needs_no_leave(tmp_path, cli):
    (tmp_path / "mine.py").write_text(NET)
    words = "run quickstart --method codec --set train.epochs=1 --set data.tasks=1 --set model.name=mine.py:net --quiet"
    assert cli(*words.split(), cwd=tmp_path).returncode == 0
    again = cli(*words.split(), cwd=tmp_path)
    assert (again.returncode, again.stderr) == (0, "")
    (folder,) = (path.parent for path in tmp_path.rglob("metrics.json"))
    (folder / "metrics.json").unlink()
    assert cli(*words.split(), "--resume", cwd=tmp_path).returncode == 0
    Image.new("L", (28, 28)).save(tmp_path / "image.png")
    refused = cli("predict", str(folder), "image.png", cwd=tmp_path)
    assert "model: mine.py:net, which would run here" in refused.stderr
    assert cli("predict", str(folder), "image.png", "--allow-code", cwd=tmp_path).returncode == 0
    learned = cli("extend", str(folder), "--task", "next", "--allow-code", "--quiet", cwd=tmp_path)
    assert learned.returncode == 0, learned.stderr


def sum_of_squares(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)


def test_a_learner_knows_the_code_that_its_maker_gives(tmp_path):
    given = {"agents": 2, "out": tmp_path, "train": {"epochs": 1, "batch_size": 4, "lr": 0.1}, "dtype": "float64"}
    torch.manual_seed(1)
    net = perceptron()
    learner = codecl.Learner(net, loss=sum_of_squares, progress=False, **given)
    learner.learn(tasks(1)[0])
    again = codecl.Learner(net, loss=sum_of_squares, progress=False, **given)
    assert again.tasks == ["t0"]
    with pytest.raises(ConfigError, match=r"train.loss: tests.faults.test_code:sum_of_squares"):
        codecl.Learner.open(learner.folder, net)
    assert codecl.Learner.open(learner.folder, net, allow_code=True).tasks == ["t0"]


def test_a_result_gives_the_model_that_the_callers_config_names(tmp_path):
    fields = {"model": {"name": "tests.problems:pooled"}, "train": {"epochs": 1}, "data": {"tasks": 1}, "agents": 2}
    config = validate({**fields, "growth": {"images": 8}})
    result = api.run(config, out=tmp_path, device="cpu")
    assert isinstance(result.model(), nn.Module)


@pytest.mark.parametrize("field", FIELDS)
def test_an_agent_runs_no_code_that_its_fleet_names_without_leave(trap, tmp_path, cli, field):
    pytest.importorskip("grpc")
    config = validate({"preset": "fit", "agents": 2, "topology": {"name": "mine", "edges": [(0, 1), (1, 0)]}})
    files = fleet.init(config, [("127.0.0.1", 1), ("127.0.0.1", 2)], PeersConfig(), tmp_path / "fleet")
    known = yaml.safe_load((tmp_path / "fleet" / "fleet.yaml").read_text())
    rename_in = codecl.runs.config.merge(known["config"], setting(f"{field}=evil.py:f"))
    known |= {"config": rename_in, "digest": parse(rename_in).digest()}
    for path in (tmp_path / "fleet").rglob("fleet.yaml"):
        path.write_text(yaml.safe_dump(known))
    for command in (["agent", files[0]], ["peer", "learn", tmp_path / "fleet", "--task", "next"]):
        done = cli(*map(str, command), cwd=trap.parent / "here")
        assert done.returncode == 2
        assert f"its config names code, {FIELDS[field]}: evil.py:f" in done.stderr
    assert not trap.exists()


def test_all_code_of_a_config_is_named():
    """Every place of a config in which a user's own code may stand."""
    fields = {"method": "a:b", "model": "a:b", "topology": "a:b", "train": {"loss": "a:b", "score": "a:b"}}
    config = parse({**fields, "data": {"stream": "quickstart + a:b + c.py:d"}})
    assert [field for field, _ in code.named(config)] == [
        "method",
        "model",
        "topology",
        "data.stream",
        "data.stream",
        "train.loss",
        "train.score",
    ]
    assert code.names(config)[3:5] == ["a:b", "c.py:d"]
    assert code.named(validate({"preset": "fit"})) == []
