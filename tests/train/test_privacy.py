"""Gradients of single images, clipped, with noise: as a plain loop computes them, the same however agents run, and ε
as the library gives it."""

import json

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from codecl import api
from codecl.data.partition import Draw, subsets
from codecl.errors import ConfigError
from codecl.runs.grid import preset, resolve
from codecl.runs.metrics import private_steps
from codecl.train import accounting
from codecl.train.accounting import Spending, epsilon
from codecl.train.loop import open_task, train
from codecl.train.privacy import SecretNoise, SeededNoise, normal
from codecl.train.step import make_private
from tests.problems import build, config, convolutional, normed, perceptron, tasks

PRIVATE = {"clip": 0.05, "noise": 0.7}


@pytest.fixture(autouse=True)
def accountant(monkeypatch, request):
    """Training does not need the library; what states ε does."""
    if request.cls is None and "library" not in request.node.name:
        monkeypatch.setattr(accounting, "needed", lambda: None)


def first_gradient(module, execution, agents=3, privacy=PRIVATE, rows=None, **fields):
    """(loss, gradient) of the first step of the second task, where layers have charts; coordinates and batch."""
    settings = config(agents=agents, privacy=privacy, train={"execution": "loop", "epochs": 1}, **fields)
    setup, state = build(module, tasks(2), settings)
    for event in train(setup, state):
        if event.kind == "flood" and event.task == 0:
            state = event.state
            break
    data = setup.tasks[1]
    opened = open_task(setup._replace(execution=execution), state, data)
    coords_AD = opened.layout.start().repeat(agents, 1) + torch.arange(agents)[:, None] / 100
    picked_ABK = data.indices(0, range(agents), 6)[0][0]
    if rows is not None:
        setup.exchange.agents = rows
        coords_AD, picked_ABK = coords_AD[rows], picked_ABK[rows]
    private = make_private(setup, data, opened, first=5)
    return private(coords_AD, picked_ABK), coords_AD, data.batch(picked_ABK), opened, setup


@pytest.mark.parametrize("model", [perceptron, convolutional])
@pytest.mark.parametrize("execution", ["stacked", "loop"])
def test_the_gradient_is_that_of_a_plain_loop_over_images(model, execution):
    torch.manual_seed(0)
    (loss_A, grad_AD), coords_AD, (images_AB, labels_AB), opened, setup = first_gradient(model(), execution)
    assert opened.layout.size < opened.layout.full_size  # in charts
    clips = 0
    for agent in range(3):
        total, losses = torch.zeros_like(coords_AD[0]), []
        for image, label in zip(images_AB[agent], labels_AB[agent], strict=True):
            coords_D = coords_AD[agent].clone().requires_grad_()
            out = torch.func.functional_call(setup.module, opened.layout.parameters(coords_D), (image[None],))
            loss = nn.functional.cross_entropy(out, label[None])
            (grad_D,) = torch.autograd.grad(loss, coords_D)
            clips += bool(grad_D.norm() > 0.05)
            total += grad_D * min(1, 0.05 / float(grad_D.norm()))
            losses.append(float(loss.detach()))
        noise_D = torch.from_numpy(SeededNoise(setup.seed).draw(agent, 1, 5, len(total)))
        wanted_D = (total + 0.7 * 0.05 * noise_D) / len(losses)
        torch.testing.assert_close(grad_AD[agent], wanted_D, rtol=0, atol=1e-10)
        assert float(loss_A[agent]) == pytest.approx(np.mean(losses), abs=1e-10)
    assert clips > 3


def test_agents_of_another_process_have_the_noise_that_they_have_in_one():
    torch.manual_seed(0)
    module = perceptron()
    (_, together_AD), *_ = first_gradient(module, "stacked")
    (_, apart_AD), *_ = first_gradient(module, "loop", rows=[2])
    torch.testing.assert_close(apart_AD[0], together_AD[2], rtol=0, atol=1e-12)
    assert not torch.allclose(together_AD[0], together_AD[1])


