"""A fleet: agents as peers, each a process on a machine of its own. What all of them know (`fleet.yaml`: the config,
addresses, certificates; nothing secret), what is one agent's own (`agent.yaml`, a key, a certificate), how both are
made and checked."""

import datetime
import ipaddress
import re
import secrets
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from codecl.data.task import TaskInfo
from codecl.errors import ConfigError
from codecl.exchange import topology as topologies
from codecl.peers import certificates
from codecl.peers.certificates import Certificate, Identity, Key, holder, ip_of, issued, name_of
from codecl.peers.decisions import PeersConfig
from codecl.peers.keyfiles import read_key, write_key
from codecl.runs import code, yamlfile
from codecl.runs import config as configs
from codecl.runs.config import RunConfig

ANEW = "make the fleet anew with `codecl peer init`"
AGAIN = "take the agent's folder as `codecl peer init` made it"
RENEW = "run `codecl peer renew` where the authority's key is, and copy the new key.pem and certificate.pem here"


class Address(BaseModel, frozen=True, extra="forbid"):
    """Where an agent is, and its certificate."""

    host: str = Field(max_length=253, description="an IP address or a host name")
    port: int = Field(ge=1, le=65535)
    certificate: str = Field(description="PEM")

    @field_validator("host")
    @classmethod
    def _a_host(cls, host: str) -> str:
        if ip_of(host) is None and not re.fullmatch(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*", host, re.I | re.A):
            raise ValueError("it should be an IP address or a host name")
        return host

    @property
    def target(self) -> str:
        """HOST:PORT, as others dial it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Earlier(BaseModel, frozen=True, extra="forbid"):
    """What a fleet had learned before more tasks were added."""

    config: dict[str, Any] = Field(description="the RunConfig, as it was")
    tasks: tuple[TaskInfo, ...] = Field(min_length=1, description="that it had learned")

    def run_config(self) -> RunConfig:
        return configs.parse(self.config)


class Fleet(BaseModel, frozen=True, extra="forbid", populate_by_name=True):
    """What all agents know. Checked whole: the digest, the number of addresses, every certificate."""

    schema_: Literal[1] = Field(1, alias="schema")
    name: str = Field(pattern=r"^[0-9a-f]{12}$", description="new with every init")
    config: dict[str, Any] = Field(description="the RunConfig")
    digest: str = Field(description="of the config")
    peers: PeersConfig = PeersConfig()
    addresses: tuple[Address, ...] = Field(description="by agent")
    authority: str = Field(description="PEM: who signed the agents' certificates")
    earlier: tuple[Earlier, ...] = Field((), description="before tasks were added, by `codecl peer learn`")

    def run_config(self) -> RunConfig:
        return configs.parse(self.config)

    def dump(self) -> str:
        return yamlfile.dump(self.model_dump(mode="json", by_alias=True))

    @model_validator(mode="after")
    def _fits(self) -> Self:
        config = self.run_config()
        if config.digest() != self.digest:
            raise ValueError(f"digest: {self.digest[:12]} is not that of the config as this codecl reads it; {ANEW}")
        if len(self.addresses) != config.agents:
            raise ValueError(f"addresses: there are {len(self.addresses)} for {config.agents} agents; {ANEW}")
        authority = _certificate(self.authority, "authority")
        for agent, address in enumerate(self.addresses):
            field = f"addresses.{agent}.certificate"
            certificate = _certificate(address.certificate, field)
            if not issued(certificate, authority):
                raise ValueError(f"{field}: not signed by the fleet's authority; {ANEW}")
            if holder(certificate, self.name) != agent:
                raise ValueError(f"{field}: does not name {name_of(self.name, agent)}; {ANEW}")
        return self


def _certificate(pem: str, field: str) -> Certificate:
    try:
        return certificates.load(pem)
    except ValueError:
        raise ValueError(f"{field}: is not a certificate; {ANEW}") from None


class LocalData(BaseModel, frozen=True, extra="forbid"):
    local_path: str | None = Field(None, description="path of this agent's own data; null: its shard of the stream")


class AgentFile(BaseModel, frozen=True, extra="forbid"):
    """What `agent.yaml` holds; paths of fleet, key and certificate start at its folder."""

    agent: int = Field(ge=0, description="its number in the fleet")
    fleet: str = Field("fleet.yaml", description="what all agents know")
    key: str = Field("key.pem", description="secret: it stays on this machine")
    certificate: str = Field("certificate.pem", description="of the key, signed by the fleet's authority")
    listen: str = Field("", description="HOST:PORT to listen on; empty: the fleet's port on every interface")
    reach: dict[int, str] = Field({}, description="HOST:PORT of agents that are reached elsewhere than the fleet says")
    out: str = Field("runs", description="where run folders go")
    device: str = Field("auto", description="auto, cpu or cuda")
    data: LocalData = Field(LocalData(), description="local_path: path of this agent's own data; null: its shard")

    @model_validator(mode="after")
    def _addresses(self) -> Self:
        if self.listen:
            address_of(self.listen, "listen")
        for text in self.reach.values():
            address_of(text, "reach")
        return self

    def dump(self) -> str:
        fields = type(self).model_fields
        values = self.model_dump().items()
        return "".join(f"# {fields[name].description}\n{yamlfile.dump({name: value})}" for name, value in values)


class Member(NamedTuple):
    """An agent with all that it has been given."""

    fleet: Fleet
    identity: Identity
    settings: AgentFile
    folder: Path

    @property
    def listen(self) -> str:
        """HOST:PORT to listen on: a loopback host listens there alone, any other on every interface."""
        address = self.fleet.addresses[self.settings.agent]
        ip = ipaddress.ip_address("127.0.0.1") if address.host.lower() == "localhost" else ip_of(address.host)
        if ip is None or not ip.is_loopback:
            ip = ipaddress.ip_address("0.0.0.0" if ip is None or ip.version == 4 else "::")
        return self.settings.listen or address.model_copy(update={"host": str(ip)}).target


def address_of(text: str, where: str) -> tuple[str, int]:
    """HOST:PORT in two; `where` it was written, for who has to mend it."""
    host, _, port = text.strip().rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not bare or (":" in host and bare == host) or not (port.isascii() and port.isdecimal() and len(port) < 6):
        form = "write HOST:PORT, for example 10.0.0.5:7700 or [fd00::5]:7700"
        raise ConfigError(f"{where}: {text!r} is not an address; {form}")
    return bare, int(port)


def check_offered(config: RunConfig) -> None:
    """Refuse what other exchanges offer and peers do not."""
    if config.train.norm_statistics == "task":
        why = "task needs sums over all agents, which peers do not offer; it should be batch"
        raise ConfigError(f"train.norm_statistics: {why}")


def own_files(config: RunConfig) -> list[str]:
    """Files of the user's own code that the config names, and every agent needs."""
    files = [name.rpartition(":")[0] for name in code.names(config)]
    return [file for file in dict.fromkeys(files) if file.endswith(".py")]


def init(
    config: RunConfig, addresses: Sequence[tuple[str, int]], peers: PeersConfig, folder: Path, passphrase: str = ""
) -> list[Path]:
    """Make a fleet's files: `fleet.yaml`, `authority/`, and for each agent a folder with all that its machine needs.

    Gives each `agent.yaml`. The authority's key, encrypted with the passphrase if there is one, signs agents and lists
    of revoked ones: put it away when they are made."""
    check_offered(config)
    topologies.build(config.topology, config.agents, config.seed)  # one that cannot be is refused here
    if len(addresses) != config.agents:
        raise ConfigError(f"addresses: there are {len(addresses)} for {config.agents} agents; give one for each")
    places = Counter((host.lower(), port) for host, port in addresses)
    for (host, port), count in places.items():
        if count > 1:
            raise ConfigError(f"addresses: {host}:{port} is there twice; give each agent its own")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: is a file; choose another folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"{folder}: is there already and is not empty; choose another folder, or remove it")
    name, authority_key = secrets.token_hex(6), certificates.new_key()
    authority = certificates.of_authority(name, authority_key)
    keys = [certificates.new_key() for _ in addresses]
    known = []
    for agent, (host, port) in enumerate(addresses):
        fields = {"host": host, "port": port, "certificate": ""}
        address = yamlfile.checked(Address, fields, f"address of agent {agent}")
        certificate = certificates.of_agent(name_of(name, agent), host, keys[agent], authority, authority_key)
        known.append(address.model_copy(update={"certificate": certificates.pem(certificate).decode()}))
    fleet = Fleet(
        name=name,
        config=config.model_dump(mode="json"),
        digest=config.digest(),
        peers=peers,
        addresses=tuple(known),
        authority=certificates.pem(authority).decode(),
    )
    try:
        return _write(fleet, folder, certificates.key_pem(authority_key, passphrase), keys)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror or error}); choose another folder") from error


