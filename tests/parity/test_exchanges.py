"""Agents spread over ranks or peers follow the trajectory of agents in one process, and send what is counted there."""

import subprocess
from functools import cache

import pytest
import torch

from codecl.exchange import topology
from codecl.exchange.cluster import blocks
from codecl.runs.config import validate
from tests.launching import PYTHON, run, variables
from tests.parity.spread import CASES, openings, story
from tests.problems import config, furthest

EIGHT = [case for case, fields in CASES.items() if fields["agents"] == 8]
FIVE = [case for case, fields in CASES.items() if fields["agents"] == 5]
RANKS = {1: EIGHT, 2: [*EIGHT, "four in parts", "four quasi", "four unequal"], 3: FIVE, 4: EIGHT, 8: EIGHT}
PEERS = {
    4: [
        "four",
        "four adamw",
        "four diffusion",
        "four quasi",
        "four tracking",
        "four rounds",
        "four tracking rounds",
        "four one peer",
        "four one peer tracking",
        "four one peer in eight",
        "four gossiped norms",
        "four clipped",
        "four and a liar",
        "four votes",
        "four all",
        "four unequal",
        "four masked",
        "own four",
        "own four all",
        "four in eight",
        "four in four",
        "four in bfloat16",
        "four in parts",
    ],
    5: ["one way", "combine", "random", "four bits"],
    8: ["one ring", "all torus", "eight bits"],
}
simulated = cache(story)


def sizes(*short, long):
    return [*short, *(pytest.param(size, marks=pytest.mark.long) for size in long)]


@pytest.fixture(scope="module", params=sizes(1, 3, long=[2, 4, 8]), ids="{} ranks".format)
def ranks(request, tmp_path_factory):
    """What each rank wrote down, by case."""
    folder, size = tmp_path_factory.mktemp("ranks"), request.param
    done = run(size, ["-m", "tests.parity.spread", "ranks", str(folder), *RANKS[size]], folder)
    assert [code for code, *_ in done] == [0] * size, done
    assert all(errors == "" for _, _, errors in done), done
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(size)]


@pytest.fixture(scope="module", params=sizes(4, long=[5, 8]), ids="{} peers".format)
def peers(request, tmp_path_factory):
    """What each peer wrote down, by case."""
    pytest.importorskip("grpc")
    from codecl.peers import fleet
    from codecl.peers.decisions import PeersConfig
    from codecl.peers.local import free_ports

    folder, size = tmp_path_factory.mktemp("peers"), request.param
    for case in PEERS[size]:
        fields = {key: CASES[case][key] for key in ("agents", "topology")}
        addresses = [("127.0.0.1", port) for port in free_ports(size)]
        fleet.init(validate({"preset": "fit", **fields}), addresses, PeersConfig(deadline=None), folder / case)
    command = [*PYTHON, "-m", "tests.parity.spread"]
    how = {"env": variables(0, 1, 1), "cwd": folder, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([*command, str(agent), str(folder), *PEERS[size]], **how) for agent in range(size)]
    said = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * size, said
    return [torch.load(folder / f"{agent}.pt", weights_only=True) for agent in range(size)]


def cases(processes):
    """(case, what each process saw of it, what a simulated run does)"""
    return [(case, [each[case] for each in processes], simulated(case)) for case in processes[0]]


def check_trajectory(processes, tolerance):
    for case, found, expected in cases(processes):
        assert [agent for each in found for agent in each["agents"]] == list(range(CASES[case]["agents"]))
        assert len(expected["steps"]) >= 8
        for number, step in enumerate(expected["steps"]):
            ours = [agent for each in found for agent in each["steps"][number]]
            assert furthest(ours, step) < tolerance, (case, number)


def test_every_agent_of_ranks_follows_its_trajectory(ranks):
    check_trajectory(ranks, 1e-10)


def test_every_peer_that_misses_nobody_follows_its_trajectory(peers):
    check_trajectory(peers, 1e-8)
    assert {each["missed"] for peer in peers for each in peer.values()} == {0}


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
        floods = [fact for fact in found[0]["facts"] if fact["kind"] in ("flood", "directions")]
        assert len(set(digests[0])) == len(floods) + 1  # one each, and none
        assert len(floods) == 2 + len(openings(case))
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
            needed = sum(any((j, i) in graph.edges_of(0) for i in block) for block in others for j in mine)
            assert report["bytes"] == needed * 10 * 8, case


def test_peers_together_send_the_bytes_of_a_simulated_run(peers):
    for case, found, expected in cases(peers):
        for number, fact in enumerate(fact for fact in expected["facts"] if fact["kind"] != "vote"):
            ours = [one["facts"][number] for one in found]
            assert {one["kind"] for one in ours} == {fact["kind"]}
            for what in {"bytes", "messages"} & set(fact):
                assert sum(one[what] for one in ours) == fact[what], (case, fact["kind"])


def test_links_carry_what_is_counted_and_little_more(peers):
    for case, found, expected in cases(peers):
        counted = sum(fact.get("bytes", 0) for fact in expected["facts"])
        sent = sum(link["sent"] for one in found for link in one["links"].values())
        received = sum(link["received"] for one in found for link in one["links"].values())
        assert sent == received == counted, case


def test_what_is_flooded_is_equal_at_all(peers):
    for case, found, expected in cases(peers):
        for number, flood in enumerate(expected["flooded"]):
            for one in found:
                assert furthest([one["flooded"][number]["weights"]], [flood["weights"]]) < 1e-8, case
