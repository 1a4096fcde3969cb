"""Each section from small real runs: what it shows is what was recorded, and there is none with nothing to show."""

import json
import math
import shutil
from statistics import fmean

import numpy as np
import pytest

from codecl.report.configurations import gather
from codecl.report.figures import Bars, Lines, Series, epochs, numbers, sending
from codecl.report.page import sections
from codecl.train.events import EpochEnded, Flooded, Grown
from tests.problems import event_lines, record, recorded_run


def made(*paths):
    return {section.key: section.figures for section in sections(gather(paths).runs)}


@pytest.fixture(scope="module")
def shown(recorded):
    return made(recorded)


@pytest.fixture(scope="module")
def runs(recorded):
    """By method, the runs of both seeds."""
    found = gather([recorded]).runs
    return {method: [run for run in found if run.metrics.method == method] for method in ("codec", "dpsgd")}


def mean(runs, value):
    return pytest.approx(fmean(value(run) for run in runs))


BOTH = ["codec · ring 4", "dpsgd · ring 4"]


def test_all_sections_in_their_order(shown):
    first = ["forgetting", "mean", "matrix", "compression", "consensus", "loss", "free", "network", "bytes", "time"]
    assert list(shown) == [*first, "mu"]
    for figures in shown.values():
        for name, figure in figures.items():
            assert numbers(figure).rows
            assert name in ("", *BOTH)
            assert figure.about.endswith(".")
            assert name in figure.title


def test_forgetting_begins_where_a_task_was_learned(shown, runs):
    figure = shown["forgetting"]["codec · ring 4"]
    assert figure.ticks == ["1 digits", "2 clothes"]
    assert [(line.name, line.x) for line in figure.series] == [("1 digits", [0, 1]), ("2 clothes", [1])]
    assert figure.series[0].y[1] == mean(runs["codec"], lambda run: run.metrics.accuracy_matrix[1][0])
    assert figure.series[0].std is not None


def test_the_mean_ends_at_acc(shown, runs):
    figure = shown["mean"][""]
    assert [line.name for line in figure.series] == BOTH
    for line, method in zip(figure.series, runs, strict=True):
        assert line.y[-1] == mean(runs[method], lambda run: run.metrics.acc)


def test_the_matrix(shown, runs):
    figure = shown["matrix"]["dpsgd · ring 4"]
    assert (figure.rows, figure.columns) == (["1 digits", "2 clothes"],) * 2
    assert figure.values[0][1] is None
    assert figure.values[1][0] == mean(runs["dpsgd"], lambda run: run.metrics.accuracy_matrix[1][0])


def test_compression_grows_where_less_is_free(shown, runs):
    codec, dpsgd = shown["compression"][""].series
    assert isinstance(shown["compression"][""], Bars)
    assert dpsgd.y == [1, 1]
    assert codec.y == [1, mean(runs["codec"], lambda run: run.metrics.traffic.cc_by_task[1])]
    assert codec.y[1] > 1


def test_many_configurations_are_lines(recorded, monkeypatch):
    monkeypatch.setattr(sending, "MAX_BARS", 1)
    assert isinstance(made(recorded)["compression"][""], Lines)


def test_curves_over_epochs(shown, runs):
    for key, value in {"consensus": epochs.consensus_error, "loss": epochs.mean_loss}.items():
        figure = shown[key][""]
        assert figure.marks == [(0, "1 digits"), (2, "2 clothes")]
        for line, method in zip(figure.series, runs, strict=True):
            assert line.x == [1, 2, 3, 4]
            for place in range(4):
                assert line.y[place] == mean(runs[method], lambda run, at=place, of=value: of(run.of(EpochEnded)[at]))
    assert shown["consensus"][""].log


def test_marks_only_where_tasks_begin_together(recorded, tmp_path):
    lines = event_lines(recorded_run(recorded))
    folder = tmp_path / "runs" / "other" / "seed-1"
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_text("".join(line for line in lines if '"epoch": 1' not in line))
    figure = made(recorded, tmp_path)["loss"][""]
    assert len(figure.series) == 3
    assert figure.marks == []


def test_free_shares(shown, runs):
    (figure,) = shown["free"].values()  # dpsgd keeps all free: nothing to see
    first = runs["codec"][0].metrics.free_by_task
    assert [line.name for line in figure.series] == list(first[0])
    for line in figure.series:
        share = mean(runs["codec"], lambda run, of=line.name: run.metrics.free_by_task[1][of] / first[0][of])
        assert line.y == [1, share]


