"""Each command on the smallest thing it can do; some through the installed entry point, most in this process."""

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import codecl
from codecl.exchange.topology import TOPOLOGIES
from codecl.files import code_digest
from codecl.methods import METHODS
from codecl.runs.grid import grid as configs
from codecl.runs.grid import setting
from tests.launching import ENTRY, environment, on_a_terminal, running, wait_for
from tests.problems import write_metrics

TINY = ("--set", "train.epochs=1", "--set", "train.batch_size=50")


def failed(done, code):
    """One clear line on standard error, no traceback, the right exit code; gives the line."""
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("codecl: ")
    return line


HEAVY = {"torch", "scipy", "pooch", "PIL", "numpy", "matplotlib", "tensorboard"}


@pytest.mark.parametrize("modules", ["codecl", "codecl.cli", "codecl.runs.follow, codecl.cli.live, codecl.cli.display"])
def test_what_starts_at_once_imports_nothing_heavy(modules):
    code = f"import sys, {modules}; print({HEAVY} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "1500"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_waiting_threads_soon_sleep_unless_told_otherwise(given, expected, tmp_path):
    """PyTorch reads it when it is loaded, so the command says it before."""
    code = """
import os, sys, codecl.cli
sys.argv = ["codecl", "--version"]
try:
    codecl.cli.main()
except SystemExit:
    print(os.environ.get("GOMP_SPINCOUNT"), "torch" in sys.modules)
"""
    env = {name: value for name, value in environment().items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", code], env=env | given, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == f"{expected} False", done.stderr


def test_help(cli, tmp_path):
    done = cli("--help", cwd=tmp_path)
    assert done.returncode == 0
    for command in ("run", "presets", "show", "methods", "topologies", "models", "table", "frontier"):
        assert re.search(rf"^\s+{command}\b", done.stdout, re.M)


def test_version_and_module(cli, tmp_path):
    version = f"codecl {codecl.__version__}, code {code_digest()}"
    assert cli("--version", cwd=tmp_path).stdout.strip() == version
    done = subprocess.run([sys.executable, "-m", "codecl", "--version"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == version


def test_the_digest_of_the_code_is_that_of_its_files_wherever_they_lie(tmp_path):
    package = Path(codecl.__file__).parent
    shutil.copytree(package, copy := tmp_path / "copy", ignore=shutil.ignore_patterns("__pycache__"))
    assert code_digest(copy) == code_digest()
    (copy / "notes.txt").write_text("no code")
    preset = copy / "runs" / "presets" / "quickstart.yaml"
    preset.write_bytes(preset.read_bytes().replace(b"\n", b"\r\n"))
    assert code_digest(copy) == code_digest()
    preset.write_text(preset.read_text() + "\n")
    assert code_digest(copy) != code_digest()
    (copy / "runs" / "machine.py").rename(copy / "runs" / "machines.py")
    preset.write_bytes((package / "runs" / "presets" / "quickstart.yaml").read_bytes())
    assert code_digest(copy) != code_digest()


def test_lists(cli, tmp_path):
    assert "quickstart" in cli("presets", cwd=tmp_path).stdout
    shown = cli("methods", cwd=tmp_path).stdout
    assert all(name in shown for name in METHODS)
    shown = cli("topologies", cwd=tmp_path).stdout
    assert all(name in shown for name in TOPOLOGIES)
    assert "alexnet" in cli("models", cwd=tmp_path).stdout
    assert "check" in cli("theory", cwd=tmp_path).stdout


def test_show_is_the_resolved_config(cli, tmp_path):
    config = yaml.safe_load(cli("show", "quickstart", "--set", "train.lr=0.05", cwd=tmp_path).stdout)
    assert config["train"]["lr"] == 0.05
    assert config["method"] == {"name": "codec"}
    config = yaml.safe_load(cli("show", "--method", "d-ewc", "--set", "method.penalty=7", cwd=tmp_path).stdout)
    assert config["method"] == {"name": "d-ewc", "penalty": 7.0, "penalty_step": "clipped", "clip": 100.0}


def test_numbers_as_people_write_them():
    assert setting("train.lr=1e-3") == {"train": {"lr": 0.001}}
    assert setting("model.dropout=2E-1") == {"model": {"dropout": 0.2}}
    assert setting("growth.images=[24,100]") == {"growth": {"images": [24, 100]}}
    assert setting("method=d-ewc") == {"method": {"name": "d-ewc"}}
    assert setting("head=null") == {"head": None}


def test_in_a_grid_a_method_takes_the_options_it_has():
    settings = ["method.penalty_step=implicit", "train.lr=0.2"]
    codec, ewc = configs("quickstart", "codec,d-ewc", None, None, None, settings)
    assert codec.method.options == {}
    assert ewc.method.options["penalty_step"] == "implicit"
    assert codec.train.lr == ewc.train.lr == 0.2


@pytest.fixture(scope="module")
def grid(cli, tmp_path_factory):
    """Two methods × two seeds on three agents."""
    folder = tmp_path_factory.mktemp("grid")
    done = cli("run", "--method", "codec,dpsgd", "--agents", "3", "--seeds", "1,2", *TINY, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder, done


def test_a_grid_runs_every_combination_and_ends_with_a_table(grid):
    folder, done = grid
    runs = sorted(str(path.parent.relative_to(folder / "runs")) for path in folder.rglob("metrics.json"))
    assert [re.sub("-[0-9a-f]{6}/", "/", run) for run in runs] == [
        "quickstart-codec-ring3/seed-1",
        "quickstart-codec-ring3/seed-2",
        "quickstart-dpsgd-ring3/seed-1",
        "quickstart-dpsgd-ring3/seed-2",
    ]
    assert "[4/4] quickstart: dpsgd, 3 agents on ring, seed 2" in done.stdout
    assert re.search(r"codec +ring 3 +2 +\d+\.\d\d ± \d+\.\d\d", done.stdout)
    assert re.search("task 5/5 .* inverted mirrored digits", done.stdout)  # plain lines where there is no terminal
    assert "\x1b" not in done.stdout


def test_a_complete_run_is_shown_not_repeated(cli, grid):
    folder, _ = grid
    done = cli("run", "--method", "codec", "--agents", "3", "--seeds", "1", *TINY, cwd=folder)
    assert done.returncode == 0
    assert "complete already" in done.stdout
    assert "when learned" in done.stdout


def test_the_table_of_recorded_runs(cli, grid):
    folder, _ = grid
    done = cli("table", "runs", cwd=folder)
    assert re.search(r"codec +ring 3 +2 ", done.stdout)
    assert re.search(r"dpsgd +ring 3 +2 ", done.stdout)
    found = json.loads(cli("table", "runs", "--json", cwd=folder).stdout)
    assert {(run["method"], run["seed"]) for run in found} == {("codec", 1), ("codec", 2), ("dpsgd", 1), ("dpsgd", 2)}
    assert "no such folder" in failed(cli("table", "nowhere", cwd=folder), 3)
    (folder / "empty").mkdir()
    assert "no finished runs" in failed(cli("table", "empty", cwd=folder), 3)
    broken = folder / "broken" / "seed-1"
    broken.mkdir(parents=True)
    (broken / "metrics.json").write_text("{")
    assert "metrics.json is broken, it cannot be read as JSON" in failed(cli("table", "broken", cwd=folder), 3)


def test_json_is_all_that_is_printed(cli, tmp_path):
    done = cli("run", "--method", "stl", "--json", "--quiet", "--out", "elsewhere", *TINY, cwd=tmp_path)
    (run,) = json.loads(done.stdout)
    assert done.stderr == ""
    assert run["schema"] == 2
    assert run["status"] == "complete"
    assert run["method"] == "stl"
    assert run["folder"].startswith("elsewhere/quickstart-stl-ring4-")
    assert json.loads((tmp_path / run["folder"] / "metrics.json").read_text())["acc"] == run["acc"]
    environment = json.loads((tmp_path / run["folder"] / "environment.json").read_text())
    assert environment["codecl"] == codecl.__version__
    assert environment["code"] == code_digest()
    assert environment["device"] == "cpu"


def test_an_edge_list_from_the_command_line(cli, tmp_path):
    (tmp_path / "line.txt").write_text("0 1\n1 2\n")
    arguments = ("run", "--method", "dpsgd", "--topology", "line.txt", "--agents", "3", "--json", *TINY)
    done = cli(*arguments, cwd=tmp_path)
    (run,) = json.loads(done.stdout)
    assert run["topology"] == "line"
    (tmp_path / "line.txt").unlink()  # the links are in the recorded config
    config = yaml.safe_load((tmp_path / run["folder"] / "config.yaml").read_text())
    assert config["topology"]["edges"] == [[0, 1], [1, 0], [1, 2], [2, 1]]


def test_without_arguments_there_is_help(process, tmp_path):
    done = process(cwd=tmp_path)
    assert done.returncode == 0
    assert "Usage: codecl" in done.stdout
    assert done.stderr == ""


def test_two_processes_do_not_write_one_run(cli, tmp_path):
    """The second is refused while the first is at work; when the first is killed, the folder is free again."""
    command = ("run", "--method", "dpsgd", "--quiet", "--set", "train.epochs=50")
    with running(*command, cwd=tmp_path) as first:
        wait_for(lambda: any('"epoch"' in path.read_text() for path in tmp_path.rglob("events.jsonl")), first)
        assert "another process is writing this run" in failed(cli(*command, cwd=tmp_path), 2)
        assert first.poll() is None
    (path,) = tmp_path.rglob("events.jsonl")
    left = path.read_text()
    with running(*command, cwd=tmp_path) as second:
        wait_for(lambda: path.exists() and path.read_text() and not path.read_text().startswith(left), second)


def test_two_files_of_one_name_and_a_name_of_pythons_own(cli, tmp_path):
    for folder in ("u1", "u2"):
        (tmp_path / folder).mkdir()
    (tmp_path / "u1" / "statistics.py").write_text(
        "from torch import nn\ndef net(shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(784, classes))\n"
    )
    (tmp_path / "u2" / "statistics.py").write_text(
        "from __future__ import annotations\nfrom typing import Literal\nfrom codecl.methods import Dpsgd\n"
        "class Mine(Dpsgd):\n    kind: Literal['x', 'y'] = 'x'\n"
    )
    names = ("--method", "u2/statistics.py:Mine", "--set", "model.name=u1/statistics.py:net")
    done = cli("run", *names, *TINY, "--json", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)
    sources = yaml.safe_load((tmp_path / run["folder"] / "config.yaml").read_text())["sources"]
    assert sources["method"] != sources["model"]


def test_a_grid_with_an_unlucky_random_graph_is_refused_before_anything_runs(cli, tmp_path):
    chance = ("--topology", "erdos-renyi", "--set", "topology.edge_probability=0.4", "--agents", "5")
    done = cli("run", "--method", "dpsgd", *chance, "--seeds", "0,1,2,3,4,5", *TINY, cwd=tmp_path)
    assert "raise topology.edge_probability or change the seed" in failed(done, 2)
    assert not (tmp_path / "runs").exists()


def test_unfinished_runs_are_rows_of_their_own(cli, tmp_path):
    for seed, status, acc in ((1, "complete", 60.0), (2, "complete", 70.0), (3, "partial", 99.0)):
        folder = tmp_path / "p-codec-ring4" / f"seed-{seed}"
        labels = {"benchmark": "p", "method": "codec", "agents": 4, "topology": "ring", "seed": seed}
        write_metrics(folder, **labels, status=status, acc=acc)
    shown = cli("table", ".", cwd=tmp_path).stdout
    assert re.search(r"codec +ring 4 +2 +65\.00 ± 7\.07 .* complete", shown)
    assert re.search(r"codec +ring 4 +1 +99\.00 .* partial", shown)
    (folder / "metrics.json").write_text('{"schema": 2}')
    assert "metrics.json is broken, benchmark is not in it" in failed(cli("table", ".", cwd=tmp_path), 3)


def test_names_of_tasks_are_text_and_not_markup(cli, tmp_path):
    (tmp_path / "odd.py").write_text(
        "import torch, codecl\n"
        "def stream():\n"
        "    x, y = torch.rand(200, 1, 28, 28), torch.arange(200) % 2\n"
        "    return [codecl.Task((x, y), (x, y), 2, '[/bold] x'), codecl.Task((x, y), (x, y), 2, '[red]')]\n"
    )
    stream = ("--set", "data.stream=odd.py:stream", "--set", "train.epochs=1")
    done = cli("run", "--method", "codec", *stream, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[/bold] x") == 2
    assert done.stdout.count("[red]") == 2


def test_a_loss_that_becomes_nan_ends_the_run_and_keeps_the_record(cli, tmp_path):
    done = cli("run", "--method", "dpsgd", "--set", "train.lr=1e30", *TINY, "--quiet", cwd=tmp_path)
    line = failed(done, 1)
    assert re.search(r"task 1 \(digits\), step \d, agent \d: the loss is (nan|inf); lower train\.lr", line)
    assert "what was recorded is in runs/quickstart-dpsgd-ring4-" in line
    (path,) = tmp_path.rglob("metrics.json")
    assert json.loads(path.read_text())["status"] == "partial"


def test_an_output_folder_with_another_config_is_refused_and_left_alone(cli, tmp_path):
    arguments = ("run", "--method", "dpsgd", "--quiet", *TINY)
    assert cli(*arguments, cwd=tmp_path).returncode == 0
    (path,) = tmp_path.rglob("config.yaml")
    path.write_text(path.read_text().replace("lr: 0.1", "lr: 0.3"))
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert "holds a run with another config (train.lr: 0.35, 0.15)" in failed(cli(*arguments, cwd=tmp_path), 2)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_ctrl_c_ends_cleanly_and_says_what_was_kept(cli, tmp_path):
    command = ("run", "--method", "codec", "--set", "train.epochs=3")
    with running(*command, cwd=tmp_path, output=subprocess.PIPE) as process:
        wait_for(lambda: any(tmp_path.rglob("checkpoint/[0-9]*")), process)  # the first task is done
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    (line,) = errors.strip().splitlines()
    assert line.startswith("codecl: interrupted; events, metrics and model of the finished tasks are in runs/")
    (path,) = tmp_path.rglob("metrics.json")
    kept = json.loads(path.read_text())
    assert kept["status"] == "partial"
    assert len(kept["accuracy_matrix"]) >= 1
    assert (path.parent / "model" / "task-1.safetensors").is_file()
    assert line.endswith("the same command goes on from the last checkpoint")
    shown = cli("table", "runs", cwd=tmp_path).stdout
    assert "partial" in shown
    first = (path.parent / "events.jsonl").read_text().splitlines()[0]
    assert cli(*command, "--resume", "--quiet", cwd=tmp_path).returncode == 0
    assert json.loads(path.read_text())["status"] == "complete"
    assert (path.parent / "events.jsonl").read_text().splitlines()[0] == first  # it went on, it did not start again


def test_resume_alone_starts_nothing(cli, tmp_path):
    assert "holds no checkpoint to go on from" in failed(cli("run", "--resume", cwd=tmp_path), 2)
    assert "choose one" in failed(cli("run", "--resume", "--again", cwd=tmp_path), 2)
    assert not (tmp_path / "runs").exists()


def test_on_a_terminal_progress_is_live(tmp_path):
    """A real pseudo-terminal: task, epoch, loss, accuracy, bytes and time left, then the tables."""
    command = [ENTRY, "run", "--method", "codec", *TINY[:1], "train.epochs=20", *TINY[2:]]
    code, text = on_a_terminal(command, tmp_path, TERM="xterm-256color", COLUMNS="120", LINES="40")
    assert code == 0
    assert "\x1b[" in text
    assert re.search(
        r"task [2-5]/5 · epoch \d+/20 · loss \d\.\d+ · ACC [\d.]+ % · cc [\d.]+ · sent [\d.]+ [kM]B · [a-z]{3}", text
    )
    assert re.search(r"codec\S* \S*\d\d:\d\d", text)
    assert "when learned → at the end" in text
