"""Keys that only their owner reads, certificates that are renewed and revoked, and what an agent believes meanwhile."""

import datetime
import io
import logging
import os
import shutil
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

pytest.importorskip("grpc")

from codecl.errors import ConfigError
from codecl.peers import authority, certificates, fleet, keyfiles, keys, revocations
from codecl.peers.agent import identity_of
from codecl.peers.decisions import PeersConfig
from codecl.peers.keys import Keys, Untrusted
from codecl.runs.config import validate

CONFIG = validate({"preset": "fit", "agents": 3, "topology": {"name": "ring"}})
ADDRESSES = [("127.0.0.1", 7700 + agent) for agent in range(3)]
PASSPHRASE = "correct horse"


@pytest.fixture
def folder(tmp_path):
    fleet.init(CONFIG, ADDRESSES, PeersConfig(), tmp_path / "fleet")
    return tmp_path / "fleet"


def member(folder, agent=0):
    return fleet.read(folder / f"agent-{agent}" / "agent.yaml")


def serial(one):
    return certificates.load(one.identity.certificate).serial_number


def refused(act, *arguments):
    with pytest.raises(ConfigError) as error:
        act(*arguments)
    said = str(error.value)
    assert "\n" not in said
    return said


# files


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o606])
def test_a_key_that_others_can_read_is_refused(folder, mode):
    path = folder / "agent-0" / "key.pem"
    path.chmod(mode)
    said = refused(member, folder)
    assert said == f"{path}: others can read this key (mode {mode:o}); chmod 600 {path}"
    path.chmod(0o400)
    assert member(folder).identity.agent == 0


def test_an_authoritys_key_that_others_can_read_is_refused(folder):
    path = folder / "authority" / "key.pem"
    path.chmod(0o644)
    assert refused(authority.open_authority, folder).endswith(f"chmod 600 {path}")