def test_links_carry_what_was_sent_in_training_and_agreement(shown, runs):
    figure = shown["network"]["dpsgd · ring 4"]
    assert [edge[:2] for edge in figure.edges] == [(0, 1), (1, 2), (2, 3), (3, 0)]
    assert [tuple(round(x, 9) for x in place) for place in figure.places] == [(0, 1), (1, 0), (0, -1), (-1, 0)]
    run = runs["dpsgd"][0]
    trees = sum(event.bytes for event in (*run.of(Grown), *run.of(Flooded)))
    assert sum(edge[2] for edge in figure.edges) == run.metrics.traffic.sent_bytes - trees


def test_bytes_and_time(shown, runs):
    figure = shown["bytes"][""]
    assert figure.y == "MB"
    assert figure.categories == BOTH
    training, _, full = figure.series
    assert training.y[0] == mean(runs["codec"], lambda run: run.metrics.traffic.train_bytes / 1e6)
    assert full.y[1] == mean(runs["dpsgd"], lambda run: run.metrics.traffic.full_bytes / 1e6)
    (steps,) = shown["time"][""].series
    assert steps.y[1] == mean(runs["dpsgd"], lambda run: run.metrics.timing.ms_per_iteration)


def test_one_agent_tasks_alone_and_a_torus(tmp_path):
    record(tmp_path, "stl")
    record(tmp_path, "codec", agents="1")
    record(tmp_path, "codec", agents="8", topology="torus")
    shown = made(tmp_path)
    one, torus, stl = "codec · ring 1", "codec · torus 8", "stl · ring 4"
    assert list(shown["forgetting"]) == [one, torus]
    assert [line.name for line in shown["compression"][""].series] == [torus, stl]
    assert [line.name for line in shown["consensus"][""].series] == [torus, stl]
    assert [line.name for line in shown["loss"][""].series] == [one, torus, stl]
    assert list(shown["network"]) == [torus, stl]
    assert list(shown["bytes"][""].categories) == [torus, stl]
    places = shown["network"][torus].places
    assert len({x for x, _ in places}) == 4
    assert len({y for _, y in places}) == 2
    (line,) = [line for line in shown["mean"][""].series if line.name == stl]
    (run,) = [run for run in gather([tmp_path]).runs if run.metrics.method == "stl"]
    assert line.y[-1] == pytest.approx(run.metrics.acc), "the diagonal, as ACC of tasks alone is"


def test_one_task_alone_has_no_forgetting(copied):
    folder = recorded_run(copied)
    (folder / "metrics.json").unlink()
    first = next(i for i, line in enumerate(event_lines(folder)) if '"kind": "eval"' in line)
    (folder / "events.jsonl").write_text("".join(event_lines(folder)[: first + 1]))
    shown = made(folder)
    assert not {"forgetting", "mean", "matrix", "free"} & set(shown)
    assert shown["loss"][""].marks == []


def test_mu_where_it_is_recorded(copied):
    folder, lines = recorded_run(copied), []
    for place, line in enumerate(event_lines(folder)):
        fact = json.loads(line)
        more = {"mu_mean": 0.5 if place % 2 else None, "mu_max": 0.75} if fact["kind"] == "epoch" else {}
        lines.append(json.dumps(fact | more))
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    plain = [json.loads(line) for line in event_lines(recorded_run(copied, seed=2))]
    unknown = [{key: value for key, value in fact.items() if not key.startswith("mu_")} for fact in plain]
    (recorded_run(copied, seed=2) / "events.jsonl").write_text("".join(json.dumps(fact) + "\n" for fact in unknown))
    assert "mu" not in made(recorded_run(copied, seed=2)), "a run of before it was recorded"
    assert "mu" not in made(recorded_run(copied, method="dpsgd")), "nothing is constrained"
    mean, most = made(folder)["mu"][""].series
    assert (mean.name, most.name) == ("codec · ring 4, mean", "codec · ring 4, most")
    assert set(mean.y) == {0.5}
    assert 0 < len(mean.x) < 4
    assert most.y == [0.75] * 4


