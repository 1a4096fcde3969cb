"""Peers that miss nobody follow the trajectory of agents in one process, and send what is counted there."""

import subprocess
from functools import cache

import pytest
import torch

from codecl.peers import fleet
from codecl.peers.decisions import PeersConfig
from codecl.runs.config import validate
from tests.launching import PYTHON, free_port, variables
from tests.parity.spread import CASES, story
from tests.problems import furthest

pytest.importorskip("grpc")

EIGHT = ["one ring", "all torus"]
FOUR = ["four", "four all"]
SIZES = {4: FOUR, 5: ["one way", "combine", "random"], 8: EIGHT}
simulated = cache(story)


@pytest.fixture(scope="module", params=[4, 5, pytest.param(8, marks=pytest.mark.long)], ids="{} peers".format)
def peers(request, tmp_path_factory):
    """What each peer wrote down, by case."""
    folder, count = tmp_path_factory.mktemp("peers"), request.param
    for case in SIZES[count]:
        fields = {key: CASES[case][key] for key in ("agents", "topology")}
        addresses = [("127.0.0.1", free_port()) for _ in range(count)]
        fleet.init(validate({"preset": "fit", **fields}), addresses, PeersConfig(deadline=None), folder / case)
    command = [*PYTHON, "-m", "tests.parity.peered", str(folder)]
    env = variables(0, 1, 1)
    processes = [
        subprocess.Popen([*command, str(agent), *SIZES[count]], env=env, cwd=folder, stderr=subprocess.PIPE, text=True)
        for agent in range(count)
    ]
    said = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * count, said
    return [torch.load(folder / f"{agent}.pt", weights_only=True) for agent in range(count)]


def cases(peers):
    return [(case, [one[case] for one in peers], simulated(case)) for case in peers[0]]


def test_every_peer_follows_its_trajectory(peers):
    for case, found, expected in cases(peers):
        assert [one["missed"] for one in found] == [0] * len(found)
        assert len(expected["steps"]) >= 8
        for number, step in enumerate(expected["steps"]):
            ours = [one["steps"][number][0] for one in found]
            assert furthest(ours, step) < 1e-8, (case, number)


def test_peers_together_send_the_bytes_of_a_simulated_run(peers):
    for case, found, expected in cases(peers):
        for number, fact in enumerate(expected["facts"]):
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
