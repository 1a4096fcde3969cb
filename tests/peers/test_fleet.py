"""A fleet's files: made, read back, refused where something is off; certificates that do what they are for."""

import datetime
import importlib
import json
import re
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from codecl.errors import ConfigError
from codecl.peers import certificates, fleet
from codecl.peers.certificates import agent_of, name_of
from codecl.peers.decisions import PeersConfig
from codecl.peers.fleet import AgentFile, Fleet
from codecl.runs.grid import preset, resolve
from tests.cli.test_cli import failed

NAME = "0123456789ab"
ADDRESSES = [("127.0.0.1", 7700), ("node-1.example.org", 7700), ("fd00::5", 7701)]
CONFIG = resolve(preset("quickstart"), {"agents": 3, "seed": 5, "train": {"lr": 1e-5}})


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "deep" / "fleet"
    fleet.init(CONFIG, ADDRESSES, PeersConfig(deadline=None, silence=7), folder)
    return folder


@pytest.fixture(scope="module")
def members(made):
    return [fleet.read(made / f"agent-{agent}" / "agent.yaml") for agent in range(3)]


@pytest.fixture(scope="module")
def identities(members):
    return [member.identity for member in members[:2]]


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A fleet of strangers with the same config at the same places."""
    folder = tmp_path_factory.mktemp("other")  # there, and empty
    fleet.init(CONFIG, ADDRESSES, PeersConfig(), folder)
    return folder


@pytest.fixture
def mine(made, tmp_path):
    """The folder of agent 1, to be spoiled."""
    return Path(shutil.copytree(made / "agent-1", tmp_path / "mine"))


def spoiled(mine):
    """The line that refuses what is read."""
    return refused(fleet.read, mine / "agent.yaml")


def refused(call, *arguments):
    """Gives the one line."""
    with pytest.raises(ConfigError) as error:
        call(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


def targets(member):
    return [address.target for address in member.fleet.addresses]


# made and read back


def test_what_is_made_is_read_back(made, members):
    for agent, (member, address) in enumerate(zip(members, ADDRESSES, strict=True)):
        assert member.settings == AgentFile(agent=agent)
        assert member.folder == made / f"agent-{agent}"
        assert member.fleet.run_config() == CONFIG
        assert member.fleet.peers == PeersConfig(deadline=None, silence=7)
        assert (member.fleet.addresses[agent].host, member.fleet.addresses[agent].port) == address
        assert member.identity.agent == agent
        assert member.identity.fleet == member.fleet.name
        assert member.identity.certificate.decode() == member.fleet.addresses[agent].certificate
        assert member.identity.authority == (made / "authority" / "certificate.pem").read_bytes()
        assert (made / f"agent-{agent}" / "fleet.yaml").read_text() == (made / "fleet.yaml").read_text()
    (name,) = {member.fleet.name for member in members}
    assert re.fullmatch("[0-9a-f]{12}", name)


def test_init_gives_the_agent_files_in_order(tmp_path):
    made = fleet.init(CONFIG, ADDRESSES, PeersConfig(), tmp_path / "f")
    assert made == [tmp_path / "f" / f"agent-{agent}" / "agent.yaml" for agent in range(3)]


def test_two_fleets_differ_in_their_name(made, other):
    assert len({yaml.safe_load((folder / "fleet.yaml").read_text())["name"] for folder in (made, other)}) == 2


def test_the_file_says_schema_and_survives_a_dump(made):
    fields = yaml.safe_load((made / "fleet.yaml").read_text())
    assert fields["schema"] == 1
    assert Fleet(**fields).dump() == (made / "fleet.yaml").read_text()
    assert "PRIVATE" not in (made / "fleet.yaml").read_text()


def test_keys_are_their_owners_alone(made):
    keys = sorted(made.rglob("key.pem"))
    assert len(keys) == 4
    for path in keys:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert len({path.read_bytes() for path in keys}) == 4


def test_paths_in_an_agent_file_start_at_its_folder(mine, monkeypatch):
    (mine / "secret").mkdir()
    (mine / "key.pem").rename(mine / "secret" / "k.pem")
    (mine / "fleet.yaml").rename(mine.parent / "shared.yaml")
    text = yaml.safe_dump({"agent": 1, "key": "secret/k.pem", "fleet": str(mine.parent / "shared.yaml")})
    (mine / "agent.yaml").write_text(text)
    monkeypatch.chdir(mine)
    assert fleet.read(Path("agent.yaml")).identity.agent == 1


def test_where_an_agent_listens(members):
    assert [member.listen for member in members] == ["127.0.0.1:7700", "0.0.0.0:7700", "[::]:7701"]
    assert targets(members[0])[1:] == ["node-1.example.org:7700", "[fd00::5]:7701"]
    own = members[0]._replace(settings=AgentFile(agent=0, listen="10.0.0.1:99"))
    assert own.listen == "10.0.0.1:99"


# names


@given(st.integers(0, 10**9 - 1))
def test_agent_of_is_the_inverse_of_name_of(agent):
    assert agent_of(NAME, name_of(NAME, agent)) == agent
    assert agent_of("ba9876543210", name_of(NAME, agent)) is None


@pytest.mark.parametrize(
    "form",
    [
        *("", "agent-1", "agent-01.{}.codecl", "agent--1.{}.codecl", "agent-٣.{}.codecl", "agent-1.{}.codecl\n"),
        *("agent-1.{}xcodecl", "authority.{}.codecl", f"agent-{'9' * 5000}.{{}}.codecl"),
    ],
)
def test_other_names_are_of_no_agent(form):
    assert agent_of(NAME, form.format(NAME)) is None


@given(st.text())
def test_a_name_is_of_an_agent_only_if_it_is_that_agents_name(text):
    agent = agent_of(NAME, text)
    assert agent is None or name_of(NAME, agent) == text


@pytest.mark.parametrize(
    ("text", "address"), [("a:1", ("a", 1)), (" 10.0.0.5:7700 ", ("10.0.0.5", 7700)), ("[fd00::5]:80", ("fd00::5", 80))]
)
def test_addresses(text, address):
    assert fleet.address_of(text, "--at") == address


@pytest.mark.parametrize("text", ["", "host", "host:", ":7700", "fd00::5:80", "host:x", "host:-1", "h:123456", "[]:1"])
def test_what_is_not_an_address(text):
    assert refused(fleet.address_of, text, "--at").startswith(f"--at: {text!r} is not an address; write HOST:PORT")


# refused when it is made


@pytest.mark.parametrize(
    ("addresses", "said"),
    [
        (ADDRESSES[:2], "addresses: there are 2 for 3 agents; give one for each"),
        ([*ADDRESSES[:2], ("NODE-1.example.org", 7700)], "addresses: node-1.example.org:7700 is there twice"),
        ([*ADDRESSES[:2], ("two words", 1)], "address of agent 2: host: 'two words' is not allowed: it should be"),
        ([*ADDRESSES[:2], ("", 1)], "address of agent 2: host: '' is not allowed"),
        ([*ADDRESSES[:2], ("a", 70000)], "address of agent 2: port: '70000' is not allowed: it should be less than"),
    ],
)
def test_addresses_that_cannot_be(addresses, said, tmp_path):
    assert said in refused(fleet.init, CONFIG, addresses, PeersConfig(), tmp_path / "f")
    assert not (tmp_path / "f").exists()


def test_a_folder_with_something_in_it_stays_as_it_is(tmp_path):
    (tmp_path / "notes").write_text("mine")
    said = refused(fleet.init, CONFIG, ADDRESSES, PeersConfig(), tmp_path)
    assert said == f"{tmp_path}: is there already and is not empty; choose another folder, or remove it"
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]
    assert "is a file" in refused(fleet.init, CONFIG, ADDRESSES, PeersConfig(), tmp_path / "notes")
    assert "cannot be written" in refused(fleet.init, CONFIG, ADDRESSES, PeersConfig(), tmp_path / "notes" / "below")


def test_a_topology_that_cannot_be_is_refused_before_anything_is_made(tmp_path):
    torus = resolve(preset("quickstart"), {"agents": 3, "topology": {"name": "torus"}})
    assert "torus" in refused(fleet.init, torus, ADDRESSES, PeersConfig(), tmp_path / "f")
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize(
    "fields",
    [
        *({"deadline": 0}, {"deadline": 40}, {"silence": 4}, {"silence": None}, {"silence": float("inf")}),
        *({"meet": -1}, {"min_images": 0}, {"patience": 0}, {"patients": 3}),
    ],
)
def test_peers_that_cannot_be(fields):
    with pytest.raises(ValidationError):
        PeersConfig(**fields)


def test_peers_that_can_be():
    assert PeersConfig(deadline=5, silence=5).silence == 5
    assert PeersConfig(deadline=None, silence=0.1).deadline is None


def test_without_cryptography_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for name in ("codecl.peers.fleet", "codecl.peers.certificates"):
        monkeypatch.delitem(sys.modules, name)
    said = refused(importlib.import_module, "codecl.peers.certificates")
    assert said == "peers need grpcio, protobuf and cryptography: pip install 'codecl[peers]'"


# refused when it is read


def edited(name, change):
    def spoil(mine, other):
        fields = yaml.safe_load((mine / name).read_text())
        change(fields, yaml.safe_load((other / "fleet.yaml").read_text()))
        (mine / name).write_text(yaml.safe_dump(fields))

    return spoil


def rewritten(name, /, **changes):
    return edited(name, lambda fields, _: fields.update(changes))


def in_fleet(change):
    return edited("fleet.yaml", change)


def gone(name):
    return lambda mine, other: (mine / name).unlink()


def holding(name, content):
    return lambda mine, other: (mine / name).write_bytes(content)


def copied(name, source):
    return lambda mine, other: shutil.copy(other / source, mine / name)


def swapped(fields, _):
    fields["addresses"] = [fields["addresses"][agent] for agent in (0, 2, 1)]


def forged_certificate(fields, _):
    """It says all the right things, of an authority that calls itself ours: told by its signature."""
    forger, key = certificates.new_key(), certificates.new_key()
    root = certificates.of_authority(fields["name"], forger)
    forged = certificates.of_agent(name_of(fields["name"], 0), "127.0.0.1", key, root, forger)
    fields["addresses"][0]["certificate"] = certificates.pem(forged).decode()


def certificate_of_other(fields, others):
    fields["addresses"][0]["certificate"] = others["addresses"][0]["certificate"]


RSA = rsa.generate_private_key(65537, 2048).private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
)
STRANGE = "addresses.0.certificate: not signed by the fleet's authority"
SPOILED = {
    "no agent file": (gone("agent.yaml"), "agent.yaml: cannot be read (No such file or directory); take the agent's"),
    "broken yaml": (holding("agent.yaml", b"agent: [1"), "agent.yaml: is not readable as YAML (while parsing"),
    "not text": (holding("agent.yaml", b"\xff\xfe\x00"), "agent.yaml: is not readable as YAML"),
    "no fields": (holding("agent.yaml", b"- 1\n"), "agent.yaml: should hold fields and values"),
    "no number": (holding("agent.yaml", b"fleet: fleet.yaml\n"), "agent.yaml: agent: Field required"),
    "unknown field": (
        rewritten("agent.yaml", lissen="a:1"),
        "agent.yaml: lissen: there is no such field, did you mean 'listen'?",
    ),
    "odd address": (rewritten("agent.yaml", listen="here"), "agent.yaml: listen: 'here' is not an address"),
    "outside": (rewritten("agent.yaml", agent=3), "agent.yaml: agent: 3 is not allowed; "),
    "negative": (rewritten("agent.yaml", agent=-1), "agent.yaml: agent: '-1' is not allowed: it should be greater"),
    "another agent": (rewritten("agent.yaml", agent=2), "certificate.pem: is of agent 1, but "),
    "no fleet": (gone("fleet.yaml"), "fleet.yaml: cannot be read"),
    "no key": (gone("key.pem"), "key.pem: cannot be read"),
    "no certificate": (gone("certificate.pem"), "certificate.pem: cannot be read"),
    "garbage key": (holding("key.pem", b"key"), "key.pem: is not a key that can be read"),
    "rsa key": (holding("key.pem", RSA), "key.pem: is not a key that can be read"),
    "garbage certificate": (holding("certificate.pem", b"certificate"), "certificate.pem: is not a certificate; take"),
    "another's key": (copied("key.pem", "agent-1/key.pem"), "key.pem: does not fit the certificate "),
    "another fleet's certificate": (
        copied("certificate.pem", "agent-1/certificate.pem"),
        "certificate.pem: is not a certificate of fleet ",
    ),
    "another fleet": (copied("fleet.yaml", "fleet.yaml"), "certificate.pem: is not a certificate of fl"),
    "another schema": (rewritten("fleet.yaml", schema=2), "fleet.yaml: schema: '2' is not allowed: it should be 1"),
    "another name": (rewritten("fleet.yaml", name=NAME), f"certificate: does not name agent-0.{NAME}.codecl; make"),
    "odd name": (rewritten("fleet.yaml", name="us"), "fleet.yaml: name: 'us' is not allowed"),
    "edited config": (
        in_fleet(lambda fields, _: fields["config"]["train"].update(lr=0.5)),
        f"fleet.yaml: digest: {CONFIG.digest()[:12]} is not that of the config as this codecl reads it; make the",
    ),
    "impossible config": (
        in_fleet(lambda fields, _: fields["config"].update(agents=0)),
        "fleet.yaml: agents: 0 is not",
    ),
    "an address less": (
        in_fleet(lambda fields, _: fields["addresses"].pop()),
        "addresses: there are 2 for 3 agents; make",
    ),
    "swapped": (in_fleet(swapped), "fleet.yaml: addresses.1.certificate: does not name agent-1."),
    "a stranger": (in_fleet(certificate_of_other), STRANGE + "; make"),
    "an authority of the same name": (in_fleet(forged_certificate), STRANGE),
    "another authority": (in_fleet(lambda fields, others: fields.update(authority=others["authority"])), STRANGE),
    "no authority": (rewritten("fleet.yaml", authority="-"), "fleet.yaml: authority: is not a certificate; make"),
    "impossible peers": (
        rewritten("fleet.yaml", peers={"deadline": 9, "silence": 8}),
        "fleet.yaml: peers.silence: '8' is not allowed: it should be at least the deadline, 9",
    ),
}


@pytest.mark.parametrize("case", SPOILED)
def test_what_is_spoiled_is_refused_in_one_line(case, mine, other):
    assert fleet.read(mine / "agent.yaml").identity.agent == 1
    spoil, said = SPOILED[case]
    spoil(mine, other)
    line = spoiled(mine)
    assert said in line
    assert line.startswith(str(mine))


def test_a_second_certificate_of_an_agent_is_as_good_as_the_one_in_the_fleets_file(made, mine):
    authority = certificates.load((made / "authority" / "certificate.pem").read_bytes())
    signer = serialization.load_pem_private_key((made / "authority" / "key.pem").read_bytes(), None)
    key, name = certificates.new_key(), name_of(fleet.read(mine / "agent.yaml").fleet.name, 1)
    again = certificates.of_agent(name, ADDRESSES[1][0], key, authority, signer)
    (mine / "certificate.pem").write_bytes(certificates.pem(again))
    (mine / "key.pem").write_bytes(certificates.key_pem(key))
    assert fleet.read(mine / "agent.yaml").identity.certificate == certificates.pem(again)


def test_a_certificate_of_a_forged_authority_is_refused(mine):
    forger, key, name = certificates.new_key(), certificates.new_key(), fleet.read(mine / "agent.yaml").fleet.name
    root = certificates.of_authority(name, forger)
    forged = certificates.of_agent(name_of(name, 1), ADDRESSES[1][0], key, root, forger)
    (mine / "certificate.pem").write_bytes(certificates.pem(forged))
    (mine / "key.pem").write_bytes(certificates.key_pem(key))
    assert "certificate.pem: is not signed by the authority of fleet " in spoiled(mine)


@pytest.mark.parametrize(("days", "fine"), [(-2, False), (-0.5, True), (364, True), (366, False)])
def test_certificates_hold_a_year_and_for_clocks_a_day_behind(mine, monkeypatch, days, fine):
    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.datetime.now(tz) + datetime.timedelta(days=days)

    monkeypatch.setattr(fleet, "datetime", SimpleNamespace(datetime=Clock, UTC=datetime.UTC))
    if fine:
        assert fleet.read(mine / "agent.yaml").identity.agent == 1
    else:
        said = spoiled(mine)
        assert "certificate.pem: is valid from " in said
        assert "`codecl peer renew`" in said


# certificates


def test_only_the_authority_may_sign_and_no_authority_below_it(made):
    authority, leaf = (
        x509.load_pem_x509_certificate((made / who / "certificate.pem").read_bytes()).extensions
        for who in ("authority", "agent-0")
    )
    basic = authority.get_extension_for_class(x509.BasicConstraints)
    assert basic.critical
    assert (basic.value.ca, basic.value.path_length) == (True, 0)
    assert authority.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    assert not leaf.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not leaf.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


def test_a_certificate_names_its_agent_and_its_host(members):
    hosts = []
    for agent, member in enumerate(members):
        certificate = certificates.load(member.identity.certificate)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert certificates.holder(certificate, member.fleet.name) == agent
        assert certificates.holder(certificate, NAME) is None
        hosts.append([str(name.value) for name in names][1])
    assert hosts == [host for host, _ in ADDRESSES]


def test_a_certificate_of_two_agents_is_of_none():
    signer, key = certificates.new_key(), certificates.new_key()
    root = certificates.of_authority(NAME, signer)
    plain, double = (
        certificates.of_agent(name_of(NAME, 0), host, key, root, signer) for host in ("host", name_of(NAME, 1))
    )
    assert certificates.holder(plain, NAME) == 0
    assert certificates.holder(double, NAME) is None
    assert certificates.holder(root, NAME) is None


@contextmanager
def serving(identity):
    """A server on the loopback that answers with the name in its caller's certificate; gives its port."""

    def who(request, context):
        return b",".join(context.auth_context()["x509_common_name"])

    server = grpc.server(ThreadPoolExecutor(1))
    handlers = {"who": grpc.unary_unary_rpc_method_handler(who)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", handlers),))
    pair = [(identity.key, identity.certificate)]
    credentials = grpc.ssl_server_credentials(pair, identity.authority, require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


def asked(port, expected, authority, key=None, certificate=None):
    credentials = grpc.ssl_channel_credentials(authority, key, certificate)
    options = [("grpc.ssl_target_name_override", expected)]
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
        return channel.unary_unary("/test/who")(b"", timeout=10).decode()


def test_agents_know_each_other_and_no_stranger(identities, other):
    zero, one = identities
    stranger = fleet.read(other / "agent-1" / "agent.yaml").identity
    server = name_of(zero.fleet, 0)
    with serving(zero) as port:
        assert asked(port, server, one.authority, one.key, one.certificate) == name_of(zero.fleet, 1)
        calls = {
            "a stranger calls": (server, one.authority, stranger.key, stranger.certificate),
            "nobody calls": (server, one.authority),
            "another answers than was called": (name_of(zero.fleet, 2), one.authority, one.key, one.certificate),
            "a stranger answers": (server, stranger.authority, one.key, one.certificate),
        }
        for what, call in calls.items():
            with pytest.raises(grpc.RpcError) as error:
                asked(port, *call)
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE, what
        assert asked(port, server, one.authority, one.key, one.certificate) == name_of(zero.fleet, 1)


@given(data=st.binary(max_size=200), more=st.binary(min_size=1, max_size=20))
def test_a_signature_is_of_one_key_and_of_these_data(identities, data, more):
    zero, one = identities
    signature = certificates.sign(zero.key, data)
    assert certificates.signed_by(zero.certificate, data, signature)
    assert certificates.signed_by(zero.certificate.decode(), data, signature)
    assert not certificates.signed_by(one.certificate, data, signature)
    assert not certificates.signed_by(zero.certificate, data + more, signature)
    assert not certificates.signed_by(zero.certificate, data, signature + more)
    assert not certificates.signed_by(zero.certificate, data, signature[:-1])


def test_a_signature_is_ecdsa_over_sha256(identities):
    public = certificates.load(identities[0].certificate).public_key()
    assert public.curve.name == "secp256r1"
    public.verify(certificates.sign(identities[0].key, b"data"), b"data", ec.ECDSA(hashes.SHA256()))


@given(signature=st.binary(max_size=80), certificate=st.one_of(st.binary(), st.text()))
def test_garbage_is_no_signature(identities, signature, certificate):
    genuine = certificates.sign(identities[0].key, b"data")
    assert certificates.signed_by(identities[0].certificate, b"data", signature) is False
    assert certificates.signed_by(certificate, b"data", genuine) is False
    assert certificates.signed_by("\ud800", b"data", genuine) is False
    assert certificates.signed_by(identities[0].key, b"data", genuine) is False


# the command


@pytest.fixture
def command(cli, monkeypatch, tmp_path):
    """`codecl peer init` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return partial(cli, "peer", "init", cwd=tmp_path)


def test_peer_init_without_addresses_is_on_this_machine(command):
    done = command()
    assert (done.returncode, done.stderr) == (0, "")
    member = fleet.read(Path("fleet/agent-3/agent.yaml"))
    assert targets(member) == [f"127.0.0.1:{7700 + agent}" for agent in range(4)]
    assert member.fleet.peers == PeersConfig()
    assert member.fleet.run_config() == resolve(preset("quickstart"), {})
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["2", "127.0.0.1:7702", "fleet/agent-2"] in rows
    assert "`codecl agent fleet/agent-0/agent.yaml`" in done.stdout
    assert "keep fleet/authority/key.pem away" in done.stdout
    assert command().returncode == 2  # it is there already


def test_peer_init_takes_options_and_addresses(command):
    at = ("--at", "10.0.0.1:80", "--at", "[fd00::1]:81", "--at", "c:82")
    options = ("--method", "d-ewc", "--agents", "3", "--topology", "star", "--seed", "9", "--set", "train.lr=0.05")
    assert command(*options, *at, "--deadline", "none", "--silence", "4", "--out", "x/y").returncode == 0
    member = fleet.read(Path("x/y/agent-0/agent.yaml"))
    chosen, peers = member.fleet.run_config(), member.fleet.peers
    assert (chosen.method.name, chosen.agents, chosen.topology.name, chosen.seed) == ("d-ewc", 3, "star", 9)
    assert chosen.train.lr == 0.05
    assert (peers.deadline, peers.silence) == (None, 4)
    assert targets(member) == ["10.0.0.1:80", "[fd00::1]:81", "c:82"]


def test_peer_init_reads_a_file_of_hosts(command):
    Path("hosts").write_text("# ours\na:1\n\nb:1  # the big one\n")
    assert command("--hosts", "hosts").returncode == 0
    member = fleet.read(Path("fleet/agent-1/agent.yaml"))
    assert targets(member) == ["a:1", "b:1"]
    assert member.fleet.run_config().agents == 2, "as many as there are addresses"


def test_peer_init_says_which_code_of_ones_own_agents_need(command):
    Path("tiny.py").write_text(
        "def net(shape, classes):\n    from codecl.models import mlp\n    return mlp(shape, classes)\n"
    )
    done = command("--set", "model.name=tiny.py:net")
    assert (
        "tiny.py is code of your own: copy it too, and start each agent in the folder where tiny.py is" in done.stdout
    )
    assert "code of your own" not in command("--out", "other").stdout


ONE = "a fleet runs one config, these are 2: give one --method, --agents, --topology"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--method codec,dpsgd", ONE),
        ("--topology ring,star", ONE),
        ("--agents 2,4", ONE),
        ("--agents two", "--agents: 'two' is not a whole number"),
        ("--method nothing", "method: 'nothing' is unknown"),
        ("--agents 4 --at a:1", "addresses: there are 1 for 4 agents; give one for each"),
        ("--agents 1 --at a", "--at: 'a' is not an address; write HOST:PORT"),
        ("--agents 1 --at a:1 --hosts hosts", "--at and --hosts: both say where agents are; choose one"),
        ("--hosts none", "--hosts: none cannot be read (No such file or directory); it should hold a line HOST:PORT"),
        ("--hosts bad", "bad:2: 'b' is not an address; write HOST:PORT"),
        ("--hosts empty", "--hosts: empty holds no addresses; write a line HOST:PORT for each agent"),
        ("--deadline soon", "peers: deadline: 'soon' is not allowed: it should be a valid number"),
        ("--deadline 50", "peers: silence: '30.0' is not allowed: it should be at least the deadline, 50"),
        ("--deadline 5 --silence 4", "peers: silence: '4' is not allowed: it should be at least the deadline, 5"),
        ("--out full", "full: is there already and is not empty; choose another folder, or remove it"),
    ],
)
def test_peer_init_refuses_in_one_line(command, arguments, said):
    Path("bad").write_text("a:1\nb\n")
    Path("empty").write_text("# nobody\n")
    Path("full").mkdir()
    Path("full/notes").write_text("mine")
    done = command(*arguments.split())
    assert said in failed(done, 2)
    assert done.stdout == ""
    assert not Path("fleet").exists()


def test_help_imports_neither_grpc_nor_cryptography():
    code = "import sys, json, codecl, codecl.cli; codecl.fit; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = set(json.loads(done.stdout))
    assert "codecl.cli.peer" in found
    assert not {"grpc", "cryptography", "codecl.peers.fleet"} & found
