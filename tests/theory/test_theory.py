"""The analysis: laws of the bounds, counterexamples to the printed ones, both sides measured on the package's loop."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from codecl import theory
from codecl.cli import theory as report
from codecl.theory import check, rates
from codecl.theory.problems import AsModule, basis, logistic, quadratic
from codecl.theory.walks import Walk, same_draws, stepped, walked

positive = st.floats(1e-3, 1e3)
part = st.floats(0, 0.999)


@given(positive, st.floats(1e-3, 1), part)
def test_the_step_sizes_of_theorem_1_exclude_each_other(smooth, mu, s):
    low, high = theory.solved_window(smooth, mu, s)
    assert high < low
    value = 3 * (smooth * high * mu) ** 2 / (1 - s) + high * smooth - 1
    assert value == pytest.approx(0, abs=1e-6), "it does solve the condition of the proof"


@given(positive, st.floats(1e-2, 1), part)
def test_the_printed_window_is_open_where_the_contraction_is_above_three_mu_squared(smooth, mu, s):
    assume(abs(s - 3 * mu**2) > 1e-6)
    low, high = theory.printed_window(smooth, mu, s)
    assert (high > low) == (s > 3 * mu**2)


@given(positive, positive, positive, part, st.integers(1, 64))
def test_the_consensus_bound_is_where_its_recursion_stands_still(rate, noise, spread, s, agents):
    """Of E‖Y'‖² <= a E‖Y‖² + η²Nζ²/(1 - a) + η²(N - 1)σ², at the largest step size."""
    a = (1 + s) / 2
    bound = agents * theory.consensus(rate, noise, spread, agents, s)
    after = a * bound + rate**2 * (agents * spread / (1 - a) + (agents - 1) * noise)
    assert after == pytest.approx(bound)


def test_the_contraction_is_a_norm_and_no_eigenvalue():
    """On a de Bruijn graph disagreement is gone after three rounds, and not before."""
    mixing = np.zeros((8, 8))
    for agent in range(8):
        mixing[2 * agent % 8, agent] = mixing[(2 * agent + 1) % 8, agent] = 0.5
    assert theory.drift(mixing) == 0
    assert np.allclose(mixing.sum(1), 1)
    second = sorted(np.abs(np.linalg.eigvals(mixing)))[-2]
    assert second < 1e-4
    assert theory.contraction(mixing) == pytest.approx(1)
    assert np.allclose(np.linalg.matrix_power(mixing, 3), 1 / 8)


@pytest.mark.parametrize("name", check.TOPOLOGIES)
def test_our_matrices_keep_the_mean_and_the_broken_one_does_not(name):
    mixing = check.graph(name, 8)
    assert theory.drift(mixing) < 1e-12
    assert theory.drift(check.columns_broken(mixing)) > 1
    assert np.allclose(check.columns_broken(mixing).sum(1), 1)


@pytest.mark.parametrize("problem", list(check.problems(4)), ids=lambda problem: problem.name)
def test_a_problem_as_a_module_has_its_loss_and_its_gradient(problem):
    module, point = AsModule(problem).double(), torch.randn(10, dtype=torch.float64) / 2
    module.point.weight.data = point[None]
    examples = problem.examples_NPE[3]
    loss = torch.nn.functional.cross_entropy(module(examples), torch.zeros(len(examples), dtype=torch.long))
    torch.testing.assert_close(loss, problem.loss(point, examples).mean())
    loss.backward()
    own = problem.own_gradients(point.expand(1, 8, 10))[0, 3]
    torch.testing.assert_close(module.point.weight.grad[0], own, rtol=0, atol=1e-10)
    torch.testing.assert_close(
        problem.gradients(point), problem.own_gradients(point.expand(1, 8, 10)).mean(1)[0], rtol=0, atol=1e-10
    )


