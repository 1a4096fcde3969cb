"""`codecl compare`: the statistics against their formulas, and what is said of odd pairs of runs."""

import csv
import io
import json
import math
import shutil
from statistics import fmean, stdev, variance

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats

from codecl.errors import ConfigError, DataError
from codecl.report import formats
from codecl.report.compare import about, compare, difference, plain, sheet
from codecl.report.formats import spread_of_bytes
from codecl.runs import grid as presets
from codecl.runs.config import merge
from codecl.runs.writer import folder_of, labels_of
from tests.problems import change_metrics, write_metrics

values = st.lists(st.integers(-1000, 1000).map(lambda number: number / 8), min_size=2, max_size=7)


def interval(mean, error, freedom):
    """mean ± t_freedom · error, at 95 %"""
    reach = stats.t.ppf(0.975, freedom) * error
    return pytest.approx((mean - reach, mean + reach))


@given(st.lists(st.tuples(st.integers(-1000, 1000), st.integers(-1000, 1000)), min_size=2, max_size=7))
def test_of_the_same_seeds_the_differences_are_paired(pairs):
    """d̄ ± t_{n-1} s_d / √n"""
    a, b = ([pair[side] / 8 for pair in pairs] for side in (0, 1))
    apart = [y - x for x, y in zip(a, b, strict=True)]
    assume(len(set(apart)) > 1)
    found = difference(dict(enumerate(a)), dict(enumerate(b)))
    assert found.way == "paired"
    assert found.mean == pytest.approx(fmean(apart))
    assert (found.low, found.high) == interval(fmean(apart), stdev(apart) / len(apart) ** 0.5, len(apart) - 1)


@given(values, values)
def test_of_other_seeds_the_means_are_compared(a, b):
    """b̄ − ā ± t_ν √(s_a²/n_a + s_b²/n_b), ν = (s_a²/n_a + s_b²/n_b)² / Σ (s²/n)² / (n − 1)"""
    assume(len(set(a)) > 1 or len(set(b)) > 1)
    parts = [variance(side) / len(side) for side in (a, b)]
    freedom = sum(parts) ** 2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, (a, b), strict=True))
    found = difference(dict(enumerate(a)), dict(enumerate(b, 100)))
    assert found.way == "Welch"
    assert (found.low, found.high) == interval(fmean(b) - fmean(a), sum(parts) ** 0.5, freedom)


@given(values, values)
def test_a_verdict_says_where_zero_is_and_turns_with_the_sides(a, b):
    there, back = (difference(dict(enumerate(x)), dict(enumerate(y, 100))) for x, y in ((a, b), (b, a)))
    turned = {"more": "less", "less": "more"}
    assert back.verdict == turned.get(there.verdict, there.verdict)
    if there.verdict == "more":
        assert there.low > 0
    if there.verdict == "no difference seen":
        assert there.low <= 0 <= there.high


@pytest.mark.parametrize(
    ("a", "b", "mean", "verdict"),
    [
        ({1: 2.0, 2: 3.0}, {1: 2.0, 2: 3.0}, 0, "equal"),
        ({1: 2.0, 2: 2.0}, {3: 2.0}, 0, "equal"),
        ({1: 2.0, 2: 3.0}, {1: 3.0, 2: 4.0}, 1, "more"),  # the same difference in every seed
        ({1: 2.0, 2: 2.0}, {3: 1.5, 4: 1.5}, -0.5, "less"),  # no spread at all
        ({1: 2.0, 2: 3.0}, {1: 3.0, 2: 2.0}, 0, "no difference seen"),
        ({1: 2.0}, {1: 3.0}, 1, "one seed: cannot say"),
        ({1: 2.0, 2: 2.5}, {1: 3.25}, 1, "one seed: cannot say"),
        ({}, {1: 3.0}, None, "not known"),
    ],
)
def test_verdicts(a, b, mean, verdict):
    found = difference(a, b)
    assert (found.mean, found.verdict) == (mean, verdict)


