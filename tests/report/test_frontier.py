"""`codecl frontier`: which configurations are best, what tells them apart, the commands that make them again."""

import io
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from codecl.errors import ConfigError
from codecl.exchange.topology import TopologyConfig
from codecl.report import formats
from codecl.report.commands import command
from codecl.report.configurations import Configuration, finished, gather
from codecl.report.figures import Points, Series, numbers
from codecl.report.frontier import by_bytes, by_kept, choices, differing, sheet, undominated
from codecl.report.page import sections
from codecl.report.pictures import draw
from codecl.runs import grid as presets
from codecl.runs.config import MethodChoice, ModelChoice
from codecl.runs.reader import Run
from codecl.runs.schema import Metrics
from codecl.runs.writer import folder_of, labels_of
from tests.problems import write_metrics
from tests.report.test_table import lines

PRESET = "split-cifar100"


def write(out, acc=50.0, sent=10e6, kept=5, changes=None, preset=PRESET, tasks=10, **fields):
    """A run of which a task keeps so many % of the body."""
    config = presets.resolve(presets.preset(preset), changes or {})
    folder = folder_of(config, out)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(config.dump())
    alone = config.method.build().each_task_alone
    known = {} if kept is None else {"kept_by_task": [1, kept], "body": 100}
    labels = labels_of(config, tasks, alone).model_dump()
    traffic = {"train_bytes": int(sent) - 1000, "boundary_bytes": 1000}
    write_metrics(folder, traffic, **{"status": "complete", "acc": acc} | labels | known | fields)
    return folder


def own(directions, free=None, **more):
    return {"own": {"directions": directions}, "free": {"directions": free}} | more


@pytest.fixture
def swept(tmp_path):
    """Five configurations; the third is worse than the second in everything, the fourth sends what the second does."""
    for seed, acc in ((1, 49.0), (2, 51.0)):
        write(tmp_path, acc, 10e6, 5, {"seed": seed})
    write(tmp_path, 60.0, 20e6, 15, own(8))
    write(tmp_path, 59.0, 30e6, 16, own(9))
    write(tmp_path, 58.0, 20e6, 10, own(4))
    write(tmp_path, 62.0, 40e6, 15, own(8, growth={"threshold": 0.9}))
    return tmp_path


def rows(out):
    return choices(finished([out]))


costs = st.tuples(*[st.integers(0, 4).map(float)] * 3)


@given(st.lists(costs, max_size=12))
def test_what_is_best_is_not_beaten_and_what_is_not_is_beaten_by_one_that_is(found):
    def beats(one, other):
        return one != other and all(a <= b for a, b in zip(one, other, strict=True))

    best = [cost for cost, is_best in zip(found, undominated(found), strict=True) if is_best]
    assert bool(best) == bool(found)
    for cost in found:
        assert any(beats(other, cost) for other in best) != (cost in best)


def test_a_row_a_configuration_those_that_sent_least_first(swept):
    first, *others = lines(sheet(rows(swept)))
    assert first == {
        "growth.threshold": "0.97",
        "own.directions": "0",
        "seeds": "2",
        "ACC %": "50.00 ± 1.41",
        "BWT %": "-1.00",
        "cc": "2.00",
        "sent": "10 MB",
        "kept %": "5.0",
        "best": "yes",
    }
    shown = [(row["own.directions"], row["growth.threshold"], row["sent"], row["best"]) for row in others]
    assert shown[2:] == [("9", "0.97", "30 MB", ""), ("8", "0.9", "40 MB", "yes")]
    assert sorted(shown[:2]) == [("4", "0.97", "20 MB", "yes"), ("8", "0.97", "20 MB", "yes")]


def test_what_is_not_known_or_not_finished_is_never_the_best(tmp_path):
    write(tmp_path, 50.0, 10e6, 5)
    write(tmp_path, 50.0, 10e6, None, own(1))
    write(tmp_path, 99.0, 1e6, 1, own(2), status="partial")
    write(tmp_path, None, 1e6, 1, own(3))
    found = {row.fields["own.directions"]: row.best for row in rows(tmp_path)}
    assert found == {0: True, 1: False, 2: False, 3: False}
    table = {row["own.directions"]: row for row in lines(sheet(rows(tmp_path)))}
    assert (table["1"]["kept %"], table["3"]["ACC %"], table["2"]["status"]) == ("–", "–", "partial")


