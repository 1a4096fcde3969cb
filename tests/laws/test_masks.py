"""The laws of sums under masks: exact, whoever takes part; what a single agent sends is noise to all who lack a key."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codecl.errors import ConfigError, RunFailed
from codecl.exchange import Simulated, masks, topology
from codecl.exchange.topology import TopologyConfig
from codecl.runs.grid import preset, resolve
from codecl.space import fixed_point
from tests.problems import CPU

Values = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5)


def hidden(parts, keys, context=b"a"):
    """What each agent sends: its numbers under masks."""
    publics = {agent: masks.public(key) for agent, key in keys.items()}
    return {agent: masks.masked(part, agent, keys[agent], publics, context) for agent, part in parts.items()}


def added(parts):
    return {name: sum(part[name] for part in parts) for name in parts[0]}


@settings(deadline=None)
@given(st.sets(st.integers(0, 40), min_size=1, max_size=6), Values, st.integers(0, 1000))
def test_masked_sums_equal_plain_sums_exactly(agents, first, seed):
    """Any agents, any numbers, also those whose sum goes round."""
    random = np.random.default_rng(seed)
    parts = {
        agent: {"b": torch.tensor(first), "a": torch.from_numpy(random.integers(-(2**63), 2**63 - 1, (2, 3)))}
        for agent in agents
    }
    sent = hidden(parts, {agent: masks.new_key() for agent in agents})
    total, plain = added([*sent.values()]), added([*parts.values()])
    assert all(torch.equal(total[name], plain[name]) for name in ("a", "b"))


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(0, 1000), st.floats(1e-3, 1e9))
def test_the_sum_in_fixed_point_is_that_of_the_numbers_to_half_a_unit_an_agent(agents, seed, size):
    random = np.random.default_rng(seed)
    rows = [torch.from_numpy(np.append(random.normal(size=6), 10.0) * size) for _ in range(agents)]
    exchange = Simulated(topology.build(TopologyConfig(name="ring"), agents, 0), torch.float64, CPU)
    found = exchange.pool(0, [fixed_point.fixed({"layer/0": row}, agents) for row in rows])
    wanted = torch.stack(rows).sum(0)
    error = (fixed_point.floating(found)["layer/0"] - wanted).abs().max()
    assert error <= agents * fixed_point.UNIT / 2 + 1e-12 * wanted.abs().max()


@pytest.mark.parametrize("agents", [3, 4, 7, 4096])
def test_numbers_that_are_not_refused_do_not_overflow(agents):
    largest = fixed_point.limit(agents) - 1.001
    row = torch.tensor([-largest, largest, largest, largest], dtype=torch.float64)
    one = fixed_point.fixed({"layer/0": row}, agents)["layer/0"]
    assert max(abs(number) for number in one.tolist()) * agents < 2**63
    with pytest.raises(RunFailed, match=r"^growth.pool: .* moment of layer 'layer' is .*; use plain, or fewer \S+$"):
        fixed_point.fixed({"layer/0": 1.01 * row + 2}, agents)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_refused(bad):
    with pytest.raises(RunFailed, match=r"growth\.pool"):
        fixed_point.fixed({"layer/0": torch.tensor([1.0, bad, 1.0, 3.0])}, 4)


def test_numbers_that_units_are_too_coarse_for_are_refused():
    row = torch.tensor([1.0, 0.5, 1.0, 2.0], dtype=torch.float64)
    assert fixed_point.fixed({"layer/0": row * 1e-2}, 4)
    assert fixed_point.fixed({"layer/0": row * 0}, 4)["layer/0"].tolist() == [0] * 4
    with pytest.raises(RunFailed, match=r"the energy of layer 'layer' is only 2e-08 in 2 directions; use plain"):
        fixed_point.fixed({"layer/0": row * 1e-8}, 4)


def chi_square(numbers):
    """Of the bytes of numbers, against all alike: 255 degrees of freedom, so 255 ± 23."""
    seen = np.bincount(numbers.contiguous().view(torch.uint8).numpy(), minlength=256)
    wanted = seen.sum() / 256
    return float(((seen - wanted) ** 2 / wanted).sum())


def test_what_an_agent_sends_looks_uniform_and_unmasking_needs_a_key_of_the_pair():
    parts = {agent: {"row": torch.full((20_000,), agent + 1)} for agent in range(3)}
    keys = {agent: masks.new_key() for agent in parts}
    sent = hidden(parts, keys)
    assert chi_square(parts[0]["row"]) > 10_000
    assert all(150 < chi_square(part["row"]) < 400 for part in sent.values())
    publics = {agent: masks.public(key) for agent, key in keys.items()}

    def unmasked(agent, known):
        """Agent's numbers, by those who know the keys of some others."""
        row = sent[agent]["row"].numpy().view(np.uint64)
        for other in known:
            stream = masks.keystream(keys[other], publics[agent], b"a", (min(agent, other), max(agent, other)), 20_000)
            row = row - stream if other > agent else row + stream
        return torch.from_numpy(row.view(np.int64).copy())

    assert torch.equal(unmasked(0, (1, 2)), parts[0]["row"])  # all others together
    for known in ((1,), (2,)):
        assert 150 < chi_square(unmasked(0, known)) < 400
    strangers = {**keys, 1: masks.new_key(), 2: masks.new_key()}
    again = hidden(parts, strangers)
    assert not torch.equal(added([*sent.values()])["row"], added([sent[0], again[1], again[2]])["row"])


def test_another_context_has_other_masks():
    """The same agents, keys and numbers: nothing of one attempt tells of the next."""
    parts = {agent: {"row": torch.zeros(20_000, dtype=torch.int64)} for agent in range(3)}
    keys = {agent: masks.new_key() for agent in parts}
    first, second = hidden(parts, keys, b"attempt 0"), hidden(parts, keys, b"attempt 1")
    assert 150 < chi_square(first[0]["row"] - second[0]["row"]) < 400


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"growth": {"pool": "masked"}}, "growth.subspace_from=all"),
        ({"growth": {"pool": "masked", "subspace_from": "all"}, "agents": 2}, "masked needs 3 agents or more"),
    ],
)
def test_what_masks_cannot_hide_is_refused(fields, line):
    with pytest.raises(ConfigError, match=line) as refused:
        resolve(preset("quickstart"), fields)
    assert str(refused.value).startswith("growth.pool")
    assert "\n" not in str(refused.value)
