"""TensorBoard: what is written, read back with TensorBoard's own reader."""

import os
import shutil

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from codecl import api
from codecl.errors import DataError
from codecl.report import tensorboard as board
from codecl.runs.reader import read_run
from codecl.train.events import EpochEnded, TaskOpened
from tests import problems
from tests.cli.test_cli import failed
from tests.conftest import ROOT

EPOCHS, TASKS = 2, 3


def run(out, on_event=None, **fields):
    settings = problems.config(train={"epochs": EPOCHS}, **fields)
    torch.manual_seed(0)  # the same module every time
    tasks, module = problems.tasks(TASKS), problems.perceptron()
    return api.run(settings, out=out, module=module, tasks=tasks, on_event=on_event)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):  # not the session's: its module is at hand, to be trained again
    return run(tmp_path_factory.mktemp("run"))


def read(folder):
    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def scalars(folder):
    """By tag, (step, value)."""
    found = read(folder)
    return {tag: [(one.step, one.value) for one in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def same(ours, theirs):
    """Equal but for what time decides."""
    assert ours.keys() == theirs.keys()
    for tag in ours.keys() - {"steps_a_second"}:
        assert ours[tag] == theirs[tag], tag
    assert [step for step, _ in ours["steps_a_second"]] == [step for step, _ in theirs["steps_a_second"]]


def test_a_board_shows_what_was_recorded(recorded, tmp_path):
    board.write(recorded.folder, tmp_path)
    found, metrics = scalars(tmp_path), recorded.metrics
    epochs = read_run(recorded.folder).of(EpochEnded)
    steps = metrics["timing"]["iterations"] // len(epochs)
    axis = [steps * (number + 1) for number in range(len(epochs))]  # over the whole run, not from each task's start
    assert [step for step, _ in found["loss/mean"]] == axis
    ends = axis[EPOCHS - 1 :: EPOCHS]
    assert [value for _, value in found["consensus_error"]] == pytest.approx([e.consensus_error for e in epochs])
    for agent in range(4):
        assert [v for _, v in found[f"loss_by_agent/{agent}"]] == pytest.approx([e.loss[agent] for e in epochs])
    assert [value for _, value in found["loss/mean"]] == pytest.approx([sum(e.loss) / 4 for e in epochs])
    matrix = metrics["accuracy_matrix"]
    assert found["accuracy/1 t0"] == [(end, pytest.approx(row[0])) for end, row in zip(ends, matrix, strict=True)]
    assert found["accuracy/3 t2"] == [(ends[2], pytest.approx(matrix[2][2]))]
    assert found["accuracy/mean"][-1][1] == pytest.approx(metrics["acc"])
    assert found["traffic/cc_of_task"] == [
        (end, pytest.approx(cc)) for end, cc in zip(ends, metrics["traffic"]["cc_by_task"], strict=True)
    ]
    sent = metrics["traffic"]["train_bytes"] + metrics["traffic"]["boundary_bytes"]
    assert sum(value for _, value in found["traffic/bytes_of_task"]) == pytest.approx(sent)
    layer, free = next(iter(metrics["free_by_task"][2].items()))
    assert found[f"free/{layer}"][2] == (ends[1], free)  # while the third task trained
    assert found["kept_percent"][-1] == (ends[2], pytest.approx(100 * max(metrics["kept_by_task"]) / metrics["body"]))
    assert found["score/kept_percent"] == [found["kept_percent"][-1]]
    assert found["score/bwt"] == [(ends[2], pytest.approx(metrics["bwt"]))]


def test_the_config_is_on_the_board(recorded, tmp_path):
    board.write(recorded.folder, tmp_path)
    found = read(tmp_path)
    (text,) = found.Tensors("config/text_summary")
    assert b"epochs: 2" in text.tensor_proto.string_val[0]
    plugin = found.SummaryMetadata("_hparams_/session_start_info").plugin_data
    fields = HParamsPluginData.FromString(plugin.content).session_start_info.hparams
    assert fields["train.epochs"].number_value == 2
    assert fields["method.name"].string_value == "codec"


def test_live_events_give_the_board_of_recorded_ones(recorded, tmp_path):
    with board.Board(tmp_path / "live") as live:
        run(tmp_path / "runs", live)
    board.write(recorded.folder, tmp_path / "recorded")
    theirs = {tag: points for tag, points in scalars(tmp_path / "recorded").items() if not tag.startswith("score/")}
    same(scalars(tmp_path / "live"), theirs)  # who has no run folder has no config to show


class Stop(Exception):
    pass


@pytest.mark.parametrize("with_board", [True, False])
def test_a_resumed_run_leaves_no_point_twice_and_none_out(recorded, tmp_path, with_board):
    folder = tmp_path / recorded.folder.relative_to(recorded.folder.parents[1])
    where = tmp_path / "board"

    def first():
        with board.Board(where, folder) as live:

            def watch(event):
                if with_board:
                    live(event)
                if (event.kind, event.task, event.epoch) == ("epoch", 1, 1):
                    raise Stop

            run(tmp_path, watch)

    with pytest.raises(Stop):
        first()
    if with_board:
        assert len(scalars(where)["loss/mean"]) == 4
    with board.Board(where, folder) as live:  # goes on from the end of the first task
        assert run(tmp_path, live).metrics["acc"] == recorded.metrics["acc"]
    board.write(recorded.folder, tmp_path / "whole")
    same(scalars(where), scalars(tmp_path / "whole"))
    assert len(list(where.iterdir())) == 1


def test_a_tensorboard_that_is_open_forgets_what_is_replaced(recorded, tmp_path):
    board.write(recorded.folder, tmp_path)
    watching = read(tmp_path)
    assert len(watching.Scalars("loss/mean")) == 6
    kept = next(tmp_path.iterdir())
    copy = tmp_path / kept.name.replace(".codecl", "")  # as if it could not be removed
    kept.rename(copy)
    board.write(recorded.folder, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2  # what is not ours stays
    assert len(read(tmp_path).Scalars("loss/mean")) == 6


def test_of_tasks_that_stand_alone_each_own_model_counts(tmp_path):
    alone = run(tmp_path / "runs", method={"name": "stl"})
    board.write(alone.folder, tmp_path / "board")
    found = scalars(tmp_path / "board")
    assert found["accuracy/mean"][-1][1] == pytest.approx(alone.metrics["acc"])
    assert "score/bwt" not in found


def test_what_is_not_there_or_not_finite_is_left_out(recorded, tmp_path):
    """Fields that some methods record, and losses that overflow."""
    run = read_run(recorded.folder)
    changes = {"mu_mean": 0.5, "mu_max": 2.0, "loss": [1.0, float("inf")]}
    epoch = run.of(EpochEnded)[0].model_copy(update=changes)
    with board.Board(tmp_path) as live:
        live.note(run.of(TaskOpened)[0])
        live.note(epoch)
    found = scalars(tmp_path)
    assert [found[tag][-1][1] for tag in ("mu/mean", "mu/max")] == [0.5, 2.0]
    assert "loss_by_agent/0" in found
    assert not {"disagreement", "loss_by_agent/1"} & found.keys()


def test_damaged_events_are_named(recorded, tmp_path):
    shutil.copytree(recorded.folder, tmp_path / "run")
    (tmp_path / "run" / "events.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match=r"events.jsonl is not a run's \(line 1 has no kind\)"):
        board.write(tmp_path / "run", tmp_path / "board")


TINY = ("--method", "codec", "--set", "train.epochs=1", "--set", "data.tasks=2", "--set", "train.batch_size=50")


def test_the_option_of_run(cli, tmp_path):
    done = cli("run", *TINY, "--seeds", "1,2", "--tensorboard", cwd=tmp_path, PYTHONWARNINGS="error")
    assert done.returncode == 0, done.stderr
    live = {path: scalars(path) for path in tmp_path.glob("runs/*/seed-*/tensorboard")}
    assert len(live) == 2
    done = cli("run", *TINY, "--seeds", "1,2", "--tensorboard-to", "boards", cwd=tmp_path)
    assert "complete already" in done.stdout
    for path, points in live.items():  # shown, not repeated; its board is made from what is recorded
        assert scalars(tmp_path / "boards" / path.parents[1].name / path.parent.name) == points
        assert len(points["loss/mean"]) == 2


def test_without_tensorboard_nothing_is_trained(process, tmp_path):
    (tmp_path / "tensorboard.py").write_text("raise ImportError")
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    line = failed(process("run", *TINY, "--tensorboard", cwd=tmp_path, PYTHONPATH=path), 2)
    assert line.endswith("TensorBoard is not installed; pip install 'codecl[tensorboard]'")
    assert not (tmp_path / "runs").exists()