def test_a_key_is_its_owners_alone_from_the_moment_it_exists(folder, monkeypatch):
    """Whatever the umask: every file that is opened for a key is new, and made with the mode."""
    opened, real = [], os.open

    def spied(path, flags, mode=0o777, **more):
        handle = real(path, flags, mode, **more)
        if "key" in Path(path).name:
            opened.append((flags & os.O_EXCL, mode, stat.S_IMODE(os.fstat(handle).st_mode)))
        return handle

    monkeypatch.setattr(os, "open", spied)
    changed, chmod = [], os.chmod
    monkeypatch.setattr(
        os, "chmod", lambda path, *mode, **more: changed.append(path.name) or chmod(path, *mode, **more)
    )
    before = os.umask(0)
    try:
        authority.renew(authority.open_authority(folder))
    finally:
        os.umask(before)
    assert opened == [(os.O_EXCL, 0o600, 0o600)] * 3
    assert changed  # certificates and lists are for all to read
    assert not any("key" in name for name in changed)
    for path in folder.rglob("key.pem"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_key_that_cannot_be_written_leaves_the_old_one(folder, monkeypatch):
    path = folder / "agent-0" / "key.pem"
    before = path.read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        keyfiles.write_key(path, b"new")
    assert path.read_bytes() == before
    assert sorted(one.name for one in path.parent.iterdir() if "key" in one.name) == ["key.pem"]


# renewing


def test_renew_gives_new_keys_that_hold_a_year(folder):
    before = [member(folder, agent) for agent in range(3)]
    shared = (folder / "fleet.yaml").read_bytes()
    assert authority.renew(authority.open_authority(folder), [1]) == [folder / "agent-1"]
    after = [member(folder, agent) for agent in range(3)]
    assert after[1].identity.key != before[1].identity.key
    assert serial(after[1]) != serial(before[1])
    assert [after[agent] == before[agent] for agent in (0, 2)] == [True, True]
    left = certificates.load(after[1].identity.certificate).not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert 364 < left.days + 1 <= 365
    assert (folder / "fleet.yaml").read_bytes() == shared  # the others need nothing new
    authority.renew(authority.open_authority(folder))
    assert all(member(folder, agent).identity.key != after[agent].identity.key for agent in range(3))


def test_what_was_signed_before_a_renewal_still_stands(folder):
    old = identity_of(member(folder, 1))
    signature, other = old.sign(b"data"), identity_of(member(folder, 0))
    authority.renew(authority.open_authority(folder), [1])
    new = identity_of(member(folder, 1))
    for check in (old.check, new.check, other.check):
        assert check(1, b"data", signature)
        assert check(1, b"data", new.sign(b"data"))
        assert not check(2, b"data", signature)
        assert not check(1, b"date", signature)
        bare = certificates.sign(member(folder, 0).identity.key, b"data")
        assert not check(1, b"data", bare + member(folder, 1).identity.certificate)
    bare = certificates.sign(member(folder, 0).identity.key, b"data")
    assert other.check(0, b"data", bare)  # as in fleet.yaml


def test_an_agent_at_work_takes_up_a_new_key(folder, caplog):
    caplog.set_level(logging.INFO, "codecl.peers")
    ours = Keys(member(folder, 1))
    before = ours.identity
    assert ours.look() is False
    authority.renew(authority.open_authority(folder), [1])
    new = member(folder, 1).identity
    key = (folder / "agent-1" / "key.pem").read_bytes()
    keyfiles.write_key(folder / "agent-1" / "key.pem", before.key)  # one of the two is copied first
    ours.look()
    assert ours.identity is before
    keyfiles.write_key(folder / "agent-1" / "key.pem", key)
    ours.look()
    assert ours.identity == new
    assert "a new certificate is taken up" in caplog.text


class At(datetime.datetime):
    days = 0.0

    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.now(tz) + datetime.timedelta(days=cls.days)


@pytest.mark.parametrize(("days", "said"), [(330, ""), (336, " ends on "), (366, " ended on ")])
def test_an_agent_says_in_one_line_that_its_certificate_ends(folder, monkeypatch, caplog, days, said):
    ours = Keys(member(folder))
    caplog.clear()
    monkeypatch.setattr(At, "days", days)
    monkeypatch.setattr(keys, "datetime", SimpleNamespace(datetime=At, UTC=datetime.UTC))
    for _ in range(3):
        ours.look()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == bool(said)
    assert all(said in line and "`codecl peer renew`" in line for line in lines)


# revoking


def test_a_list_is_read_back_and_only_as_the_authority_signed_it(folder):
    ours = authority.open_authority(folder)
    made = revocations.write(7, {5: 1, 9: 2}, ours.certificate, ours.key)
    assert revocations.read(made.pem, ours.certificate) == made
    forged = revocations.write(8, {5: 1}, ours.certificate, certificates.new_key())
    for pem in (forged.pem, made.pem[:-40], b"", b"list", bytes(2 << 20)):
        with pytest.raises(ValueError, match=r"."):
            revocations.read(pem, ours.certificate)


def test_what_an_agent_was_ever_given_is_revoked(folder):
    ours, first = authority.open_authority(folder), serial(member(folder, 1))
    authority.renew(ours, [1])
    second = serial(member(folder, 1))
    files = authority.revoke(ours, [1])
    assert files == [folder / name / "revoked.pem" for name in ("authority", "agent-0", "agent-1", "agent-2")]
    assert (ours.revoked.number, ours.revoked.agents) == (1, {first: 1, second: 1})
    authority.renew(ours, [1])
    authority.revoke(ours, [2])
    assert ours.revoked.number == 2
    assert set(ours.revoked.agents.values()) == {1, 2}
    assert serial(member(folder, 1)) not in ours.revoked.agents
    said = refused(identity_of, member(folder, 2))
    assert "certificate.pem: is revoked; run `codecl peer renew`" in said


def test_a_newer_list_stands_and_who_has_a_new_certificate_is_back(folder):
    """As neighbours pass it on; nothing is read from files here."""
    ours = authority.open_authority(folder)
    me = Keys(member(folder, 0))
    old = certificates.load(member(folder, 1).identity.certificate)
    me.believe(old, 1)
    lists = []
    for agent in (1, 2):
        authority.revoke(ours, [agent])
        lists.append(ours.revoked.pem)
        (folder / "agent-0" / "revoked.pem").unlink()
    assert me.take(lists[1], []) is True
    assert me.revoked_agents == {1, 2}
    assert me.take(lists[0], []) is False  # older
    assert me.take(lists[1], []) is False
    assert me.revoked_agents == {1, 2}
    assert (folder / "agent-0" / "revoked.pem").read_bytes() == lists[1]
    with pytest.raises(Untrusted, match="revoked"):
        me.believe(old, 1)
    assert me.take(lists[1], [certificates.der(old)]) is False
    authority.renew(ours, [1])
    new = certificates.load(member(folder, 1).identity.certificate)
    assert me.take(lists[1], [certificates.der(new)]) is True
    assert me.revoked_agents == {2}
    pem, back = me.to_pass_on()
    assert (pem, back) == (lists[1], [certificates.der(new)])
    authority.revoke(ours, [1])
    assert me.take(ours.revoked.pem, back) is True
    assert me.revoked_agents == {1, 2}


def test_a_list_beside_an_agents_file_is_taken_up(folder, caplog):
    me = Keys(member(folder, 0))
    authority.revoke(authority.open_authority(folder), [1])
    assert me.look() is True
    assert me.revoked_agents == {1}
    assert me.look() is False
    (folder / "agent-0" / "revoked.pem").write_bytes(b"spoiled")
    assert me.look() is False
    assert me.revoked_agents == {1}
    assert "copy it again from the authority's folder" in caplog.text
    assert "revoked.pem: " in refused(Keys, member(folder, 0))


def test_an_agent_that_is_revoked_says_so_and_does_not_count_itself_out(folder, caplog):
    me = Keys(member(folder, 1))
    authority.revoke(authority.open_authority(folder), [1])
    assert me.look() is True
    assert me.revoked_agents == frozenset()
    (line,) = caplog.records
    assert "the certificate of this agent is revoked: nobody hears it; run `codecl peer renew`" in line.getMessage()


def test_a_certificate_of_another_agent_or_authority_is_not_believed(folder, tmp_path):
    fleet.init(CONFIG, ADDRESSES, PeersConfig(), tmp_path / "other")
    me = Keys(member(folder, 0))
    for certificate, agent in ((None, 1), (member(folder, 2), 1), (member(tmp_path / "other", 1), 1)):
        with pytest.raises(Untrusted):
            me.believe(certificate and certificates.load(certificate.identity.certificate), agent)


# the authority's passphrase, and the commands


def test_a_passphrase_encrypts_the_authoritys_key_alone(cli, tmp_path, monkeypatch):
    monkeypatch.delenv("CODECL_PASSPHRASE", raising=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    done = cli("peer", "init", "--passphrase", cwd=tmp_path)
    assert done.returncode == 2
    assert "passphrase: there is nobody here to type it; set CODECL_PASSPHRASE" in done.stderr
    monkeypatch.setenv("CODECL_PASSPHRASE", PASSPHRASE)
    assert cli("peer", "init", "--passphrase", cwd=tmp_path).returncode == 0
    folder = tmp_path / "fleet"
    text = (folder / "authority" / "key.pem").read_bytes()
    assert b"BEGIN ENCRYPTED PRIVATE KEY" in text
    assert not certificates.is_encrypted((folder / "agent-0" / "key.pem").read_bytes())
    assert refused(authority.open_authority, folder).endswith("the passphrase is not its own")
    assert refused(authority.open_authority, folder, "another").endswith("the passphrase is not its own")
    done = cli("peer", "renew", "fleet", "1", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    done = cli("peer", "revoke", "1", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert authority.open_authority(folder, PASSPHRASE).revoked.number == 1
    monkeypatch.setenv("CODECL_PASSPHRASE", "another")
    done = cli("peer", "renew", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    monkeypatch.delenv("CODECL_PASSPHRASE")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(typer, "prompt", lambda *_, **options: PASSPHRASE if options["hide_input"] else "")
    assert cli("peer", "renew", cwd=tmp_path).returncode == 0
    everything = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(PASSPHRASE.encode() in text for text in everything)


def test_the_commands_say_what_to_do_next(cli, folder):
    done = cli("peer", "renew", "fleet", cwd=folder.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("new key and certificate in fleet/agent-") == 3
    assert "copy key.pem and certificate.pem" in done.stdout
    done = cli("peer", "revoke", "2", "1", "--fleet", "fleet", cwd=folder.parent)
    assert "revoked: agent 1, 2; the list is fleet/authority/revoked.pem" in done.stdout
    assert "`codecl peer renew fleet 1 2`" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("renew", "nowhere"), "nowhere/authority/key.pem: cannot be read"),
        (("renew", "fleet", "3"), "agent 3: is not of fleet "),
        (("revoke", "7"), "agent 7: is not of fleet "),
    ],
)
def test_commands_that_cannot_be_are_refused_in_a_line(cli, folder, arguments, said):
    done = cli("peer", *arguments, cwd=folder.parent)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_key_of_another_fleet_signs_nothing_here(folder, tmp_path):
    fleet.init(CONFIG, ADDRESSES, PeersConfig(), tmp_path / "other")
    shutil.copy(tmp_path / "other" / "authority" / "key.pem", folder / "authority" / "key.pem")
    assert "is not the key of fleet" in refused(authority.open_authority, folder)
