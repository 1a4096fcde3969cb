"""How agents share a device: measured, remembered, recorded."""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from codecl import api
from codecl.runs import machine
from codecl.runs.reader import read_events
from codecl.train import autotune
from codecl.train.events import EpochEnded, of_type
from codecl.train.execution import multiplying
from codecl.train.loop import train
from tests.parity.test_agents import Branching
from tests.problems import build, config, convolutional, perceptron, tasks


def chosen(module=None):
    return autotune.choose(*build(module or perceptron(), tasks(1), config()))


@pytest.fixture(autouse=True)
def own(monkeypatch, tmp_path):
    monkeypatch.setenv("CODECL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "execution.json"


def test_the_fastest_way_is_measured_once_and_remembered(own, monkeypatch):
    setup, state = build(perceptron(), tasks(1), config())
    first = autotune.choose(setup, state)
    assert first.measured
    assert set(first.ms_per_step) == {"stacked", "loop"}
    assert all(value > 0 for value in first.ms_per_step.values())
    monkeypatch.setattr(autotune, "measure", lambda *_: pytest.fail("measured again"))
    assert autotune.choose(setup, state) == first._replace(measured=False)
    assert len(json.loads(own.read_text())) == 1


@pytest.mark.parametrize(("loop", "expected"), [(9.0, "loop"), (9.9, "stacked"), (11.0, "stacked")])
def test_the_first_way_stays_unless_another_is_clearly_faster(loop, expected, monkeypatch):
    monkeypatch.setattr(autotune, "measure", lambda *_: {"stacked": 10.0, "loop": loop})
    assert chosen().execution == expected


def test_it_depends_on_model_agents_and_batch_but_not_on_free_dimensions():
    def key(module=None, **fields):
        setup, _ = build(module or perceptron(), tasks(1), config(**fields))
        return autotune._key(setup, torch.device("cpu"))

    assert key() == key(growth={"threshold": 0.5}) == key(method="dpsgd") == key(seed=9)
    others = [key(convolutional()), key(agents=5), key(train={"batch_size": 5}), key(dtype="float32")]
    assert len({key(), *others}) == 5


def test_measuring_counts_no_traffic():
    setup, state = build(perceptron(), tasks(1), config())
    autotune.choose(setup, state)
    assert setup.exchange.traffic.take("train") == {"messages": 0, "bytes": 0}


def test_measuring_changes_no_numbers(tmp_path):
    module = nn.Sequential(nn.Flatten(), nn.Linear(72, 9), nn.Dropout(0.5), nn.Linear(9, 3))
    fresh, again = (
        api.run(config(preset="a"), module=module, tasks=tasks(1), out=tmp_path / name, device="cpu") for name in "ab"
    )
    starts = [read_events(result.folder)[0] for result in (fresh, again)]
    assert [event.measured for event in starts] == [True, False]
    assert starts[0].execution == starts[1].execution
    assert fresh.metrics["accuracy_matrix"] == again.metrics["accuracy_matrix"]
    assert fresh.metrics["consensus_error_by_task"] == again.metrics["consensus_error_by_task"]


def test_a_model_that_cannot_be_stacked_says_so_each_time_and_is_not_remembered(own):
    for _ in range(2):
        with pytest.warns(UserWarning, match="cannot be stacked"):
            choice = chosen(Branching())
        assert choice.execution == "loop"
    assert not own.exists()


def test_a_cache_that_cannot_be_written_or_read_only_means_measuring_again(own):
    own.parent.write_text("a file in the way")
    assert chosen().measured
    own.parent.unlink()
    own.parent.mkdir()
    own.write_text("{broken")
    assert chosen().measured


@pytest.mark.parametrize(("every", "expected"), [(9.4, 3), (9.6, 1), (12.0, 1)])
def test_one_thread_unless_all_of_them_are_worth_it(every, expected, monkeypatch, own):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(
        autotune, "measure", lambda *_: dict.fromkeys(("stacked", "loop"), {1: 10.0, 3: every}[torch.get_num_threads()])
    )
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert chosen().threads == expected
        assert chosen() == chosen()._replace(measured=False), "remembered"
        assert torch.get_num_threads() == 3
        monkeypatch.setenv("OMP_NUM_THREADS", "3")  # as many as the user says
        assert chosen().threads is None
    finally:
        torch.set_num_threads(before)


def test_a_run_has_the_threads_that_were_chosen_and_those_again_when_it_goes_on(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(autotune, "choose", lambda *_: autotune.Choice("loop", {}, True, 2))
    given = {"module": perceptron(), "tasks": tasks(2), "out": tmp_path, "device": "cpu"}

    def stops(event):
        seen.append(torch.get_num_threads())
        if isinstance(event, EpochEnded) and event.task == 1:
            raise KeyboardInterrupt

    before = torch.get_num_threads()
    with pytest.raises(KeyboardInterrupt):
        api.run(config(preset="a"), on_event=stops, **given)
    monkeypatch.setattr(autotune, "choose", lambda *_: pytest.fail("chosen again"))
    api.run(config(preset="a"), on_event=lambda _: seen.append(torch.get_num_threads()), **given)
    assert {*seen} == {2}
    assert torch.get_num_threads() == before


def test_threads_are_put_back(tmp_path):
    torch.set_num_threads(2)
    try:
        api.run(config(preset="a"), module=perceptron(), tasks=tasks(1), out=tmp_path, device="cpu")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_products_round_inside_only():
    """The switches can be set without a GPU."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    for precision, rounds in (("tf32", True), ("bf16", True), ("highest", False)):
        with multiplying(precision, torch.device("cuda")):
            assert (matmul.allow_tf32, cudnn.allow_tf32) == (rounds, rounds)
            with multiplying("highest", torch.device("cuda")):
                assert (matmul.allow_tf32, cudnn.allow_tf32) == (False, False)
            assert (matmul.allow_tf32, cudnn.allow_tf32) == (rounds, rounds)
        assert (matmul.allow_tf32, cudnn.allow_tf32) == before


def test_a_caller_who_uses_the_newer_names_keeps_them():
    code = """
import torch
from codecl.train.execution import multiplying
torch.backends.cuda.matmul.fp32_precision = "ieee"
torch.backends.cudnn.conv.fp32_precision = "tf32"
with multiplying("tf32", torch.device("cuda")):
    print(torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision)
print(torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["tf32", "tf32", "ieee", "tf32"]


@pytest.mark.parametrize("entry", [5, {"execution": "foo"}, {"execution": "streams"}, None])
def test_an_entry_that_is_not_a_choice_is_measured_again(own, entry):
    setup, state = build(perceptron(), tasks(1), config())
    own.parent.mkdir()
    own.write_text(json.dumps({autotune._key(setup, torch.device("cpu")): entry}))
    assert autotune.choose(setup, state).measured


def test_a_way_that_was_asked_for_is_not_measured(own, tmp_path):
    settings = config(preset="a", train={"execution": "loop"})
    events = read_events(api.run(settings, module=perceptron(), tasks=tasks(1), out=tmp_path, device="cpu").folder)
    assert {event.execution for event in (events[0], *of_type(events, EpochEnded))} == {"loop"}
    assert not own.exists()


def test_streams_on_a_cpu_are_a_loop():
    module = convolutional()
    last = []
    for how in ("streams", "loop"):
        setup, state = build(module, tasks(1), config())
        events = list(train(setup._replace(execution=how), state))
        last.append([event.coords_AD for event in events if event.kind == "step"][-1])
        assert {event.execution for event in events if event.kind == "epoch"} == {"loop"}
    assert torch.equal(*last)


def test_what_does_not_fit_into_memory_is_no_candidate(monkeypatch, own):
    original = autotune.make_step

    def too_large(setup, state, data, agents):
        if agents.execution == "loop":
            return lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("out of memory"))
        return original(setup, state, data, agents)

    monkeypatch.setattr(autotune, "make_step", too_large)
    choice = chosen()
    assert (choice.execution, set(choice.ms_per_step)) == ("stacked", {"stacked"})
    assert not own.exists()


def test_no_more_threads_than_the_process_may_use(monkeypatch):
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for quota, threads in (("150000 100000\n", 2), ("max 100000\n", 8), ("50000 100000\n", 1)):
        monkeypatch.setattr(machine.Path, "read_text", lambda *_, quota=quota, **__: quota)
        assert machine.processors() == threads
    torch.set_num_threads(3)
    try:
        with machine.compute_settings(torch.device("cpu")):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)
