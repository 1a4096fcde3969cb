"""The laws of the directions in which a task trains, and of what it keeps. Float64; shapes, ranks and seeds drawn."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codecl.errors import RunFailed
from codecl.space import chart as charts
from codecl.space import directions
from codecl.space.directions import FREE, OWN, FreeConfig, OwnConfig
from codecl.space.growth import memory_of
from codecl.space.kept import Kept, taken_out
from codecl.space.layers import Layer
from tests.laws.test_chart import TIGHT, generator, orthonormal


def normal(*shape, seed):
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed))


def assert_orthonormal(basis):
    torch.testing.assert_close(basis.mT @ basis, torch.eye(basis.shape[1], dtype=torch.float64), **TIGHT)


def energy(basis, moment):
    """Of the inputs with this second moment, inside the space of an orthonormal basis."""
    return float((basis.mT @ moment @ basis).trace())


@st.composite
def spaces(draw):
    """A basis, and the inputs of a few images or many: their moment may have a low rank, or none."""
    n, columns, seed = draw(st.integers(1, 9)), draw(st.integers(0, 12)), draw(st.integers(0, 10**6))
    inputs = normal(n, columns, seed=seed)
    return orthonormal(n, draw(st.integers(0, n)), seed + 1), inputs @ inputs.mT


@given(spaces(), st.integers(0, 9), st.integers(0, 10**6))
def test_ranked_is_a_basis_of_the_space_whose_first_hold_most(case, count, seed):
    basis, moment = case
    energies, found = directions.ranked(basis, moment)
    assert_orthonormal(found)
    torch.testing.assert_close(found @ found.mT, basis @ basis.mT, **TIGHT)
    torch.testing.assert_close((found * (moment @ found)).sum(0), energies, **TIGHT)
    assert energies.tolist() == sorted(energies.tolist(), reverse=True)
    count = min(count, basis.shape[1])
    others = [found[:, torch.randperm(basis.shape[1], generator=generator(seed))[:count]]]
    others += [basis @ orthonormal(basis.shape[1], count, seed)]
    assert all(energy(other, moment) <= energies[:count].sum() + 1e-10 for other in others)


@given(spaces())
def test_core_is_orthonormal_and_all_that_is_not_free(case):
    free, _ = case
    core = directions.core(free)
    assert_orthonormal(core)
    eye = torch.eye(len(free), dtype=torch.float64)
    torch.testing.assert_close(core @ core.mT + free @ free.mT, eye, **TIGHT)


@given(
    st.dictionaries(st.text("ab", min_size=1, max_size=2), st.lists(st.floats(0, 9), max_size=4), max_size=4),
    st.integers(0, 10**6),
    st.integers(0, 40),
)
def test_deal_keeps_within_the_room_and_gives_to_where_it_brings_most(offers, seed, room):
    energies = {name: torch.tensor(sorted(values, reverse=True)) for name, values in offers.items()}
    costs = {name: 1 + int(torch.randint(9, (), generator=generator(seed + n))) for n, name in enumerate(offers)}
    counts = directions.deal(energies, costs, room)
    assert counts.keys() == offers.keys()
    worth = {name: [float(value) / costs[name] for value in values] for name, values in energies.items()}
    dealt = [(worth[name][number], costs[name]) for name, count in counts.items() for number in range(count)]
    assert sum(cost for _, cost in dealt) <= room
    assert all(value > 0 for value, _ in dealt)
    for name, count in counts.items():
        for value in worth[name][count : count + 1]:
            better = sum(cost for other, cost in dealt if other >= value)
            assert value == 0 or costs[name] > room - better  # not even in the place of what brings less


def test_deal_passes_over_what_is_too_large():
    energies = {"large": torch.tensor([100.0]), "small": torch.tensor([3.0, 2.0, 1.0])}
    assert directions.deal(energies, {"large": 10, "small": 2}, 5) == {"large": 0, "small": 2}
    assert directions.deal(energies, {"large": 10, "small": 2}, 13) == {"large": 1, "small": 1}
    assert directions.deal(energies, {"large": 10, "small": 2}, 1) == {"large": 0, "small": 0}


# of a task: layers with groups and biases


@st.composite
def tasks(draw):
    """Layers, their free bases, and the inputs of a task, few or many."""
    seed = draw(st.integers(0, 10**6))
    layers, bases, inputs = [], {}, {}
    for number in range(draw(st.integers(1, 3))):
        groups, outputs, width = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 6))
        name, bias = f"layer{number}", draw(st.booleans())
        shape = torch.Size((groups * outputs, width))
        layer = Layer(name, f"{name}.weight", f"{name}.bias" if bias else None, shape, groups, 1, True)
        layers.append(layer)
        bases[name] = [
            orthonormal(layer.inputs, draw(st.integers(0, layer.inputs)), seed + 10 * number + group)
            for group in range(groups)
        ]
        for group in range(groups):
            inputs[f"{name}/{group}"] = normal(layer.inputs, draw(st.integers(0, 9)), seed=seed + 10 * number + group)
    return layers, bases, inputs


def chosen(case, own=None, free=None, room=0):
    layers, bases, inputs = case
    moments = {name: (columns @ columns.mT, columns.square().sum()) for name, columns in inputs.items()}
    return directions.choose(bases, moments, layers, OwnConfig(**own or {}), FreeConfig(**free or {}), room)


@given(tasks(), st.integers(0, 7))
def test_own_directions_are_the_best_of_the_core(case, count):
    _, bases, inputs = case
    found = chosen(case, own={"directions": count})
    assert found.keys() == {OWN + name for name in inputs}
    for name, free in memory_of(bases).items():
        own, moment = found[OWN + name], inputs[name] @ inputs[name].mT
        assert own.shape[1] == min(count, len(free) - free.shape[1])
        assert_orthonormal(own)
        torch.testing.assert_close(free.mT @ own, torch.zeros(free.shape[1], own.shape[1]).double(), **TIGHT)
        outside = torch.eye(len(free), dtype=torch.float64) - free @ free.mT
        most = torch.linalg.eigvalsh(outside @ moment @ outside).flip(0)[: own.shape[1]].sum()
        assert energy(own, moment) == pytest.approx(float(most), abs=1e-9)


@given(tasks(), st.integers(0, 7))
def test_free_directions_are_the_best_of_what_is_free(case, count):
    _, bases, inputs = case
    found = chosen(case, free={"directions": count})
    for name, free in memory_of(bases).items():
        best, moment = found[FREE + name], inputs[name] @ inputs[name].mT
        assert best.shape[1] == min(count, free.shape[1])
        assert_orthonormal(best)
        torch.testing.assert_close(free @ (free.mT @ best), best, **TIGHT)
        inside = free @ free.mT
        most = torch.linalg.eigvalsh(inside @ moment @ inside).flip(0)[: best.shape[1]].sum()
        assert energy(best, moment) == pytest.approx(float(most), abs=1e-9)
        assert found[OWN + name].shape[1] == 0


@given(tasks(), st.integers(0, 120))
def test_a_share_keeps_within_its_room_and_takes_only_what_occurs(case, room):
    layers, bases, inputs = case
    found = chosen(case, own={"share": 0.5}, room=room)
    sizes = {layer.name: layer.inputs + layer.outputs for layer in layers}
    own = {name: found[OWN + name] for name in inputs}
    spent = sum(sizes[name.rpartition("/")[0]] * basis.shape[1] for name, basis in own.items())
    assert spent <= room
    for name, free in memory_of(bases).items():
        assert_orthonormal(own[name])
        assert own[name].shape[1] <= len(free) - free.shape[1]
        torch.testing.assert_close(
            free.mT @ own[name], torch.zeros(free.shape[1], own[name].shape[1]).double(), **TIGHT
        )
    everything = chosen(case, own={"share": 0.5}, room=10**6)
    for name, free in memory_of(bases).items():
        there = int(torch.linalg.matrix_rank(directions.core(free).mT @ inputs[name])) if inputs[name].numel() else 0
        assert everything[OWN + name].shape[1] >= there


def test_inputs_that_are_not_finite_are_an_error_that_names_the_layer():
    layer = Layer("a.b", "a.b.weight", None, torch.Size((2, 3)), 1, 1, True)
    spoilt = torch.full((3, 4), float("nan"), dtype=torch.float64)
    with pytest.raises(RunFailed, match=r"own: the inputs of layer 'a\.b' are not finite"):
        chosen(([layer], {"a.b": [orthonormal(3, 1, 0)]}, {"a.b/0": spoilt}), own={"directions": 1})


@given(tasks(), st.integers(0, 3), st.none() | st.integers(0, 3))
def test_space_is_what_it_uses_of_the_free_then_its_own(case, own_count, free_count):
    layers, bases, _ = case
    memory = memory_of(bases)
    assert directions.space(memory, {}) == memory  # the very tensors
    found = chosen(case, own={"directions": own_count}, free={"directions": free_count})
    space = directions.space(memory, found)
    assert space.keys() == memory.keys()
    own = directions.own_of(found)
    for name, basis in space.items():
        used = found.get(FREE + name, memory[name])
        assert torch.equal(basis[:, : used.shape[1]], used)
        assert basis.shape[1] == used.shape[1] + (own[name].shape[1] if name in own else 0)
        assert_orthonormal(basis)
    for prefix in (OWN, FREE):
        counts = directions.counts(found, prefix)
        for layer in layers:
            groups = [
                found[f"{prefix}{layer.name}/{g}"] for g in range(layer.groups) if f"{prefix}{layer.name}/{g}" in found
            ]
            assert counts.get(layer.name, 0) == sum(basis.shape[1] for basis in groups)


# what a task keeps


def parameters(layers, seed):
    values = {}
    for layer in layers:
        values |= layer.split(normal(layer.groups, layer.outputs, layer.inputs, seed=seed))
    return values


def learned(case, own_count, seed):
    """An anchor, and what a task made of it inside its space."""
    layers, bases, _ = case
    found, anchor = chosen(case, own={"directions": own_count}), parameters(case[0], seed)
    space, after = directions.space(memory_of(bases), found), {}
    for layer in layers:
        chart = charts.chart(layer.join(anchor), [space[f"{layer.name}/{group}"] for group in range(layer.groups)])
        after |= layer.split(charts.decode(normal(charts.size(chart), seed=seed + 1), chart))
    return directions.own_of(found), anchor, after


@given(tasks(), st.integers(0, 3), st.integers(0, 10**6))
def test_model_and_taken_out_undo_each_other(case, own_count, seed):
    layers = case[0]
    own, anchor, after = learned(case, own_count, seed)
    body, coordinates = taken_out(layers, after, anchor, own)
    assert coordinates.keys() == own.keys()
    head = {"head": normal(2, 3, seed=seed)}
    kept = Kept(head, {}, own, coordinates)
    model = kept.model(layers, body)
    assert model.keys() == {*after, "head"}
    assert torch.equal(model["head"], head["head"])
    for name, value in after.items():
        torch.testing.assert_close(model[name], value, **TIGHT)
    again, same = taken_out(layers, model, anchor, own)
    for name, value in body.items():
        torch.testing.assert_close(again[name], value, **TIGHT)
    for name, value in coordinates.items():
        torch.testing.assert_close(same[name], value, **TIGHT)


@given(tasks(), st.integers(0, 3), st.integers(0, 10**6))
def test_inside_the_own_directions_what_is_left_is_the_anchor(case, own_count, seed):
    """And outside of them it is what was learned: what all share changed in free directions alone."""
    layers, bases, _ = case
    own, anchor, after = learned(case, own_count, seed)
    body, _ = taken_out(layers, after, anchor, own)
    for layer in layers:
        left, before, new = (layer.join(values) for values in (body, anchor, after))
        for group in range(layer.groups):
            basis = own.get(f"{layer.name}/{group}", torch.zeros(layer.inputs, 0).double())
            torch.testing.assert_close(left[group] @ basis, before[group] @ basis, **TIGHT)
            free, change = bases[layer.name][group], left[group] - before[group]
            torch.testing.assert_close(change @ free @ free.mT, change, **TIGHT)
            torch.testing.assert_close(left[group] @ free, new[group] @ free, **TIGHT)


@given(tasks(), st.integers(0, 10**6))
def test_without_own_directions_nothing_is_taken_and_nothing_added(case, seed):
    layers, after = case[0], parameters(case[0], seed)
    body, coordinates = taken_out(layers, after, parameters(layers, seed + 1), {})
    assert coordinates == {}
    model = Kept({}).model(layers, body)
    assert all(value is after[name] is model[name] for name, value in body.items())  # the very tensors
