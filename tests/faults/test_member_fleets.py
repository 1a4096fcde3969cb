"""Fleets of real processes in which one member is hostile, revoked or given a new key.

python -m tests.faults.test_member_fleets FILE …     `codecl agent FILE …` that is busy from some step on, for ever
"""

import shutil
import sys
import threading
import time
from contextlib import suppress

import pytest

pytest.importorskip("grpc")

from cryptography.hazmat.primitives import serialization

from codecl import exchange
from codecl.cli import main
from codecl.peers import authority
from codecl.peers.decisions import PeersConfig
from codecl.peers.node import Node
from codecl.runs.grid import preset, resolve
from tests.faults.test_members import Attack
from tests.fleets import LocalFleet

RULES = PeersConfig(deadline=1.0, silence=3.0, meet=5, patience=4)
HOSTILE, VICTIM, GOOD = 1, 2, (0, 2, 3)
BUSY = (sys.executable, "-W", "error", "-m", "tests.faults.test_member_fleets")


def config(tasks=2, epochs=4):
    fields = {"agents": 4, "topology": {"name": "ring"}, "seed": 1, "method": {"name": "codec"}}
    return resolve(preset("quickstart"), {**fields, "data": {"tasks": tasks}, "train": {"epochs": epochs}})


def busy_agent(*arguments):
    """It trains a while, then gives signs of life and says that it is busy, and nothing else."""
    send = Node._send_row

    def sends(self, row, kind, full_D=None):
        if self.position.step >= 8:
            self.busy = True
            threading.Event().wait()
        return send(self, row, kind, full_D)

    Node._send_row = sends
    sys.argv[1:] = ["agent", *arguments]
    main()


def secrets_of(folder):
    """What nobody should find: the keys of a fleet, as text and as numbers."""
    found = []
    for path in folder.rglob("key.pem"):
        text = path.read_bytes()
        key = serialization.load_pem_private_key(text, None)
        number = key.private_numbers().private_value
        body = b"".join(text.splitlines()[1:-1])
        found += [body, body[30:90], number.to_bytes(32, "big"), f"{number:x}".encode(), str(number).encode()]
    return found


def holding(folder, secrets):
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "key.pem"]
    return [path for path in files if any(secret in path.read_bytes() for secret in secrets)]


def states(fleet, agent):
    return [event["state"] for event in fleet.events(agent) if event["kind"] == "member" and event["agent"] == HOSTILE]


def models(fleet, agents):
    from safetensors.torch import load_file

    return {exchange.digest(load_file(fleet.run_folder(agent) / "model" / "body.safetensors")) for agent in agents}


@pytest.mark.alone
@pytest.mark.slow
def test_a_fleet_goes_on_without_a_revoked_member_and_takes_it_back_renewed(tmp_path):
    """The list is copied to one agent, the new key to the one that it is for; nobody is started again. No key is in
    anything that the fleet wrote."""
    fleet = LocalFleet(config(epochs=12), PeersConfig(deadline=1.0, silence=20, meet=60), tmp_path)
    folder = tmp_path / "fleet"
    known, secrets = authority.open_authority(folder), secrets_of(folder)
    kept = tmp_path / "kept"
    shutil.copytree(folder, kept)  # what the authority does is done elsewhere
    elsewhere = authority.open_authority(kept)
    with fleet:
        fleet.until(0, "epoch", 0, 2)
        listed = authority.revoke(elsewhere, [HOSTILE])[0]
        began = time.monotonic()
        shutil.copy(listed, folder / "agent-3" / authority.REVOKED)
        for agent in GOOD:
            while "dead" not in states(fleet, agent):
                assert time.monotonic() - began < 10
                time.sleep(0.02)
        assert "revoked" in states(fleet, 0)
        authority.renew(elsewhere, [HOSTILE])
        secrets += secrets_of(kept)
        for name in ("key.pem", "certificate.pem"):
            shutil.copy(kept / f"agent-{HOSTILE}" / name, folder / f"agent-{HOSTILE}" / name)
        codes = fleet.finished(200)
        logs = {agent: fleet.log(agent) for agent in codes}
        assert set(codes.values()) == {4}, logs
        assert not any("Traceback" in log for log in logs.values()), logs
        assert "alive" in states(fleet, 0)
        assert "a new certificate is taken up" in logs[HOSTILE]
        assert len(models(fleet, codes)) == 1
    assert known.revoked.number == 0  # the folder here was not touched
    assert len(secrets) >= 5 * 6
    assert holding(tmp_path, secrets) == []
    (tmp_path / "leak").write_bytes(b"x" + secrets[1] + b"y")
    assert holding(tmp_path, secrets) == [tmp_path / "leak"]


