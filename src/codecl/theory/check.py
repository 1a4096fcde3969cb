"""Inequalities, both sides measured: the left on the package's own loop, the right from what is known of the problem.

Shapes: K steps, S copies (noise seeds), N agents, P examples of an agent, D dimensions, F free ones.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from codecl import theory
from codecl.exchange import topology as topologies
from codecl.exchange.topology import Matrix, TopologyConfig
from codecl.seeding import spawn
from codecl.theory.problems import Problem, basis, logistic, quadratic
from codecl.theory.walks import Steps, Walk, stepped, walked

AGENTS, DIMENSIONS, FREE = 8, 10, 6
TOPOLOGIES = ("ring", "ring-undirected", "torus", "exponential")
KEPT, GRADIENT = "the mean is kept", "mean squared free gradient"
ROUNDING = 1e-9  # how far an identity may be off, relatively


class Checked(NamedTuple):
    """One inequality in one case: left <= right. `printed`: the paper's right side, where it has one here."""

    what: str
    case: str
    left: float
    right: float
    printed: float | None = None

    @property
    def holds(self) -> bool:
        return self.left <= self.right * (1 + ROUNDING)

    @property
    def printed_holds(self) -> bool | None:
        return None if self.printed is None else self.left <= self.printed * (1 + ROUNDING)

    @property
    def margin(self) -> float:
        """How many times the right side is the left."""
        return self.right / self.left if self.left else float("inf")


def problems(count: int) -> Iterator[Problem]:
    """Quadratic and logistic, with agents that have the same examples and agents that do not, in turn."""
    for number in range(count):
        seed, kind, apart = number // 4, number % 2, number // 2 % 2
        free_DF = basis(DIMENSIONS, FREE, 100 + seed)
        make = (_quadratic, _logistic)[kind]
        yield make(f"{('quadratic', 'logistic')[kind]} {('alike', 'apart')[apart]} {seed}", seed, bool(apart), free_DF)


def _quadratic(name: str, seed: int, apart: bool, free_DF: Tensor) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    root_DD = torch.randn(DIMENSIONS, DIMENSIONS, generator=generator, dtype=torch.float64)
    hessian_DD = root_DD @ root_DD.mT / DIMENSIONS + 0.1 * torch.eye(DIMENSIONS, dtype=torch.float64)
    pull_N1D = torch.randn(AGENTS if apart else 1, 1, DIMENSIONS, generator=generator, dtype=torch.float64)
    noise_NPD = torch.randn(AGENTS, 32, DIMENSIONS, generator=generator, dtype=torch.float64)
    return quadratic(name, hessian_DD, pull_N1D + noise_NPD - noise_NPD.mean(1, keepdim=True), free_DF)


def _logistic(name: str, seed: int, apart: bool, free_DF: Tensor) -> Problem:
    """Apart: every agent's labels follow a model of its own."""
    if not apart:
        return logistic(name, labelled(AGENTS * 32, seed).expand(AGENTS, -1, -1).contiguous(), free_DF)
    return logistic(name, torch.stack([labelled(32, seed, agent) for agent in range(AGENTS)]), free_DF)


def labelled(points: int, *path: int) -> Tensor:
    """(x, y): labels drawn from a logistic model, so that no w explains them all."""
    generator = spawn(path[0], "theory", *path[1:])
    x_PD = torch.randn(points, DIMENSIONS, generator=generator, dtype=torch.float64)
    truth_D = torch.randn(DIMENSIONS, generator=generator, dtype=torch.float64)
    chance_P = torch.rand(points, generator=generator, dtype=torch.float64)
    y_P = torch.where(chance_P < torch.sigmoid(x_PD @ truth_D), 1.0, -1.0).double()
    return torch.cat([x_PD, y_P[:, None]], 1)


def graph(name: str, agents: int) -> Matrix:
    return topologies.build(TopologyConfig(name=name), agents, 0).mixing if agents > 1 else np.ones((1, 1))


def columns_broken(mixing: Matrix, part: float = 0.9) -> Matrix:
    """Everyone gives this part of its weights to agent 0: rows still sum to 1, columns do not."""
    hub = np.zeros_like(mixing)
    hub[:, 0] = 1
    return (1 - part) * mixing + part * hub


def checked(count: int, copies: int, steps: int, names: Sequence[str] = TOPOLOGIES) -> Iterator[Checked]:
    """Every inequality on every problem and topology, at step sizes from a third of the allowed up to all of it."""
    for number, problem in enumerate(problems(count)):
        for name in names:
            mixing = graph(name, AGENTS)
            rate = (1 + number % 3) / 3 * theory.largest_rate(problem.free.smooth, theory.contraction(mixing))
            walk = Walk(problem, mixing, rate, steps, copies, seed=number)
            yield from inequalities(f"{problem.name}, {name}", walk)


def broken(count: int, copies: int, steps: int = 1500) -> Iterator[Checked]:
    """The control: the same checks on mixing that does not keep the mean, against the bounds of the sound matrix."""
    sound = graph("exponential", AGENTS)
    s = theory.contraction(sound)
    for number, problem in enumerate(problems(count)):
        rate = 0.1 * theory.largest_rate(problem.free.smooth, s)
        walk = Walk(problem, columns_broken(sound), rate, steps, copies, seed=number, batch=8)
        yield from inequalities(f"{problem.name}, broken exponential", walk, s)


