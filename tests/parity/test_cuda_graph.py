"""A step that is replayed gives what a plain one gives. On a CPU the places are as fixed, only nothing is captured."""

import pytest
import torch

from codecl.exchange import Traffic
from codecl.train import loop as module_under_test
from codecl.train.cuda_graph import Plain, Replay, epochs
from codecl.train.loop import train
from codecl.train.state import Carry
from tests.problems import build, config, convolutional, perceptron, tasks


def facts(module, settings):
    """Coordinates after each step, and every recorded fact but times."""
    setup, state = build(module, tasks(2), settings)
    coords, seen = [], []
    for event in train(setup, state):
        if event.kind == "step":
            coords.append(event.coords_AD.clone())
        seen.append({key: value for key, value in event.record().items() if key != "seconds"})
    return coords, seen


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("order", ["paper", "adapt-then-combine"])
@pytest.mark.parametrize("method", ["codec", "codec-full", "dpsgd", "d-ewc"])
def test_replay_gives_what_plain_gives(method, order, drop_last, monkeypatch):
    module = convolutional()
    settings = config(method=method, train={"order": order, "batch_size": 5}, data={"drop_last": drop_last})
    plain = facts(module, settings)
    made = []

    def replayed(step, carry, indices_SABK, traffic, graph):
        made.append(Replay(step, carry, indices_SABK, traffic))
        return made[-1]

    monkeypatch.setattr(module_under_test, "epochs", replayed)
    ours = facts(module, settings)
    assert len(made) == (2 if drop_last else 4)
    for a, b in zip(ours[0], plain[0], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)
    for a, b in zip(ours[1], plain[1], strict=True):
        assert {k: v for k, v in a.items() if isinstance(v, int | str)} == {
            k: v for k, v in b.items() if isinstance(v, int | str)
        }


def test_the_rate_of_an_epoch_reaches_the_replayed_step():
    def step(carry, indices_ABK, lr):
        moved_AD = carry.coords_AD - lr * indices_ABK.sum((1, 2))[:, None]
        return Carry(moved_AD, carry.velocity_AV + lr, carry.memory_AM, carry.watched_AW), carry.coords_AD.sum(1)

    def told(run, lr):
        start = Carry(torch.zeros(2, 5), torch.zeros(2, 5), torch.zeros(2, 0), torch.zeros(2, 0))
        return [(carry.joined(), loss.clone()) for carry, loss in run(start, indices, lr)]

    indices = torch.ones(3, 2, 4, 1, dtype=torch.long)
    run = Replay(
        step, Carry(torch.ones(2, 5), torch.ones(2, 5), torch.ones(2, 0), torch.ones(2, 0)), indices, Traffic()
    )
    for lr in (0.5, 0.25):
        for a, b in zip(told(run, lr), told(Plain(step), lr), strict=True):
            torch.testing.assert_close(a, b)


def test_what_leaves_aside_is_handed_out_and_not_counted():
    traffic = Traffic()
    traffic.count("train", 1, 10)
    with traffic.aside() as sent:
        traffic.count("train", 4, 100)
    assert traffic.take("train") == {"messages": 1, "bytes": 10}
    traffic.add(sent)
    traffic.add(sent)
    assert traffic.take("train") == {"messages": 8, "bytes": 800}


def test_what_cannot_be_captured_runs_plainly_with_a_warning(monkeypatch):
    def refuse(*_):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(Replay, "__init__", refuse)
    with pytest.warns(UserWarning, match="launched one by one: they cannot be captured"):
        run = epochs(lambda *_: None, Carry(*[torch.zeros(1, 1)] * 4), torch.zeros(1, 1, 1, 1), Traffic(), graph=True)
    assert isinstance(run, Plain)


@pytest.mark.parametrize("model", [perceptron, convolutional])
def test_bf16_follows_the_exact_run_roughly_and_changes_nothing_outside(model):
    module = model()
    exact, rough = (
        facts(module, config(dtype="float32", method="dpsgd", train={"precision": precision}))[0]
        for precision in ("highest", "bf16")
    )
    difference = float((exact[-1] - rough[-1]).norm() / exact[-1].norm())
    assert 1e-7 < difference < 0.02
    assert exact[-1].dtype == rough[-1].dtype == torch.float32