def test_tasks_that_are_scored_alone_keep_their_bodies(tmp_path):
    """An upper bound: its ACC takes a model a task."""
    write(tmp_path, 70.0, 10e6, 5, {"method": {"name": "stl"}})
    write(tmp_path, 50.0, 10e6, 5, {"method": {"name": "dpsgd"}})
    assert {row["method"]: (row["kept %"], row["best"]) for row in lines(sheet(rows(tmp_path)))} == {
        "stl": ("105.0", "yes"),
        "dpsgd": ("5.0", "yes"),
    }


def test_what_tells_configurations_apart(tmp_path):
    write(tmp_path / "a", changes={"agents": 4})
    write(tmp_path / "a", changes={"topology": {"name": "torus"}})
    write(tmp_path / "a", preset=f"{PRESET}-tuned")
    found = [row.fields for row in rows(tmp_path)]
    assert all(set(row) == {"preset", "agents"} for row in found), "not what presets and numbers of agents change"
    assert {row["agents"] for row in found} == {"ring 4", "ring 8", "torus 8"}
    write(tmp_path / "b", changes={"agents": 4})
    names = [row.name for row in rows(tmp_path)]
    assert len(set(names)) == 4, "the same config in another folder"
    (alone,) = rows(tmp_path / "b")
    assert (alone.fields, alone.best, alone.name) == ({}, True, "codec · ring 4")


def test_where_a_config_cannot_be_read_there_is_the_variant(swept):
    folder = write(swept, changes=own(3))
    (folder / "config.yaml").unlink()
    odd = next(row for row in rows(swept) if "own.directions" in row.fields and row.fields["own.directions"] is None)
    assert odd.fields["variant"] == folder.parent.name.rpartition("-")[2]
    assert command(odd.configuration.runs) is None


def test_benchmarks_that_do_not_compare_are_refused(swept):
    write(swept, preset="quickstart", tasks=5)
    with pytest.raises(ConfigError, match=r"RUNS: .*\(quickstart, 5 tasks; split-cifar100, 10 tasks\).* give"):
        rows(swept)


def test_it_fits_a_terminal_of_80_columns(swept):
    write(swept, 61.0, 50e6, 20, own(8, 64, seed=2))
    out = io.StringIO()
    formats.show(sheet(rows(swept)), Console(file=out, width=80))
    shown = out.getvalue()
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert all(text in shown for text in ("threshold", "directions", "50.00", "± 1.41", "15.0", "20 MB", "yes"))


def test_the_figures_have_each_configuration_and_join_the_best_of_the_two(swept):
    by_sent, kept = by_bytes(rows(swept)), by_kept(rows(swept))
    assert by_sent.joined == [(10.0, 50.0), (20.0, 60.0), (40.0, 62.0)]
    assert kept.joined == [(5.0, 50.0), (10.0, 58.0), (15.0, 62.0)]
    behind = numbers(by_sent)
    assert list(behind.columns) == ["series", "MB sent", "ACC %", "std", "best"]
    assert list(behind.rows[0]) == ["growth.threshold 0.97, own.directions 0", 10.0, 50.0, pytest.approx(2**0.5), "yes"]
    assert [row[4] for row in behind.rows].count("") == 1
    axes = draw(by_sent).axes[0]
    assert axes.get_xscale() == "log"
    assert {text.get_text() for text in axes.texts} == set("12345")
    assert [bar.get_markerfacecolor() for bar in axes.lines].count("white") == 1, "only the best are filled"


def test_numbers_of_points_on_each_other_stand_apart():
    series = [Series(str(acc), [acc], [acc]) for acc in (50.0, 50.01, 90.0)]
    first, second, _ = draw(Points("a", "A", ".", "x", "y", series, [True] * 3, [(50.0, 50.0)])).axes[0].texts
    assert first.xyann != second.xyann


def test_a_figure_leaves_out_what_has_no_place_in_it(tmp_path):
    write(tmp_path, kept=None)
    write(tmp_path, changes=own(1), status="partial")
    assert by_kept(rows(tmp_path)) is None
    assert len(by_bytes(rows(tmp_path)).series) == 1