@pytest.mark.parametrize("problem", list(check.problems(4)), ids=lambda problem: problem.name)
@pytest.mark.parametrize("far", [0.1, 1.0, 10.0])
def test_the_constants_of_a_problem_are_bounds(problem, far):
    """At random points: smoothness between two of them, noise, spread, and the lowest value."""
    known, free = problem.free, problem.free_DF
    for _ in range(20):
        here, there = (problem.at(far * torch.randn(6, dtype=torch.float64)) for _ in range(2))
        both = problem.own_gradients(torch.stack([here.expand(8, 10), there.expand(8, 10)])) @ free
        assert float(((both[0] - both[1]).norm(dim=-1) / (here - there).norm()).max()) <= known.smooth * (1 + 1e-9)
        assert float((both[0] - both[0].mean(0)).square().sum(-1).mean()) <= known.spread * (1 + 1e-9) + 1e-20
        each = (
            torch.func.vmap(lambda example, at=here: torch.func.grad(problem.loss)(at, example))(
                problem.examples_NPE.flatten(0, 1)
            ).view(8, -1, 10)
            @ free
        )
        noise = (each - each.mean(1, keepdim=True)).square().sum(-1).mean(1)
        assert float(noise.max()) <= known.noise * (1 + 1e-9)
        assert float(problem.objective(here)) >= known.lowest - 1e-9


def test_the_lowest_value_of_a_quadratic_is_reached():
    problem = next(check.problems(1))
    slope = problem.gradients(problem.start_D) @ problem.free_DF
    curved = problem.gradients(problem.at(torch.eye(6, dtype=torch.float64))) @ problem.free_DF - slope
    best = problem.at(-torch.linalg.solve(curved, slope))
    assert float(problem.objective(best)) == pytest.approx(problem.free.lowest)
    assert float((problem.gradients(best) @ problem.free_DF).norm()) < 1e-9


def test_a_walk_is_decentralized_sgd():
    """The package's loop against the formula, written out: C ← W C - η G."""
    problem, mixing = list(check.problems(4))[3], check.graph("ring", 8)
    done = stepped(Walk(problem, mixing, 0.1, 20, copies=2))
    weights = torch.from_numpy(mixing)
    for step in range(20):
        mixed = torch.einsum("ij,sjf->sif", weights, done.coords_KSNF[step])
        expected = mixed - 0.1 * done.grads_KSND[step] @ problem.free_DF
        torch.testing.assert_close(done.coords_KSNF[step + 1], expected, rtol=0, atol=1e-12)
    first, second = done.grads_KSND.unbind(1)
    assert float((first - second).abs().max()) > 1e-3, "copies have noise of their own"


def test_agents_that_draw_alike_take_the_same_steps():
    """The control of the rates: without noise of their own, agents at one point have one gradient."""
    problem, mixing = list(check.problems(2))[1], check.graph("ring", 8)
    for sampler, same in ((same_draws(8), True), (same_draws(4), False)):
        grads_KSND = stepped(Walk(problem, mixing, 0.1, 5, copies=2, sampler=sampler)).grads_KSND
        assert torch.allclose(grads_KSND, grads_KSND[:, :, :1], rtol=0, atol=1e-9) == same
        assert not torch.allclose(grads_KSND[:, 0], grads_KSND[:, 1], rtol=0, atol=1e-3)


def test_draws_have_the_mean_and_the_variance_that_are_known():
    problem = quadratic(
        "noise", torch.eye(3).double(), torch.randn(2, 64, 3, dtype=torch.float64), torch.eye(3).double()
    )
    done = stepped(Walk(problem, np.full((2, 2), 0.5), 1e-9, 100, copies=20))
    noise = done.grads_KSND - problem.own_gradients(done.coords_KSNF[:-1])
    assert float(noise.mean((0, 1)).abs().max()) < 0.1
    assert float(noise.square().sum(-1).mean((0, 1)).max()) == pytest.approx(problem.free.noise, rel=0.1)


def test_theorem_1_and_lemma_2_as_printed_do_not_hold():
    first, second = check.counterexamples()
    assert first.left == pytest.approx(1), "the gradient stays where it was"
    assert first.printed < 0.02
    assert not first.printed_holds
    assert second.printed == pytest.approx(0.75)
    assert 0.95 < second.left <= second.right == 1
    assert second.holds
    assert not second.printed_holds


def test_without_a_step_size_agents_drift_apart_without_end():
    line = torch.ones(1, 1, dtype=torch.float64)
    saddle = quadratic("saddle", -line, torch.stack([line, -line]), line)
    *_, last = walked(Walk(saddle, np.full((2, 2), 0.5), 1.0, 12, 1))
    assert float(check.disagreement(last)) == pytest.approx(12**2)