@pytest.mark.long
def test_a_fleet_with_a_member_that_is_busy_for_ever_ends(tmp_path):
    """It costs each task `patience` and as long again as the task took, at most, and once more where it should grow; no
    good agent is given up because of it."""
    fleet, began = LocalFleet(config(), RULES, tmp_path), time.monotonic()
    commands = dict.fromkeys(range(4), LocalFleet.command) | {HOSTILE: BUSY}
    start = fleet.start

    def each(agent):
        fleet.command = commands[agent]
        start(agent)

    fleet.start = each
    with fleet:
        for agent in GOOD:
            fleet.processes[agent].wait(120)
        took = time.monotonic() - began
        logs = {agent: fleet.log(agent) for agent in GOOD}
        assert {fleet.processes[agent].returncode for agent in GOOD} == {4}, logs
        assert len(models(fleet, GOOD)) == 1
        why = [e.get("why") or "" for e in fleet.events(VICTIM) if e["kind"] == "member" and e["agent"] == HOSTILE]
        assert any("peers.patience" in one for one in why), why
        for agent in GOOD:
            gone = [event["agent"] for event in fleet.events(agent) if event.get("state") == "gone"]
            assert set(gone) <= {HOSTILE}, logs
        times = [event["time"] for event in fleet.events(VICTIM) if event["kind"] in ("task", "flood", "eval")]
    spent = times[-1] - times[0]
    print(f"busy: {took:.1f} s, of which {spent:.1f} s in two tasks")
    assert spent < 2 * 2 * (RULES.patience + 10), spent  # a task takes less than 10 s without it


@pytest.mark.long
@pytest.mark.parametrize("attack", ["connections", "streams", "slow", "huge", "other", "lists"])
def test_a_fleet_under_attack_ends(attack, tmp_path):
    """In place of agent 1 there is somebody with its key who does nothing but attack agent 2."""
    fleet, began = LocalFleet(config(), RULES, tmp_path), time.monotonic()
    start = fleet.start
    fleet.start = lambda agent: start(agent) if agent != HOSTILE else None
    with fleet:
        attacker, ends = Attack(tmp_path / "fleet", HOSTILE, VICTIM), threading.Event()

        def attacks():
            with suppress(OSError, ValueError):  # it is killed in the end
                while not ends.is_set():
                    attacker.say(attack)

        while VICTIM not in fleet.processes or not fleet.events(VICTIM):
            time.sleep(0.1)
        time.sleep(1)
        thread = threading.Thread(target=attacks, daemon=True)
        thread.start()
        codes = fleet.finished(150)
        took = time.monotonic() - began
        ends.set()
        attacker.process.kill()
        thread.join(10)
        attacker.kill()
        logs = {agent: fleet.log(agent) for agent in codes}
        assert set(codes.values()) <= {0, 4}, logs
        assert not any("Traceback" in log for log in logs.values()), logs
        assert len(models(fleet, GOOD)) == 1
        scores = [fleet.metrics(agent)["acc"] for agent in GOOD]
    print(f"{attack}: {took:.1f} s, {scores}")
    assert took < 90


if __name__ == "__main__":
    busy_agent(*sys.argv[1:])