def write(out, seed=1, acc=(80.0, 70.0), changes=None, status="complete", **traffic):
    """A run folder of so many tasks, the last row of whose accuracies is given."""
    config = presets.resolve(presets.preset("quickstart"), merge(changes or {}, {"seed": seed}))
    folder = folder_of(config, out)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(config.dump())
    write_metrics(
        folder,
        traffic,
        3.0 + seed,
        **labels_of(config, len(acc), config.method.build().each_task_alone).model_dump(),
        status=status,
        acc=sum(acc) / len(acc),
        bwt=None if len(acc) == 1 else -1.0,
        accuracy_matrix=[[*acc[:done], *[None] * (len(acc) - done)] for done in range(1, len(acc) + 1)],
        consensus_error_by_task=[1e-6 * seed] * len(acc),
        kept_by_task=[40, 50],
        body=400,
    )
    return folder


def rows(found):
    return {line["metric"]: line for line in plain(found)["metrics"]}


def test_groups_of_seeds(tmp_path):
    for seed in (1, 2, 3):
        write(tmp_path / "a", seed, (80.0 + seed, 70.0))
        write(tmp_path / "b", seed, (70.0 + seed, 71.0), {"train": {"lr": 0.05}}, train_bytes=2000)
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.config == ["train.lr: 0.15, 0.05"]
    lines = rows(found)
    assert (lines["acc"]["a"], lines["acc"]["b"], lines["acc"]["difference"]) == (76.0, 71.5, -4.5)
    assert (lines["acc"]["verdict"], lines["acc"]["interval"]) == ("less", "paired")
    assert lines["accuracy_1"]["difference"] == -10
    assert lines["accuracy_2"]["verdict"] == "more"
    assert (lines["train_bytes"]["difference"], lines["train_bytes"]["verdict"]) == (1000, "more")
    assert lines["cc"]["verdict"] == "equal"
    assert lines["consensus_error"]["a"] == pytest.approx(2e-6)
    assert lines["ms_per_iteration"]["a_std"] == pytest.approx(1.0)
    assert list(lines)[:2] == ["acc", "bwt"]


def test_a_run_or_the_folder_of_a_configuration(tmp_path):
    folder = write(tmp_path / "a", 1)
    write(tmp_path / "a", 2)
    other = write(tmp_path / "b", 5, (60.0, 60.0))
    assert rows(compare(folder, other))["acc"]["verdict"] == "one seed: cannot say"
    assert len(compare(folder.parent, other).a.runs) == 2


def test_one_task_has_no_bwt(tmp_path):
    a, b = write(tmp_path / "a", 1, (80.0,)), write(tmp_path / "b", 1, (81.0,))
    found = compare(a, b)
    assert rows(found)["bwt"]["verdict"] == "not known"
    assert "BWT %" not in sheet(found).columns[0].cells


def test_what_is_not_finite_is_not_known(tmp_path):
    a, b = write(tmp_path / "a", 1, cc=math.nan), write(tmp_path / "b", 1, cc=None)
    assert rows(compare(a, b))["cc"]["verdict"] == "not known"


def test_other_numbers_of_tasks(tmp_path):
    a, b = write(tmp_path / "a", 1, (80.0, 70.0)), write(tmp_path / "b", 1, (81.0, 71.0, 60.0))
    found = compare(a, b)
    assert {key for key in rows(found) if key.startswith("acc")} == {"accuracy_1", "accuracy_2"}
    assert "train_bytes" not in rows(found)
    assert "A finished 2 tasks, B 3: " in "\n".join(about(found))


def test_a_seed_that_did_not_finish_is_named_and_left_out_of_scores_over_all_tasks(tmp_path):
    write(tmp_path / "a", 1, (80.0, 70.0))
    write(tmp_path / "a", 2, (90.0,), status="partial")
    write(tmp_path / "b", 1, (80.0, 70.0))
    write(tmp_path / "b", 2, (80.0, 70.0), status="degraded")
    found = compare(tmp_path / "a", tmp_path / "b")
    assert about(found)[0].endswith("seeds 1, 2); seed 2 is partial")
    assert about(found)[1].endswith("seed 2 is degraded")
    assert rows(found)["acc"]["a"] == 75.0
    assert rows(found)["accuracy_1"]["a"] == 85.0


def test_the_same_folder_twice(tmp_path):
    folder = write(tmp_path, 1)
    found = compare(folder, tmp_path / "." / folder.relative_to(tmp_path))
    assert {line["verdict"] for line in rows(found).values()} == {"equal"}
    assert "A and B are the same folder" in about(found)
    assert "configs are the same" in about(found)


