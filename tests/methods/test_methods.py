"""Methods: what each promises, on small problems."""

import pytest
import torch
from torch import nn

from codecl.seeding import choose
from codecl.space import growth
from codecl.space.layers import columns, record
from codecl.train.loop import train
from codecl.train.state import State
from tests.problems import build, config, convolutional, furthest, perceptron, tasks, trajectory


def states(setup, state):
    """The state after each task."""
    return [event.state for event in train(setup, state) if event.kind == "flood"]


def outputs(setup, state, task, images):
    return torch.func.functional_call(
        setup.module.eval(), {**state.parameters, **state.kept[task].parameters}, (images,)
    )


def test_codec_keeps_what_it_knows_exactly_when_the_threshold_is_one():
    """ε = 1: every direction that occurred in the growth images is protected, so their outputs do not move at all."""
    settings = config(growth={"threshold": 1.0, "images": 12, "subspace_from": "one"})
    setup, start = build(perceptron(), tasks(), settings)
    after = states(setup, start)
    images = setup.tasks[0].sample(choose(settings.seed, 0, 4), 12)
    first, last = (outputs(setup, state, 0, images) for state in (after[0], after[-1]))
    torch.testing.assert_close(first, last, rtol=0, atol=1e-10)
    plain, start = build(perceptron(), tasks(), config(method="dpsgd"))
    after = states(plain, start)
    assert (outputs(plain, after[0], 0, images) - outputs(plain, after[-1], 0, images)).abs().max() > 1e-2


def test_a_layer_with_nothing_left_free_is_legal_and_silent():
    settings = config(growth={"threshold": 1.0, "images": 48, "subspace_from": "all"})
    setup, start = build(perceptron(), tasks(), settings)
    opened = [event for event in train(setup, start) if event.kind == "task"]
    assert opened[-1].free["3"] == 0
    assert opened[-1].coordinates == 10 * opened[-1].free["1"] + 27


def test_nothing_left_free_at_all_changes_nothing():
    settings = config(head=None, growth={"threshold": 1.0, "images": 24})
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    setup, start = build(module, tasks(shape=(1, 2, 2)), settings)
    opened = [event.coordinates for event in train(setup, start) if event.kind == "task"]
    assert opened == [15, 0, 0]
    first, _, last = states(setup, start)
    assert all(torch.equal(first.parameters[name], value) for name, value in last.parameters.items())


@pytest.mark.parametrize("model", [perceptron, convolutional])
def test_subspace_from_all_is_the_growth_of_all_images_in_one_place(model):
    settings = config(growth={"subspace_from": "all", "images": 20})
    setup, start = build(model(), tasks(1), settings)
    *_, opened = [event for event in train(setup, start) if event.kind == "task"]
    (state,) = states(setup, start)
    layers = setup.roles.layers
    # agents agree only to a thousandth: pool each agent's own columns, as a server that saw everything would
    seen: dict[str, list[torch.Tensor]] = {}
    for event in train(setup, start):
        if event.kind == "step":
            coords = event.coords_AD
    mix = torch.from_numpy(setup.topology.mixing)
    for _ in range(setup.topology.agree_rounds):
        coords = mix @ coords
    for agent in range(4):
        parameters = opened.agents.layout.parameters(coords[agent])
        sample = setup.tasks[0].sample(agent, 5)
        module = setup.module.eval()
        for layer, use in record(
            lambda p=parameters, s=sample, m=module: torch.func.functional_call(m, p, (s,)), layers, parameters
        ):
            for group, some in enumerate(columns(layer, use, 5, 5)):
                seen.setdefault(f"{layer.name}/{group}", []).append(some)
    for name, parts in seen.items():
        together = torch.cat(parts, 1)
        eye = torch.eye(len(together), dtype=torch.float64)
        whole = growth.charts.grow(eye, together @ together.mT, together.square().sum(), 0.9)
        ours = state.memory[name]
        assert ours.shape == whole.shape
        torch.testing.assert_close(ours @ ours.mT, whole @ whole.mT, rtol=0, atol=1e-9)


def test_packing_a_moment_keeps_it():
    moments = {}
    for side in (0, 1, 2, 7, 90):
        half = torch.randn(side, side, dtype=torch.float64)
        moments[f"l/{side}"] = half @ half.mT, torch.tensor(float(side), dtype=torch.float64)
        moments[f"tokens/{side}"] = torch.randn(side, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)
    again = growth.unpacked(growth.packed(moments))
    for name, (moment, energy) in moments.items():
        torch.testing.assert_close(again[name][0], moment, rtol=0, atol=1e-12)
        assert again[name][1] == energy