def test_a_loss_that_is_no_number_is_not_shown(copied):
    folder = recorded_run(copied)
    lines = event_lines(folder)
    place = next(i for i, line in enumerate(lines) if '"kind": "epoch"' in line)
    lines[place] = json.dumps(json.loads(lines[place]) | {"loss": [math.nan] * 4, "consensus_error": math.inf}) + "\n"
    (folder / "events.jsonl").write_text("".join(lines))
    shown = made(folder)
    assert [shown[key][""].series[0].x for key in ("consensus", "loss")] == [[2, 3, 4]] * 2


@pytest.mark.parametrize("count", [400, 401, 1000])
def test_long_curves_are_thinned_short_ones_are_not(count):
    x = list(range(1, count + 1))
    line = epochs.thinned(Series("a", x, [2 * at for at in x], [0.5] * count), 100)
    if count <= 400:
        assert line.x == x
        return
    assert len(line.x) <= 400 + count // 100 + 1
    assert {at for at in x if at % 100 == 0} | {1, count} <= set(line.x)
    assert line.y == [2 * at for at in line.x]
    assert len(line.std) == len(line.x)


def test_captions_compare_only_what_is_here_and_say_how_it_is(copied):
    codec = recorded_run(copied)
    assert made(codec)["loss"][""].about == "Mean over agents after each epoch."
    assert "dpsgd" not in made(codec)["consensus"][""].about
    assert "With constraints (codec) it is" in made(copied)["consensus"][""].about
    full = copied / "quickstart-codec-full-ring4-000000" / "seed-1"
    shutil.copytree(codec, full)
    for name in ("events.jsonl", "metrics.json", "config.yaml"):
        text = (full / name).read_text().replace('"method": "codec"', '"method": "codec-full"')
        (full / name).write_text(text.replace("name: codec\n", "name: codec-full\n"))
    assert "lie on each other (they differ by less than 0.1 %)" in made(codec, full)["loss"][""].about
    events = [json.loads(line) for line in event_lines(full)]
    off = [event | {"loss": [2 * loss for loss in event["loss"]]} if "loss" in event else event for event in events]
    (full / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in off))
    about = made(codec, full)["loss"][""].about
    assert "lie on" not in about
    assert "differ by at most 50.0 %" in about


def test_who_holds_which_classes_where_data_is_uneven(tmp_path, shown):
    assert "held" not in shown
    record(tmp_path, "codec", None, None, "1", "data.partition=skew(1.0)")
    figures = made(tmp_path)["held"]
    assert list(figures) == ["1: digits", "2: clothes"]
    first, second = figures.values()
    assert (first.columns[0], second.columns[0], first.unit) == ("0", "t-shirt", "images")
    for figure in (first, second):
        counts = np.array(figure.values)
        assert counts.shape == (4, 10)
        assert counts.sum() == 4 * counts[0].sum() > 0
        assert max((row > 0).sum() for row in counts) <= 3, "a stretch of the labels each"
        assert "An agent has 500 images, of 3 of the 10 classes." in figure.about


def test_configurations_that_are_dealt_alike_share_the_map_of_who_holds_what(tmp_path):
    unequal = ("data.partition=iid", "data.sizes=dirichlet(1)")
    for method in ("codec", "dpsgd"):
        record(tmp_path, method, None, None, "1", *unequal)
    figures = made(tmp_path)["held"]
    assert list(figures) == ["1: digits", "2: clothes"]
    images = np.array(figures["1: digits"].values).sum(1)
    assert images.sum() == 2000
    assert (
        f"An agent has {images.min()} to {images.max()} images, of 10 of the 10 classes." in figures["1: digits"].about
    )
    record(tmp_path, "codec", None, None, "1", "data.partition=classes(3)")
    both = made(tmp_path)["held"]
    assert len(both) == 4
    assert all(name.endswith((", 1: digits", ", 2: clothes")) for name in both)


def test_where_classes_are_not_known_the_map_shows_how_many_images_agents_have(tmp_path):
    record(tmp_path, "codec", None, None, "1", "data.sizes=dirichlet(1)")
    folder = recorded_run(tmp_path)
    events = [json.loads(line) for line in event_lines(folder)]
    for event in events:
        event.pop("class_counts", None)
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    ((name, figure),) = made(tmp_path)["held"].items()
    assert (name, list(figure.columns)) == ("all tasks", ["1: digits", "2: clothes"])
    assert np.array(figure.values).sum(0).tolist() == [2000, 2000]
