"""`codecl bench`: the real loop timed in turns, as a table, as JSON, beside an earlier result."""

import json

import pytest
import torch

from codecl import bench
from tests.cli.test_cli import failed
from tests.launching import run

CPU = torch.device("cpu")
METHODS = "codec,dpsgd,plain-loop"
SMALL = ("bench", "--models", "convnet", "--agents", "2", "--rounds", "2", "--device", "cpu", "--method", METHODS)


@pytest.fixture(scope="module")
def found(cli, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    done = cli(*SMALL, "--json", "--save", "results", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout), done.stderr


def test_rows_say_what_was_measured_and_how(found):
    _, result, _ = found
    assert [row["method"] for row in result["rows"]] == ["codec", "dpsgd", "plain-loop"]
    for row in result["rows"]:
        assert row["ms"]["min"] <= row["ms"]["median"] <= row["ms"]["max"]
        assert row["ms"]["min"] > 0
        assert row["execution"] in ("stacked", "loop")
        assert row["peak_mib"] is None  # of a GPU only
    codec, dpsgd, _ = result["rows"]
    assert set(codec["ratio"]) == {"dpsgd", "plain-loop"}
    assert set(dpsgd["ratio"]) == {"plain-loop"}
    assert result["rounds"] == 2
    assert {"torch", "device_name", "commit", "threads"} <= set(result["environment"])


def test_a_result_is_saved_in_a_dated_file_and_can_be_compared_with(found, cli):
    folder, result, said = found
    (file,) = (folder / "results").iterdir()
    assert file.name.startswith(result["date"][:10])
    assert str(file.relative_to(folder)) in said
    assert json.loads(file.read_text()) == result
    done = cli(*SMALL, "--compare", str(file), cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "/ before" in done.stdout
    assert "plain-loop" in done.stdout


def test_a_file_of_something_else_is_not_compared_with(cli, tmp_path):
    (tmp_path / "odd.json").write_text('{"schema": 2, "rows": [{}]}')
    done = cli("bench", "--compare", "odd.json", cwd=tmp_path)
    assert "odd.json holds no results of codecl bench" in failed(done, 3)
    assert done.stdout == ""


def test_a_method_may_have_own_directions_and_few_bits(cli, tmp_path):
    config = bench._config(bench.WORKLOADS["mlp"], 2, "codec+3@4", {})
    assert (config.method.name, config.own.directions, config.message.bits) == ("codec", 3, 4)
    assert bench._config(bench.WORKLOADS["mlp"], 2, "dpsgd@bfloat16", {}).message.bits == "bfloat16"
    words = ("bench", "--models", "mlp", "--agents", "2", "--rounds", "1", "--device", "cpu", "--json", "--method")
    done = cli(*words, "codec,codec@4", cwd=tmp_path)
    exact, few = json.loads(done.stdout)["rows"]
    assert (set(exact["ratio"]), set(few["ratio"])) == (set(), {"codec"})
    assert "message.bits" in failed(cli(*words, "codec@5", cwd=tmp_path), 2)


def test_a_case_is_the_second_task_with_half_of_the_space_free():
    problem = bench.WORKLOADS["mlp"]
    config = bench._config(problem, 2, "codec", {})
    setup, start = bench.build_setup(config, bench.task_data(config, bench._tasks(problem, 4), CPU), CPU)
    opened = next(iter(bench.train(setup, bench._second_task(setup, start))))
    assert opened.task == 1
    assert opened.free == {"fc1": 393, "fc2": 129}  # of 784 + 1 and 256 + 1 inputs, with the bias


def test_the_plain_loop_is_decentralized_sgd():
    """It learns what the loop's dpsgd learns: same steps, same losses."""
    problem = bench.WORKLOADS["convnet"]
    config = bench._config(problem, 2, "dpsgd", {})
    setup, start = bench.build_setup(config, bench.task_data(config, bench._tasks(problem, 4), CPU), CPU)
    state = bench._second_task(setup, start)
    ours = next(event for event in bench.train(setup, state) if event.kind == "epoch")
    losses = []
    plain = bench._plain(setup, state)
    original = bench._backward

    def kept(*arguments):
        losses.append(original(*arguments))
        return losses[-1]

    bench._backward = kept
    try:
        next(plain)
    finally:
        bench._backward = original
    by_agent = torch.stack(losses).view(-1, 2).mean(0)
    torch.testing.assert_close(by_agent, torch.tensor(ours.loss), rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_over_several_processes_it_tells_what_is_waited_and_sent(tmp_path):
    (code, said, errors), (other, nothing, _) = run(2, ["-m", "codecl", *SMALL, "--json"], tmp_path)
    assert (code, other, nothing) == (0, 0, ""), errors
    result = json.loads(said)
    assert (result["exchange"], result["ranks"]) == ("cluster", 2)
    assert [row["method"] for row in result["rows"]] == ["codec", "dpsgd"]  # the plain loop is for one process
    for row in result["rows"]:
        assert 0 <= row["wait_ms"]["min"] <= row["wait_ms"]["max"] < row["ms"]["max"]
        assert row["mbit_s"]["min"] > 0
    codec, dpsgd = result["rows"]
    sent = [row["mbit_s"]["median"] * row["ms"]["median"] for row in (codec, dpsgd)]
    assert sent[0] < 0.7 * sent[1]  # half of the space
