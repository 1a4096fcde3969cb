"""Agents spread over processes follow the trajectory of agents in one, and send what is counted there."""

from functools import cache

import pytest
import torch

from codecl.exchange import topology
from codecl.exchange.cluster import blocks
from tests.launching import run
from tests.parity.spread import CASES, story
from tests.problems import config, furthest

EIGHT = [case for case, fields in CASES.items() if fields["agents"] == 8]
FIVE = [case for case, fields in CASES.items() if fields["agents"] == 5]
SIZES = {1: EIGHT, 2: EIGHT, 3: FIVE, 4: EIGHT, 8: EIGHT}
simulated = cache(story)


LONG = {4, 8}


def sizes():
    return [pytest.param(size, marks=pytest.mark.long if size in LONG else ()) for size in SIZES]


@pytest.fixture(scope="module", params=sizes(), ids="{} ranks".format)
def ranks(request, tmp_path_factory):
    """What each rank wrote down, by case."""
    folder = tmp_path_factory.mktemp("ranks")
    done = run(request.param, ["-m", "tests.parity.spread", str(folder), *SIZES[request.param]], folder)
    assert [code for code, *_ in done] == [0] * request.param, done
    assert all(errors == "" for _, _, errors in done), done
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(request.param)]


def cases(ranks):
    return [(case, [rank[case] for rank in ranks], simulated(case)) for case in ranks[0]]


def test_every_agent_follows_its_trajectory(ranks):
    for case, found, expected in cases(ranks):
        assert [agent for rank in found for agent in rank["agents"]] == list(range(CASES[case]["agents"]))
        assert len(expected["steps"]) >= 8
        for number, step in enumerate(expected["steps"]):
            ours = [agent for rank in found for agent in rank["steps"][number]]
            assert furthest(ours, step) < 1e-10, (case, number)


def same(ours, theirs):
    """Equal counts and names, equal numbers up to rounding."""
    if isinstance(theirs, dict):
        return set(ours) == set(theirs) and all(same(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return ours == (pytest.approx(theirs, rel=1e-9, abs=1e-12) if isinstance(theirs, float) else theirs)


def test_every_rank_sees_the_facts_of_a_simulated_run_with_the_same_bytes(ranks):
    for case, found, expected in cases(ranks):
        for rank in found:
            for ours, theirs in zip(rank["facts"], expected["facts"], strict=True):
                differs = {"seconds", "digest"}  # rounding differs, so digests do
                assert same(*({k: v for k, v in one.items() if k not in differs} for one in (ours, theirs))), case
    assert any(fact["bytes"] for fact in expected["facts"] if fact["kind"] == "flood")


def far(ours, theirs):
    """The largest difference; a basis may turn inside its space, where rounding decides between equal eigenvalues."""
    weights = [float((ours["weights"][name] - value).abs().max()) for name, value in theirs["weights"].items()]
    pairs = [(ours["memory"][name], value) for name, value in theirs["memory"].items()]
    return max(weights + [float((a @ a.mT - b @ b.mT if a.ndim == 2 else a - b).abs().max()) for a, b in pairs])


def test_everyone_holds_what_was_flooded(ranks):
    for case, found, expected in cases(ranks):
        digests = [[fact.get("digest") for fact in rank["facts"]] for rank in found]
        assert all(rank == digests[0] for rank in digests)
        assert len(set(digests[0])) == 3  # one a task, and none
        for rank in found:
            for ours, first, theirs in zip(rank["flooded"], found[0]["flooded"], expected["flooded"], strict=True):
                for part in ("weights", "memory"):
                    assert set(ours[part]) == set(theirs[part])
                    assert all(torch.equal(ours[part][name], value) for name, value in first[part].items())
                assert far(ours, theirs) < 1e-10, case


def test_only_rows_that_another_rank_hears_leave_and_each_once(ranks):
    for case, found, _ in cases(ranks):
        settings = config(**CASES[case])
        graph = topology.build(settings.topology, settings.agents, settings.seed)
        spread = blocks(graph.agents, len(ranks))
        for rank, (mine, report) in enumerate(zip(spread, found, strict=True)):
            others = [block for number, block in enumerate(spread) if number != rank]
            needed = sum(any((j, i) in graph.edges for i in block) for block in others for j in mine)
            assert report["bytes"] == needed * 10 * 8, case