def test_one_image_changes_the_sum_by_at_most_twice_the_clip():
    torch.manual_seed(0)
    module = perceptron()
    found, coords_AD, (images_AB, labels_AB), opened, setup = first_gradient(module, "stacked", privacy={"clip": 0.05})
    private = make_private(setup, setup.tasks[1], opened, first=5)
    setup.tasks[1].batch = lambda picked: (torch.cat([images_AB[:, :-1], 100 * images_AB[:, -1:]], 1), labels_AB)
    _, other_AD = private(coords_AD, None)
    moved_A = (found[1] - other_AD).norm(dim=1) * labels_AB.shape[1]
    assert float(moved_A.max()) > 1e-3
    assert float(moved_A.max()) <= 2 * 0.05 + 1e-12


def test_noise_is_normal_and_other_for_every_agent_task_and_step():
    noise = SeededNoise(3)
    drawn = noise.draw(1, 2, 7, 200_001)
    assert stats.kstest(drawn, "norm").pvalue > 1e-4
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.01
    assert np.array_equal(SeededNoise(3).draw(1, 2, 7, 200_001), drawn)
    assert np.array_equal(noise.draw(1, 2, 7, 10), normal(b"3/noise/1/2/7", 10))
    others = [noise.draw(*path, 1000) for path in ((0, 2, 7), (1, 3, 7), (1, 2, 8))]
    others.append(SeededNoise(4).draw(1, 2, 7, 1000))
    assert all(abs(np.corrcoef(drawn[:1000], other)[0, 1]) < 0.15 for other in others)
    assert noise.counts == {2: 9, 3: 8}


def test_secret_noise_never_comes_again():
    one, other = SecretNoise(), SecretNoise()
    draws = [one.draw(0, 1, 2, 8), one.draw(0, 1, 2, 8), other.draw(0, 1, 2, 8)]
    assert len({draw.tobytes() for draw in draws}) == 3
    assert one.counts == {1: 2}


def test_subsets_have_no_image_twice_and_are_drawn_anew_from_all():
    drawn = subsets(Draw(0, 1, 2, 3), 10, [4] * 50 + [3])
    batches = [*drawn[:200].split(4), drawn[200:]]
    assert all(len(set(batch.tolist())) == len(batch) for batch in batches)
    assert set(drawn.tolist()) == set(range(10))
    assert torch.equal(drawn, subsets(Draw(0, 1, 2, 3), 10, [4] * 50 + [3]))
    assert not torch.equal(drawn, subsets(Draw(0, 1, 2, 3), 10, [4] * 50 + [3], b"secret"))
    with pytest.raises(ConfigError, match=r"data\.sampling: subsets of 4 images need as many, an agent has 3"):
        subsets(Draw(0, 1, 2, 3), 3, [4])


def test_draws_in_secret_do_not_come_again():
    setup, _ = build(perceptron(), tasks(1), config(data={"sampling": "subsets"}))
    data = setup.tasks[0]
    assert torch.equal(data.indices(0, [0], 6)[0], data.indices(0, [0], 6)[0])
    data.draw_in_secret()
    assert not torch.equal(data.indices(0, [0], 6)[0], data.indices(0, [0], 6)[0])