def passes_though_broken(checked: Sequence[Checked]) -> list[Checked]:
    """What a control should have failed: the kept mean always, the gradient bound where agents' objectives differ."""
    fails = [row for row in checked if row.what == KEPT or (row.what == GRADIENT and "apart" in row.case)]
    return [row for row in fails if row.holds]


def inequalities(case: str, walk: Walk, s: float | None = None) -> list[Checked]:
    """All checks of one walk. `s`: of another mixing matrix than the walk's."""
    done, problem = stepped(walk), walk.problem
    known, agents = problem.free, len(walk.mixing)
    s = theory.contraction(walk.mixing) if s is None else s
    max_error = theory.consensus(walk.lr, known.noise / walk.batch, known.spread, agents, s)
    above = float(problem.objective(problem.start_D)) - known.lowest
    mean_KSF, apart_KS = done.coords_KSNF.mean(2), disagreement(done.coords_KSNF)
    free_KSF = problem.gradients(problem.at(mean_KSF[:-1])) @ problem.free_DF
    limit = theory.gradient(above, walk.lr, walk.steps, known.smooth, known.noise / walk.batch / agents, max_error)
    return [
        Checked("Lemma 1: ⟨g, g̃⟩ = ‖g̃‖²", case, _lemma_1(done, problem), ROUNDING),
        Checked(KEPT, case, _kept(done, walk.lr), ROUNDING),
        Checked("consensus error", case, float(apart_KS.mean(1).max()), max_error),
        Checked("mean consensus error", case, float(apart_KS[:-1].mean()), max_error, _lemma_2(done, walk, s)),
        Checked(GRADIENT, case, float(free_KSF.square().sum(-1).mean()), limit),
    ]


def counterexamples() -> Iterator[Checked]:
    """Where the printed bounds do not hold."""
    free_D, core_D = torch.eye(2, dtype=torch.float64)
    uphill = quadratic("½‖x - a‖², a in the core", torch.eye(2).double(), -core_D.expand(8, 1, 2), free_D[:, None])
    mixing, mu, steps = graph("ring", 8), 0.1, 50
    s = theory.contraction(mixing)
    rate = sum(theory.printed_window(1, mu, s)) / 2
    coords_KSNF = torch.stack(list(walked(Walk(uphill, mixing, rate, steps, 1))))[:-1]
    left = uphill.gradients(uphill.at(coords_KSNF.mean(2))).square().sum(-1).mean()
    printed = theory.printed_gradient(0.5, rate, steps, 1, 0, theory.printed_consensus(rate, mu, 0, 0, s, 0))
    yield Checked("Theorem 1: mean squared gradient, core and free", uphill.name, float(left), math.inf, printed)

    line = torch.ones(1, 1, dtype=torch.float64)
    saddle = quadratic("two agents, f = -x²/2 ± x", -line, torch.stack([line, -line]), line)
    (row,) = [row for row in inequalities(saddle.name, Walk(saddle, graph("complete", 2), 0.5, 100, 1)) if row.printed]
    yield row._replace(what="Lemma 2: mean consensus error")


def disagreement(coords_NF: Tensor) -> Tensor:
    """CE: the mean squared distance to the average of the agents."""
    return (coords_NF - coords_NF.mean(-2, keepdim=True)).square().sum(-1).mean(-1)


def _lemma_1(done: Steps, problem: Problem) -> float:
    """The largest relative deviation at any step: of ⟨g, g̃⟩ from ‖g̃‖², and of g̃ from the gradient by coordinates."""
    inside_KSND = done.grads_KSND @ problem.free_DF @ problem.free_DF.mT
    squared, size = inside_KSND.square().sum(-1), done.grads_KSND.square().sum(-1)
    descent = (done.grads_KSND * inside_KSND).sum(-1) - squared
    moved = (done.moves_KSNF @ problem.free_DF.mT - inside_KSND).square().sum(-1).sqrt() * size.sqrt()
    return float((torch.maximum(descent.abs(), moved) / size.clamp(min=1e-30)).max())


def _kept(done: Steps, rate: float) -> float:
    """The largest relative deviation at any step of the mean's move from the mean of the moves."""
    mean_KSF = done.coords_KSNF.mean(2)
    expected = mean_KSF[:-1] - rate * done.moves_KSNF.mean(2)
    scale = done.coords_KSNF.abs().amax().clamp(min=1e-30)
    return float((mean_KSF[1:] - expected).abs().max() / scale)


def _lemma_2(done: Steps, walk: Walk, s: float) -> float:
    """The paper's right side for the mean consensus error, with μ as large as it was."""
    problem, whole = walk.problem, walk.problem.whole
    mu = float((done.moves_KSNF.norm(dim=-1) / done.grads_KSND.norm(dim=-1).clamp(min=1e-30)).max())
    own_KSND = problem.own_gradients(problem.at(done.coords_KSNF[:-1]))
    mean = float(own_KSND.mean(2).square().sum(-1).mean())
    return theory.printed_consensus(walk.lr, mu, whole.noise / walk.batch, whole.spread, s, mean)