def test_every_agent_starts_a_task_from_the_same_model_and_norms_stay():
    module = nn.Sequential(nn.Flatten(), nn.Linear(72, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    setup, start = build(module, tasks(), config())
    after = states(setup, start)
    for name in ("2.weight", "2.bias"):
        assert not torch.equal(after[0].parameters[name], start.parameters[name])
        assert torch.equal(after[0].parameters[name], after[-1].parameters[name])


def test_dense_parameters_train_in_every_task_and_frozen_ones_in_the_first():
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift, self.scale = nn.Parameter(torch.zeros(72)), nn.Parameter(torch.ones(72))
            self.body, self.head = nn.Linear(72, 5), nn.Linear(5, 3)

        def forward(self, x):
            return self.head(torch.tanh(self.body(x.flatten(1) * self.scale + self.shift)))

    for method in ("codec", "d-ewc"):
        setup, start = build(Shifted(), tasks(), config(dense=("shift",), frozen=("scale",), method=method))
        one, two, three = states(setup, start)
        assert not torch.equal(one.parameters["shift"], two.parameters["shift"])
        assert not torch.equal(two.parameters["shift"], three.parameters["shift"])
        assert not torch.equal(start.parameters["scale"], one.parameters["scale"])
        assert torch.equal(one.parameters["scale"], three.parameters["scale"])


def test_the_implicit_penalty_step_is_the_proximal_step():
    """x minimises ½‖x - (mix(x) - ηg)‖² + ηλ/2 F (x - x_old)²; stable for any λ."""
    settings = config(method={"name": "d-ewc", "penalty": 50.0, "penalty_step": "implicit"})
    setup, start = build(perceptron(), tasks(2), settings)
    (state, *_) = states(setup, start)
    plan = next(e for e in train(setup, state) if e.kind == "task").agents.layout
    pull = setup.method.prepare(state.memory, plan)
    base, coords, grad = torch.randn(3, 4, plan.size, dtype=torch.float64)
    x = setup.method.step(pull, base, coords, grad, 0.1).requires_grad_()
    strength = pull.strength_D
    cost = 0.5 * (x - (base - 0.1 * grad)).square() + 0.05 * strength * (x - pull.old_D).square()
    (slope,) = torch.autograd.grad(cost.sum(), x)
    assert slope.abs().max() < 1e-10
    assert strength.max() > 0


def test_the_implicit_step_survives_a_penalty_that_the_explicit_one_does_not():
    def largest(step, **more):
        method = {"name": "d-ewc", "penalty": 1e6, "penalty_step": step, **more}
        run = trajectory(perceptron(), tasks(2), config(method=method, train={"lr": 0.5}))
        return max(float(value.abs().max()) for agents in run for one in agents for value in one.values())

    assert largest("implicit") < 10
    assert largest("clipped", clip=1e9) > 1e3


def test_d_ewc_with_no_penalty_is_dpsgd_and_so_is_stl():
    module = convolutional()
    plain = list(trajectory(module, tasks(2), config(method="dpsgd")))
    for method in ({"name": "d-ewc", "penalty": 0.0, "clip": 1e9}, {"name": "stl"}):
        other = trajectory(module, tasks(2), config(method=method))
        assert max(furthest(a, b) for a, b in zip(plain, other, strict=True)) < 1e-12


def test_adapt_then_combine_mixes_the_half_step():
    module = perceptron()
    setup, state = build(module, tasks(1), config(train={"order": "adapt-then-combine", "epochs": 1}))
    events = train(setup, state)
    group = next(events).agents
    rows = group.layout.start().repeat(4, 1)
    mix = torch.from_numpy(setup.topology.mixing)
    for batch, event in zip(setup.tasks[0].epoch(0, range(4), 4), events, strict=False):
        _, grad = group.gradient(rows, *batch)
        rows = mix @ (rows - 0.05 * grad)
        torch.testing.assert_close(event.coords_AD, rows, rtol=0, atol=1e-12)


def test_training_can_go_on_from_a_state():
    """The loop starts after the tasks that a state has finished."""
    setup, start = build(perceptron(), tasks(), config())
    whole = states(setup, start)
    (rest,) = states(setup, whole[1])
    assert isinstance(rest, State)
    assert all(torch.equal(rest.parameters[k], v) for k, v in whole[2].parameters.items())