@pytest.mark.parametrize(
    ("fields", "module", "line"),
    [
        ({}, normed(), "privacy.clip: '1' is a batch norm, which mixes the images of a batch"),
        ({"data": {"sampling": "replacement"}}, perceptron(), "data.sampling: replacement can take an image twice"),
        ({"data": {"steps_per_epoch": 100}}, perceptron(), "data.sampling: shuffle goes through the 12 images"),
    ],
)
def test_what_has_no_guarantee_is_refused_in_one_line(fields, module, line):
    with pytest.raises(ConfigError) as refused:
        build(module, tasks(1), config(agents=4, privacy=PRIVATE, **fields))
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"privacy": {"noise": 1}}, "privacy.noise: .* privacy.clip, which is not set"),
        ({"privacy": {"clip": 0}}, "privacy.clip"),
        (
            {"privacy": PRIVATE, "agents": 1, "train": {"schedule": "plateau"}, "data": {"held_out": 0.1}},
            "train.schedule: plateau looks at images without noise",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(fields, line):
    with pytest.raises(ConfigError, match=line):
        resolve(preset("quickstart"), fields)


def test_without_the_library_a_run_says_so_before_it_trains(monkeypatch):
    monkeypatch.setattr(accounting, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    with pytest.raises(ConfigError, match=r"privacy\.noise: ε needs dp-accounting: pip install 'codecl\[privacy\]'"):
        build(perceptron(), tasks(1), config(privacy=PRIVATE))


def test_steps_of_a_process_that_began_again_are_added_up_with_the_epoch_that_may_have_been_lost():
    assert private_steps([10, 20, 30], 10) == 30
    assert private_steps([], 10) == 0
    assert private_steps([10, 20, 10, 20, 30], 10) == 20 + 10 + 30


class TestEpsilon:
    @pytest.fixture(autouse=True)
    def library(self):
        self.dp = pytest.importorskip("dp_accounting")

    def by_hand(self, event, times):
        from dp_accounting.rdp import RdpAccountant

        accountant = RdpAccountant(neighboring_relation=self.dp.NeighboringRelation.REPLACE_ONE)
        for _ in range(times):
            accountant.compose(event)
        return accountant.get_epsilon(1e-5)

    def test_it_is_what_the_library_gives_when_it_is_called_directly(self):
        gaussian = self.dp.GaussianDpEvent(1.0)
        sampled = self.dp.SampledWithoutReplacementDpEvent(200, 10, gaussian)
        assert epsilon(Spending(2.0, "subsets", 200, 10, 2, 20), 1e-5) == pytest.approx(self.by_hand(sampled, 2))
        assert epsilon(Spending(2.0, "shuffle", 200, 10, 30, 20), 1e-5) == pytest.approx(self.by_hand(gaussian, 2))

    def test_a_run_states_it_and_goes_on_bit_for_bit(self, tmp_path):
        fields = {
            "method": {"name": "dpsgd"},
            "data": {"tasks": 2, "sampling": "subsets"},
            "train": {"epochs": 2, "batch_size": 50},
            "privacy": {"clip": 1.0, "noise": 2.0},
            "checkpoint": {"every": 1},
        }
        settings = resolve(preset("quickstart"), fields)
        whole = api.run(settings, out=tmp_path / "whole", device="cpu")
        found = whole.metrics["privacy"]
        steps = whole.metrics["timing"]["iterations"] // 2
        spent = Spending(2.0, "subsets", 500, 50, steps, steps // 2)
        assert found["epsilon_by_task"] == pytest.approx([epsilon(spent, 1e-5)] * 2)
        assert found["epsilon"] == found["epsilon_by_task"][0]
        assert (found["delta"], found["covers"]) == (1e-5, "all messages")

        class Stop(Exception):
            pass

        def stop(event):
            if event.kind == "epoch" and (event.task, event.epoch) == (1, 1):
                raise Stop

        with pytest.raises(Stop):
            api.run(settings, out=tmp_path / "parts", device="cpu", on_event=stop)
        again = api.run(settings, out=tmp_path / "parts", device="cpu")
        assert again.metrics["accuracy_matrix"] == whole.metrics["accuracy_matrix"]
        assert again.metrics["privacy"] == found
        lines = [(run.folder / "events.jsonl").read_text().splitlines() for run in (whole, again)]
        losses = [[json.loads(line)["loss"] for line in each if '"kind": "epoch"' in line] for each in lines]
        assert losses[0] == losses[1]

    def test_methods_that_grow_from_images_say_that_gradients_alone_are_covered(self, tmp_path):
        privacy = {"clip": 1.0, "noise": 2.0}
        fields = {"data": {"tasks": 1}, "train": {"epochs": 1, "batch_size": 50}, "privacy": privacy}
        settings = resolve(preset("quickstart"), {**fields, "method": {"name": "codec"}})
        found = api.run(settings, out=tmp_path, device="cpu").metrics["privacy"]
        assert found["covers"] == "gradients"
        assert found["epsilon"] > 0