def _write(fleet: Fleet, folder: Path, authority: bytes, keys: Sequence[Key]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    _write_secret(folder / "authority", authority, fleet.authority)
    files = [folder / f"agent-{agent}" / "agent.yaml" for agent in range(len(keys))]
    for agent, (file, key) in enumerate(zip(files, keys, strict=True)):
        _write_secret(file.parent, certificates.key_pem(key), fleet.addresses[agent].certificate)
        file.write_text(AgentFile(agent=agent).dump(), encoding="utf-8")
    for owner in (folder, *(file.parent for file in files)):
        (owner / "fleet.yaml").write_text(fleet.dump(), encoding="utf-8")
    return files


def _write_secret(folder: Path, key: bytes, certificate: str) -> None:
    """A folder for its owner alone, with a key that never was anyone else's to read."""
    folder.mkdir(mode=0o700)
    write_key(folder / "key.pem", key)
    (folder / "certificate.pem").write_text(certificate, encoding="utf-8")


def read(path: Path) -> Member:
    """The agent that an `agent.yaml` describes, everything in it checked."""
    settings = yamlfile.read(AgentFile, path, AGAIN)
    at_fleet = path.parent / settings.fleet
    fleet = yamlfile.read(Fleet, at_fleet, AGAIN)
    if settings.agent >= len(fleet.addresses):
        last = len(fleet.addresses) - 1
        raise ConfigError(f"{path}: agent: {settings.agent} is not allowed; {at_fleet} has agents 0 to {last}")
    return Member(fleet, identity(fleet, settings, path), settings, path.parent)


def identity(fleet: Fleet, settings: AgentFile, path: Path) -> Identity:
    """Key and certificate of the agent, which fit each other and the fleet; they may be newer than fleet.yaml."""
    agent, at_key, at = settings.agent, path.parent / settings.key, path.parent / settings.certificate
    key, pem = read_key(at_key, AGAIN), yamlfile.read_bytes(at, AGAIN)
    try:
        certificate = certificates.load(pem)
    except ValueError:
        raise ConfigError(f"{at}: is not a certificate; {AGAIN}") from None
    named = holder(certificate, fleet.name)
    if named is None:
        raise ConfigError(f"{at}: is not a certificate of fleet {fleet.name}; {AGAIN}")
    if named != agent:
        raise ConfigError(f"{at}: is of agent {named}, but {path} says agent {agent}; {AGAIN}")
    if not issued(certificate, certificates.load(fleet.authority)):
        raise ConfigError(f"{at}: is not signed by the authority of fleet {fleet.name}; {AGAIN}")
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not first <= datetime.datetime.now(datetime.UTC) <= last:
        raise ConfigError(f"{at}: is valid from {first:%Y-%m-%d} to {last:%Y-%m-%d}; set the clock right, or {RENEW}")
    try:
        fits = certificates.signed_by(pem, b"codecl", certificates.sign(key, b"codecl"))
    except (ValueError, TypeError):
        raise ConfigError(f"{at_key}: is not a key that can be read; {AGAIN}") from None
    if not fits:
        raise ConfigError(f"{at_key}: does not fit the certificate {at}; {AGAIN}")
    return Identity(agent, fleet.name, key, pem, fleet.authority.encode())