def keys(out):
    return [section.key for section in sections(gather([out]).runs)]


def test_the_page_has_them_where_three_configurations_differ_in_a_field(swept, tmp_path_factory):
    assert {"frontier-bytes", "frontier-kept"} <= {*keys(swept)}
    plain = tmp_path_factory.mktemp("plain")
    for method in ("codec", "dpsgd", "codec-full"):
        write(plain, changes={"method": {"name": method}})
    assert not {"frontier-bytes", "frontier-kept"} & {*keys(plain)}


def of(*configs):
    return Configuration("", "", [Run(None, Metrics.model_construct(), (), config) for config in configs])


def made_again(text):
    """What `codecl run` makes of a command."""
    program, verb, preset, *words = shlex.split(text)
    assert (program, verb) == ("codecl", "run")
    pairs = list(zip(words[::2], words[1::2], strict=True))
    options = {name: value for name, value in pairs if name != "--set"}
    listed = [options.get(name) for name in ("--method", "--agents", "--topology", "--seeds")]
    return list(presets.grid(preset, *listed, [value for name, value in pairs if name == "--set"]))


changes = st.fixed_dictionaries(
    {},
    optional={
        "agents": st.sampled_from([4, 8, 16]),
        "topology": st.sampled_from([{"name": "torus"}, {"name": "erdos-renyi", "edge_probability": 1e-05}]),
        "method": st.sampled_from([{"name": "d-ewc", "penalty_step": "implicit"}, {"name": "codec-full"}]),
        "own": st.fixed_dictionaries({"share": st.floats(1e-6, 1)}),
        "free": st.fixed_dictionaries({"directions": st.integers(1, 99), "first_task": st.booleans()}),
        "growth": st.fixed_dictionaries({"images": st.sampled_from([100, [24, 100]])}),
        "head": st.sampled_from([None, "fc", "null", "a b: 'c'", "12"]),
        "dense": st.lists(st.text("ab'\" $,[:", min_size=1), max_size=2),
        "checkpoint": st.just({"every": "30s"}),
    },
)


@given(
    st.sampled_from(["quickstart", PRESET, f"{PRESET}-tuned", f"{PRESET}-own"]),
    changes,
    st.sets(st.integers(0, 9), min_size=1, max_size=2),
)
def test_the_grid_of_a_command_gives_the_configs_back(preset, changes, seeds):
    if changes.get("method", {}).get("name") == "d-ewc":  # it has no core space to choose directions by
        changes = {name: value for name, value in changes.items() if name not in ("own", "free")}
    configs = [presets.resolve(presets.preset(preset), changes | {"seed": seed}) for seed in sorted(seeds)]
    assert made_again(command(of(*configs).runs)) == configs


def test_a_command_says_only_what_the_preset_has_otherwise():
    def said(preset, **changes):
        return command(of(presets.resolve(presets.preset(preset), changes)).runs)

    assert said(PRESET) == f"codecl run {PRESET}"
    assert said(f"{PRESET}-tuned", agents=16) == f"codecl run {PRESET}-tuned --agents 16", "its lr is the preset's"
    assert said("quickstart", seed=3) == "codecl run quickstart --method codec --seeds 3", "it runs two methods"
    assert said(PRESET, own={"directions": 8}) == f"codecl run {PRESET} --set own.directions=8"


def test_what_no_command_makes(tmp_path):
    (tmp_path / "mine.py").write_text("raise SystemExit")
    fine = presets.resolve(presets.preset(PRESET), {})
    mine = f"{tmp_path / 'mine.py'}:mine"
    for change in (
        {"preset": "fit"},
        {"method": MethodChoice(name=mine)},
        {"model": ModelChoice(name=mine)},
        {"topology": TopologyConfig(name=mine, edges=((0, 1),))},
        {"data": fine.data.model_copy(update={"stream": mine})},
    ):
        assert command(of(fine.model_copy(update=change)).runs) is None, change


def test_configurations_without_configs_differ_in_labels(tmp_path):
    for method in ("codec", "dpsgd"):
        folder = write(tmp_path, changes={"method": {"name": method}})
        (folder / "config.yaml").unlink()
    configurations = [row.configuration for row in rows(tmp_path)]
    assert sorted(row["method"] for row in differing(configurations)) == ["codec", "dpsgd"]
