"""What the documents say is what happens: every file in docs/extend.md runs, every command in README.md works."""

import re
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from codecl.report.configurations import finished
from codecl.report.formats import PLAIN
from codecl.report.frontier import choices, sheet
from codecl.report.tables import results
from codecl.runs.grid import preset, resolve
from codecl.runs.reader import read_config
from tests.conftest import ROOT

EXTEND = (ROOT / "docs" / "extend.md").read_text()
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", EXTEND, re.S))
COMMANDS = re.findall(r"^\$ (codecl .*)$", EXTEND, re.M)
TINY = ["--set", "train.epochs=1", "--set", "train.batch_size=50"]


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
    assert re.fullmatch(r"(codecl: mixing: .*\n)*", done.stderr), "these runs are too short"


def test_the_example_of_ones_own_data(folder):
    done = subprocess.run([sys.executable, "-W", "error", "mine.py"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[0]) > 90


README = (ROOT / "README.md").read_text()


def said(values, form=".2f"):
    """As pages have it: mean ± standard deviation, a single value without."""
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):{form}}".replace("-", "−") + spread


def readme_commands():
    lines = re.findall(r"^\$ (codecl .*)$", README, re.M)
    return [part.strip() for line in lines for part in line.partition("#")[0].split(";")]


@pytest.mark.slow
def test_every_command_in_the_readme_works_in_order(cli, tmp_path):
    commands = readme_commands()
    assert len(commands) >= 10
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")  # as in a clone
    for command in commands:
        words = shlex.split(command)
        tiny = [*TINY, "--set", "data.tasks=2"] if words[1] == "run" else []
        if words[1] in ("run", "bench", "table"):
            words[0] = str(Path(sys.executable).with_name("codecl"))
            done = subprocess.run([*words, *tiny], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        else:
            done = cli(*words[1:], cwd=tmp_path)
        assert not done.returncode, f"{command}: {done.stderr}"
        assert done.stdout.strip()


def test_the_readme_is_short_and_its_links_lead_somewhere():
    assert README.count("\n") < 100
    for folder, page in ((ROOT, README), (ROOT / "benchmarks", (ROOT / "benchmarks" / "README.md").read_text())):
        for target in re.findall(r"\]\(([^)]+)\)", page):
            assert (folder / target.partition("#")[0]).exists(), target


def test_every_number_that_the_readme_claims_is_in_the_table_of_claims():
    claims = (ROOT / "benchmarks" / "README.md").read_text()
    numbers = re.findall(r"\d\d\.\d\d(?: ± \d\.\d\d)?", README.partition("## The paper's numbers, and past them")[2])
    ours = [number for number in numbers if number not in ("57.83 ± 0.25", "53.63 ± 0.25", "48.16 ± 0.33")]
    assert len(ours) >= 11
    for number in [*ours, "0.59 ms", "45 times"]:
        assert number in claims, number


def test_results_in_documents_are_those_of_the_recorded_runs():
    runs = finished([ROOT / "benchmarks" / "split-cifar100"])
    page = (ROOT / "benchmarks" / "split-cifar100.md").read_text()
    assert PLAIN["markdown"](results(runs, paper=True)).strip() in page
    for name in ("split-miniimagenet", "five-datasets"):
        page = (ROOT / "benchmarks" / f"{name}.md").read_text()
        assert PLAIN["markdown"](results(finished([ROOT / "benchmarks" / name]), paper=True)).strip() in page
    own = finished([ROOT / "benchmarks" / "own-directions" / "test"])
    page = (ROOT / "benchmarks" / "own-directions.md").read_text()
    assert PLAIN["markdown"](results(own, paper=True)).strip() in page
    on_the_cut = choices(finished([ROOT / "benchmarks" / "own-directions" / "cut"]))
    assert PLAIN["markdown"](sheet(on_the_cut)).strip() in page
    runs += own
    for name in ("split-cifar100", "split-cifar100-tuned", "split-cifar100-own"):
        cells = re.search(rf"^\| `{name}`.*$", README, re.M)[0].split("|")[2:5]
        for agents, cell in zip((4, 8, 16), cells, strict=True):
            scores = [run.metrics.acc for run in runs if run.folder.parent.name == f"{name}-codec-ring{agents}"]
            assert len(scores) == 3
            assert cell.strip() == said(scores)


def test_results_with_uneven_data_are_those_of_the_recorded_runs():
    page = (ROOT / "benchmarks" / "uneven.md").read_text()
    runs = finished([ROOT / "benchmarks" / "uneven" / "test"])
    rows = {(read_config(run.folder).data.partition, run.metrics.agents) for run in runs}
    assert len(rows) == 6
    for partition, agents in rows:
        here = [r for r in runs if (read_config(r.folder).data.partition, r.metrics.agents) == (partition, agents)]
        scores = [run.metrics.acc for run in here]
        line = re.search(rf"^\| `{re.escape(partition)}` \| {agents} \| {len(here)} \|.*$", page, re.M)[0]
        assert said(scores) in line


def test_results_in_a_random_order_are_those_of_the_recorded_runs():
    page = (ROOT / "benchmarks" / "split-miniimagenet.md").read_text()
    line = re.search(r"^\| \*\*a random order\*\* \|.*$", page, re.M)[0].split("|")[2:7]
    runs = finished([ROOT / "benchmarks" / "split-miniimagenet-orders" / "shuffled"])
    graphs = [("ring", 4), ("ring", 8), ("torus", 8), ("ring", 16), ("torus", 16)]
    for graph, cell in zip(graphs, line, strict=True):
        own = [r.metrics for r in runs if (r.metrics.topology, r.metrics.agents, r.metrics.method) == (*graph, "codec")]
        bwt = statistics.fmean(metrics.bwt for metrics in own)
        assert cell.strip() == f"{said([metrics.acc for metrics in own])} / {said([bwt], '+.1f')}"
    others = finished([ROOT / "benchmarks" / "split-miniimagenet-orders" / name for name in ("shuffled_2", "others")])
    line = re.search(r"^\| four others \|.*$", page, re.M)[0]
    assert len(others) == 4
    for run in others:
        assert f"{said([run.metrics.acc])} / {said([run.metrics.bwt], '+.1f')}" in line


def test_results_beside_a_server_are_those_of_the_recorded_runs():
    page = (ROOT / "benchmarks" / "server.md").read_text()
    runs = [run for run in finished([ROOT / "benchmarks" / "server"]) if not read_config(run.folder).data.validation]
    rows = {run.folder.parent for run in runs}
    assert len(rows) == 3
    for row in rows:
        own = [run.metrics for run in runs if run.folder.parent == row]
        sent = [(one.traffic.train_bytes + one.traffic.boundary_bytes) / one.agents / 1e9 for one in own]
        line = next(line for line in page.splitlines() if f"sends {statistics.fmean(sent):.1f} GB" in line)
        assert said([one.acc for one in own]) in line
        assert said([one.bwt for one in own], "+.2f") in line


def test_results_of_gpm_are_those_of_the_recorded_runs():
    page = (ROOT / "benchmarks" / "gpm.md").read_text()
    runs = [run.metrics for run in finished([ROOT / "benchmarks" / "gpm" / "split-cifar100-gpm-codec-ring1"])]
    cells = re.search(r"^\| `split-cifar100-gpm` \|.*$", page, re.M)[0].split("|")
    found = [str(len(runs)), said([run.acc for run in runs]), said([run.bwt for run in runs], "+.2f")]
    assert [cell.strip() for cell in cells[2:5]] == found


def test_the_command_for_uneven_data_is_what_was_recorded():
    """The runs were made as `split-cifar100-own` with settings, before the preset had a name."""
    for run in finished([ROOT / "benchmarks" / "uneven" / "test"]):
        recorded = read_config(run.folder)
        changes = {"agents": recorded.agents, "seed": recorded.seed, "data": {"partition": recorded.data.partition}}
        printed = resolve(preset("split-cifar100-uneven"), changes)
        apart = {"preset": "", "sources": {}}  # what data sets are here
        assert printed.model_copy(update=apart) == recorded.model_copy(update=apart)


SECTION = {False: "## Rows that lie", True: "## Growth that lies"}  # of the page, by whether floods lie


def test_results_with_liars_are_those_of_the_recorded_runs():
    page = (ROOT / "benchmarks" / "trust.md").read_text().replace("**", "")
    runs = [run for run in finished([ROOT / "benchmarks" / "trust"]) if run.metrics.status == "complete"]
    assert len(runs) == 18  # two more came to no end
    for run in runs:
        config = read_config(run.folder)
        faults, guarded = config.faults, "vote" in config.growth.robust or "clip" in config.message.robust
        said = f"{run.metrics.acc:.2f} / {run.metrics.bwt:+.2f}".replace("-", "−")
        if faults.liar is None:
            assert f"| {said} |" in page
            continue
        section = page[page.index(SECTION[bool(faults.flood)]) :]
        (cells, *_) = re.findall(rf"^\| `{faults.flood or faults.lie}` \|.*$", section, re.M)
        assert said in cells.split("|")[3 if guarded else 2], run.folder


def test_the_picture_in_the_readme_is_a_run_of_the_quickstart_and_loads_nothing():
    picture = (ROOT / "docs" / "quickstart.svg").read_text().replace("&#160;", " ")
    assert "url(http" not in picture
    for words in ("make demo", "codec, 4 agents on ring, seed 0", "inverted mirrored digits", "BWT"):
        assert words in picture


def test_the_paths_through_the_architecture_name_what_exists():
    page = (ROOT / "docs" / "architecture.md").read_text()
    steps = [line for line in page.splitlines() if re.match(r"\d+\. `", line)]
    assert len(steps) >= 25
    for step in steps:
        path, names = re.match(r"\d+\. `([\w/.]+)`: (.*)", step).groups()
        source = (ROOT / "src" / "codecl" / path).read_text()
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"^\s*(def|class) {name}\b", source, re.M), f"{path} has no {name}"
    image, coordinate, _ = page.split("## The path of ")[1:]
    assert len({*re.findall(r"^\d+\. `([\w/.]+)`", image, re.M)}) <= 11, "files"
    assert len(re.findall(r"^\d+\. ", coordinate, re.M)) <= 9, "hops"
