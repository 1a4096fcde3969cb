"""What an agent has against bases that another grew: nothing against what fits, something against every lie."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codecl.exchange.base import Votes, counted
from codecl.space import chart as charts
from codecl.space.review import Choice, choice_objection, energy_in, growth_objection, misfit
from codecl.train.review import weights_objection
from tests.laws.test_chart import generator, orthonormal

SLACK = 1.5


@st.composite
def looks(draw):
    """(a free basis, the threshold, moments of two halves of an agent's images, those of another's)."""
    inputs = draw(st.integers(2, 12))
    free, seed = draw(st.integers(1, inputs)), draw(st.integers(0, 10**6))
    old = orthonormal(inputs, free, seed)
    spectrum = 2.0 ** -torch.arange(inputs, dtype=torch.float64)
    images = torch.randn(3, inputs, 40, dtype=torch.float64, generator=generator(seed + 1)) * spectrum[:, None]
    return old, draw(st.floats(0.5, 1.0)), *(charts.moment(columns, old) for columns in images)


@settings(deadline=None)
@given(looks())
def test_nobody_objects_to_what_it_grew_itself(case):
    old, threshold, own, fresh, _ = case
    grown = charts.grow(old, *own, threshold)
    assert growth_objection(old, grown.float(), own, fresh, threshold, SLACK) == ""


@settings(deadline=None)
@given(looks(), st.floats(1.05, 4))
def test_nobody_objects_to_what_keeps_enough_in_few_directions(case, slack):
    """Enough: all but 1 - ε of the energy, or a slack-th of what one's own growth would keep."""
    old, threshold, own, fresh, other = case
    theirs = charts.grow(old, *other, threshold)
    before, left, left_by_own = (energy_in(old, b, fresh) for b in (old, theirs, charts.grow(old, *own, threshold)))
    enough = left <= 1 - threshold or before - left >= (before - left_by_own) / slack
    few = theirs.shape[1] >= charts.grow(old, *own, 1 - (1 - threshold) / 4).shape[1]
    if enough and few:
        assert growth_objection(old, theirs, own, fresh, threshold, slack) == ""


@settings(deadline=None)
@given(looks())
def test_what_the_core_keeps_and_what_is_left_is_all(case):
    """Energy inside the kept part and the new core add up; a growth leaves at most 1 - ε of the images it was from."""
    old, threshold, own, _, _ = case
    new = charts.grow(old, *own, threshold)
    taken = energy_in(old, old, own) - energy_in(old, new, own)
    assert taken >= -1e-9
    assert energy_in(old, new, own) <= 1 - threshold + 1e-9


@pytest.fixture
def seen():
    """A layer of 30 inputs of which 20 are free, with images of an agent whose energy falls off; ε is 0.95."""
    old = orthonormal(30, 20, 3)
    spread = old @ torch.diag(0.8 ** torch.arange(20, dtype=torch.float64)) @ old.mT
    own, fresh, other = (
        charts.moment(spread @ torch.randn(30, 200, dtype=torch.float64, generator=generator(seed)), old)
        for seed in (1, 2, 3)
    )
    return old, own, fresh, charts.grow(old, *other, 0.95)


def test_what_another_honest_agent_grew_is_taken(seen):
    old, own, fresh, theirs = seen
    assert 0 < theirs.shape[1] < 20
    assert growth_objection(old, theirs.float(), own, fresh, 0.95, SLACK) == ""


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        (lambda old, theirs: old, "open to change"),
        (lambda old, theirs: old @ orthonormal(20, theirs.shape[1], 9), "open to change"),
        (lambda old, theirs: theirs[:, :0], "leaves 0 directions free"),
        (lambda old, theirs: orthonormal(30, theirs.shape[1], 9), "reaches out"),
        (lambda old, theirs: theirs * 1.01, "not orthonormal"),
        (lambda old, theirs: theirs * float("nan"), "not finite"),
        (lambda old, theirs: theirs[:-1], "shape"),
        (lambda old, theirs: theirs[:, 0], "shape"),
        (lambda old, theirs: torch.cat([old, old[:, :1]], 1), "shape"),
        (lambda old, theirs: torch.arange(5), "shape"),
    ],
)
def test_every_lie_about_a_growth_is_found(seen, lie, why):
    old, own, fresh, theirs = seen
    assert why in growth_objection(old, lie(old, theirs), own, fresh, 0.95, SLACK)


def test_tokens():
    old, counts = torch.tensor([1, 3, 4, 6, 9]), torch.tensor([50.0, 30, 1, 1, 1])
    moment = counts.double(), counts.double().sum()
    grown = charts.grow(old, *moment, 0.95)
    assert grown.tolist() == [4, 6, 9]
    assert growth_objection(old, grown, moment, moment, 0.95, SLACK) == ""
    assert "open" in growth_objection(old, old, moment, moment, 0.95, SLACK)
    for wrong in (torch.tensor([4, 5]), torch.tensor([4, 4]), torch.tensor([4.0]), torch.tensor([[4]])):
        assert "tokens" in growth_objection(old, wrong, moment, moment, 0.95, SLACK)


def test_directions_of_a_task():
    """Inside the space where they should be, and about as good as one's own."""
    space, everything = orthonormal(10, 6, 1), torch.eye(10, dtype=torch.float64)
    columns = space @ torch.diag(0.5 ** torch.arange(6, dtype=torch.float64)) @ torch.eye(6, dtype=torch.float64)
    fresh = charts.moment(columns, everything)

    def found(chosen, own=space[:, :2]):
        return choice_objection({"free/fc/0": Choice(chosen, own, space, everything, fresh)}, SLACK)

    assert found(space[:, :2]) == ""
    assert found(space[:, :1]) == ""  # it holds three quarters, which is more than two thirds
    assert "hold" in found(space[:, 4:])
    assert "reaches out" in found(orthonormal(10, 2, 5))
    assert "orthonormal" in found(space[:, [0, 0]])
    assert misfit(space, space[:, :0]) == ""


def test_weights_are_those_that_agreement_leaves():
    first = {"fc": torch.zeros(4)}
    own = {"weights/fc": torch.ones(4), "own/fc/0": torch.ones(4), "weights/bn.moments": torch.ones(4)}
    assert weights_objection(own, own, first, 0.02) == ""
    near = {name: value + 0.01 for name, value in own.items()}
    assert weights_objection(near, own, first, 0.02) == ""
    for name in ("weights/fc", "own/fc/0"):
        far = {**own, name: own[name] + torch.tensor([0.1, 0, 0, 0])}
        assert "agreement" in weights_objection(far, own, first, 0.02)


@given(st.lists(st.sampled_from(["", "why not", "ä" * 150]), min_size=1, max_size=9))
def test_what_was_flooded_stands_unless_more_than_half_object(objections):
    votes = counted(objections, lambda rows: rows)
    assert set(votes.objections) == {agent for agent, text in enumerate(objections) if text}
    assert all(objections[agent].startswith(text) for agent, text in votes.objections.items())
    assert votes.refused == (sum(map(bool, objections)) > len(objections) / 2)
    assert not Votes(2, {0: "no"}).refused