def test_a_small_mu_says_nothing_of_the_noise():
    """A gradient that is large in the core and noisy in the free space: μ is small, the noise is all there."""
    pulls = torch.zeros(2, 64, 2, dtype=torch.float64)
    pulls[..., 0], pulls[..., 1] = torch.randn(2, 64), 100.0
    problem = quadratic("noise", torch.eye(2).double(), pulls, torch.tensor([[1.0], [0.0]]).double())
    done = stepped(Walk(problem, np.full((2, 2), 0.5), 0.01, 30, 4))
    mu = (done.moves_KSNF.norm(dim=-1) / done.grads_KSND.norm(dim=-1)).max()
    assert float(mu) < 0.05
    assert problem.free.noise == pytest.approx(problem.whole.noise)


def test_every_inequality_holds_on_every_kind_of_problem():
    found = list(check.checked(4, copies=10, steps=60))
    assert len(found) == 4 * 4 * 5
    assert [row for row in found if not row.holds] == []
    assert min(row.margin for row in found) < 30, "they are bounds of what happens, not of anything"


@pytest.mark.long
def test_the_check_fails_on_mixing_that_loses_the_mean():
    found = list(check.broken(4, copies=2))
    assert check.passes_though_broken(found) == []
    sound = [row for row in found if row.what.startswith("Lemma 1")]
    assert all(row.holds for row in sound), "which has nothing to do with mixing"
    assert report.wrong([], [row._replace(right=math.inf) for row in found], [])


@pytest.mark.long
def test_the_rate_and_its_controls():
    """Slopes of -1/2 against the number of steps and of agents, over five seeds; controls do not have them."""
    found = rates.slopes(rates.Size(steps=rates.QUICK.steps))
    assert [len(slope.slopes) for slope in found] == [5] * 5
    assert all(slope.as_it_should for slope in found), [(slope.what, slope.along, slope.mean) for slope in found]
    alone, one = (slope for slope in found if slope.must_fail)
    assert alone.mean > 0
    assert one.mean == pytest.approx(0.5, abs=0.1)
    assert max(slope.std for slope in found) < 0.1


def test_a_slope_and_what_is_said_of_it():
    x = (1, 4, 16)
    exact = torch.tensor([[1.0, 0.5, 0.25], [2.0, 1.0, 0.5]])
    slope = rates.Slope("all", "K", x, exact)
    assert slope.slopes == pytest.approx([-0.5, -0.5])
    assert slope.as_it_should
    assert not slope._replace(must_fail=True).as_it_should
    assert report.wrong([], [], [slope._replace(must_fail=True)]) == ["slope in K, all: -0.500"]
    figure = report.rate_figure("K", [slope])
    assert [series.name for series in figure.series] == ["all: slope -0.50", "slope -0.50"]
    assert figure.series[1].y == pytest.approx([1.5, 0.75, 0.375])


def test_problems_are_what_they_say():
    names = [problem.name for problem in check.problems(8)]
    assert names[:4] == ["quadratic alike 0", "logistic alike 0", "quadratic apart 0", "logistic apart 0"]
    assert len(set(names)) == 8
    for problem in check.problems(4):
        assert (problem.free.spread < 1e-20) == ("alike" in problem.name)
        assert problem.free.noise <= problem.whole.noise
        assert problem.free.smooth <= problem.whole.smooth * (1 + 1e-9)
    orthonormal = basis(10, 6, 0)
    torch.testing.assert_close(orthonormal.mT @ orthonormal, torch.eye(6, dtype=torch.float64))
    assert logistic("x", check.labelled(8, 0)[None], orthonormal).free.spread == 0


@pytest.mark.long
def test_the_command_says_that_all_that_is_claimed_holds(cli, tmp_path):
    done = cli("theory", "check", "--quick", "--json", cwd=tmp_path, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert "All that is claimed holds" in done.stderr
    main, printed, control, slopes = json.loads(done.stdout).values()
    assert len(main) == 80
    assert all(row["holds"] for row in main)
    assert [row["printed_holds"] for row in printed] == [False, False]
    assert not all(row["holds"] for row in control)
    assert [len(row["slopes"]) for row in slopes] == [3] * 5
    drawn = {path.name for path in (tmp_path / "theory").iterdir()}
    assert drawn == {f"rate-{along}.{kind}" for along in "KN" for kind in ("svg", "png", "csv")}