def test_of_tasks_that_stand_alone_each_own_model_counts(tmp_path):
    folder = write(tmp_path / "a", 1, (80.0, 70.0), {"method": {"name": "stl"}})
    change_metrics(folder, accuracy_matrix=[[80.0, None], [10.0, 70.0]])
    assert rows(compare(folder, write(tmp_path / "b", 1)))["accuracy_1"]["a"] == 80.0


def test_fleets_are_runs(tmp_path):
    whole = write(tmp_path / "a", 1)
    seed = tmp_path / "b" / whole.parent.name / "seed-1"
    for agent in range(2):
        shutil.copytree(whole, seed / f"agent-{agent}")
        change_metrics(seed / f"agent-{agent}", agent=agent, exchange="peers")
    found = compare(whole, seed)
    assert found.config == ["exchange: simulated, peers"]
    assert rows(found)["train_bytes"]["b"] == 2000


def test_what_cannot_be_compared(tmp_path):
    folder = write(tmp_path / "a", 1)
    write(tmp_path / "a", 1, changes={"train": {"epochs": 3}})
    with pytest.raises(ConfigError, match=r"A: .* holds 2 configurations .*quickstart-codec-ring4.*give one of them"):
        compare(tmp_path / "a", folder)
    shutil.copytree(folder, tmp_path / "c" / "x" / "seed-1")
    shutil.copytree(folder, tmp_path / "c" / "y" / "seed-1")
    with pytest.raises(ConfigError, match="B: seed 1 is there twice"):
        compare(folder, tmp_path / "c")
    with pytest.raises(DataError, match="no such folder"):
        compare(folder, tmp_path / "nowhere")
    (folder / "config.yaml").write_text("agents: many")
    with pytest.raises(DataError, match=r"config\.yaml is broken"):
        compare(folder, tmp_path / "a")


def test_the_command(cli, tmp_path):
    for seed in (1, 2):
        write(tmp_path / "a", seed, (80.0 + seed, 70.0))
        write(tmp_path / "b", seed, (70.0 - seed, 71.0), {"agents": 3})
    done = cli("compare", "a", "b", cwd=tmp_path, PYTHONWARNINGS="error")
    assert done.returncode == 0, done.stderr
    assert "configs differ in agents: 4, 3" in done.stdout
    assert "ACC %" in done.stdout
    text = cli("compare", "a", "b", "--format", "csv", cwd=tmp_path).stdout
    found = {line["metric"]: line for line in csv.DictReader(text.splitlines())}
    assert float(found["acc"]["difference"]) == pytest.approx(-6.0)
    shown = cli("compare", "a", "b", "--format", "markdown", cwd=tmp_path).stdout
    assert "| ACC % | 75.75 ± 0.35 | 69.75 ± 0.35 | -6.00 ± 6.35 | no difference seen |" in shown
    assert shown.startswith("- A: a (quickstart: codec, 4 agents on ring, seeds 1, 2)\n")
    whole = json.loads(cli("compare", "a", "b", "--json", cwd=tmp_path).stdout)
    assert whole["a"]["status_by_seed"] == {"1": "complete", "2": "complete"}
    done = cli("compare", "a", "b", "--format", "pdf", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        "codecl: --format: 'pdf' is not one of text, markdown, latex, csv, json\n",
    )
    assert cli("compare", "a", "nowhere", cwd=tmp_path).returncode == 3


@pytest.mark.parametrize(
    ("count", "spread", "text"),
    [
        (0, None, "0 B"),
        (999.6, 0, "1.00 ± 0.00 kB"),
        (842e6, 24.7e6, "842 ± 24.7 MB"),
        (-1.231e9, None, "-1.23 GB"),
        (5e6, 2e9, "0.01 ± 2.00 GB"),
        (3e18, None, "3000000 TB"),
    ],
)
def test_bytes_and_their_spread(count, spread, text):
    assert spread_of_bytes(count, spread) == text


def test_a_comparison_fits_a_terminal(tmp_path):
    for seed in (1, 2):
        write(tmp_path / "a", seed, (90.0 + seed, 70.0), train_bytes=842e6 + seed * 1e7, boundary_bytes=27.6e6 + seed)
        write(tmp_path / "b", seed, (50.0 - 9 * seed, 71.0), train_bytes=1.23e9, boundary_bytes=34e6)
    made = sheet(compare(tmp_path / "a", tmp_path / "b"))
    console = Console(width=80, record=True, file=io.StringIO())
    formats.show(made, console)
    assert "…" not in console.export_text()
