"""Corrections: where they rest, what they keep, and on which graphs they are stable."""

import networkx as nx
import numpy as np
import pytest
import torch

from codecl.exchange.topology import TopologyConfig, build, from_graph
from codecl.train import corrections
from codecl.train.corrections import CORRECTIONS, Step, largest_modulus

AGENTS, SIZE = 6, 3


def run(name, mixing, gradient, start, steps, lr=0.05, momentum=0.9):
    """Rows after so many steps, and all that was remembered."""
    mixing = torch.as_tensor(np.asarray(mixing))
    rows, state = start, torch.zeros(len(start), CORRECTIONS[name].rows * start.shape[1], dtype=start.dtype)
    for _ in range(steps):
        about = Step(rows, gradient(rows), state, lr, momentum, lambda x, d: x - lr * d, lambda x: mixing @ x)
        rows, state = CORRECTIONS[name].rule(about)
    return rows, state


@pytest.fixture
def quadratics():
    """Losses that differ between agents, ½(x - b)ᵀH(x - b), their gradients, and where their mean is least."""
    generator = torch.Generator().manual_seed(0)
    roots = torch.randn(AGENTS, SIZE, SIZE, generator=generator, dtype=torch.float64)
    hessians = roots @ roots.mT / SIZE + torch.eye(SIZE, dtype=torch.float64)
    targets = 3 * torch.randn(AGENTS, SIZE, generator=generator, dtype=torch.float64)
    least = torch.linalg.solve(hessians.sum(0), (hessians @ targets[..., None]).sum(0)[:, 0])

    def gradient(rows):
        return (hessians @ (rows - targets)[..., None])[..., 0]

    return gradient, least


@pytest.mark.parametrize("name", ["exact-diffusion", "gradient-tracking"])
@pytest.mark.parametrize("graph", ["ring-undirected", "exponential", "complete"])
def test_where_it_rests_the_average_loss_is_least(name, graph, quadratics):
    gradient, least = quadratics
    mixing = build(TopologyConfig(name=graph), AGENTS, 0).mixing
    rows, _ = run(name, mixing, gradient, torch.zeros(AGENTS, SIZE, dtype=torch.float64), 4000)
    assert (rows - least).abs().max() < 1e-8


@pytest.mark.parametrize("name", ["none", "quasi-global"])
def test_plain_gossip_and_quasi_global_momentum_rest_elsewhere(name, quadratics):
    gradient, least = quadratics
    mixing = build(TopologyConfig(name="ring-undirected"), AGENTS, 0).mixing
    rows, _ = run(name, mixing, gradient, torch.zeros(AGENTS, SIZE, dtype=torch.float64), 4000)
    again, _ = run(name, mixing, gradient, rows, 1)
    assert name != "none" or (rows - again).abs().max() < 1e-12  # it rests
    assert (rows - least).abs().max() > 1e-2


@pytest.mark.parametrize("name", ["exact-diffusion", "gradient-tracking"])
def test_the_mean_moves_by_the_mean_direction(name, quadratics):
    """No correction adds anything to the mean of all agents."""
    gradient, _ = quadratics
    mixing = build(TopologyConfig(name="ring-undirected"), AGENTS, 0).mixing
    start = torch.randn(AGENTS, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rows, _ = run(name, mixing, gradient, start, 7)
    plainly = start.mean(0)
    for steps in range(7):
        before, _ = run(name, mixing, gradient, start, steps)
        plainly = plainly - 0.05 * gradient(before).mean(0)
    torch.testing.assert_close(rows.mean(0), plainly)


def graphs(count):
    """Random doubly stochastic matrices: of undirected graphs, of directed ones (means of permutations), of rings."""
    random = np.random.default_rng(0)
    for number in range(count):
        size = int(random.integers(3, 10))
        if number % 2:
            graph = nx.connected_watts_strogatz_graph(size, 2, 0.5, seed=number)
            yield np.asarray(build(TopologyConfig(**from_graph(graph)), size, 0).mixing)
        elif number % 4:
            size = int(random.integers(12, 20))
            yield (np.eye(size) + np.roll(np.eye(size), 1, 1)) / 2
        else:
            own = random.uniform(0.1, 0.6)
            turns = [np.eye(size)[random.permutation(size)] for _ in range(2)]
            yield own * np.eye(size) + (1 - own) * (turns[0] + turns[1]) / 2


@pytest.mark.parametrize("name", ["exact-diffusion", "gradient-tracking", "quasi-global"])
def test_what_is_refused_drifts_apart_and_what_is_not_does_not(name):
    seen = {True: 0, False: 0}
    for mixing in graphs(200):
        modulus = largest_modulus([mixing], name, 0.9)
        if abs(modulus - 1) < 0.015:  # too near to tell in so many steps
            continue
        start = torch.randn(len(mixing), 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        rows, _ = run(name, mixing, torch.zeros_like, start, 800)
        apart = (rows - rows.mean(0)).abs().max().item()
        refused = modulus > 1
        assert (apart > 1e3 or not np.isfinite(apart)) if refused else apart < 1e-3, (modulus, apart)
        seen[refused] += 1
    assert seen[False] >= 80
    assert name == "gradient-tracking" or seen[True] >= 30


def test_the_dynamics_are_those_of_a_step_with_one_curvature():
    """The matrix of each correction, against the rule itself on each eigenvector of an undirected graph."""
    topology = build(TopologyConfig(name="ring-undirected"), 5, 0)
    values, vectors = np.linalg.eigh(np.asarray(topology.mixing))
    starts = {"none": [1], "exact-diffusion": [1, 1 / 0.7], "gradient-tracking": [1, 0, 0], "quasi-global": [1, 0]}
    for name, start in starts.items():
        for value, vector in zip(values, vectors.T, strict=True):
            column = torch.as_tensor(vector.copy())[:, None]
            rows, _ = run(name, topology.mixing, lambda x: 6 * x, column, 4)  # lr 0.05: η · L is 0.3
            matrix = np.linalg.matrix_power(corrections.dynamics(name, value, 0.3, 0.9), 4)
            torch.testing.assert_close(rows, column * (matrix @ start)[0].real)
