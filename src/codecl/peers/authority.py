"""What the fleet's authority does after a fleet is made: new certificates for agents, and a list of those that hold no
longer. Its folder holds its key, which may be encrypted, and what it has issued and revoked since."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509

from codecl.errors import ConfigError
from codecl.files import write_text
from codecl.peers import certificates, revocations
from codecl.peers.certificates import Certificate, Key, holder, name_of
from codecl.peers.fleet import AGAIN, ANEW, Fleet
from codecl.peers.keyfiles import read_key, write_key
from codecl.peers.revocations import Revocations
from codecl.runs import yamlfile

FOLDER, ISSUED, REVOKED = "authority", "issued.pem", "revoked.pem"


class Authority(NamedTuple):
    """Who can make agents of a fleet, and revoke them."""

    folder: Path  # the fleet's
    fleet: Fleet
    key: Key
    certificate: Certificate

    @property
    def issued(self) -> list[Certificate]:
        """All certificates of agents, those of `codecl peer init` first."""
        path = self.folder / FOLDER / ISSUED
        first = [certificates.load(address.certificate) for address in self.fleet.addresses]
        return [*first, *(x509.load_pem_x509_certificates(path.read_bytes()) if path.is_file() else [])]

    @property
    def revoked(self) -> Revocations:
        path = self.folder / FOLDER / REVOKED
        if not path.is_file():
            return Revocations()
        try:
            return revocations.read(path.read_bytes(), self.certificate)
        except ValueError as error:
            raise ConfigError(f"{path}: {error}; put back the list that `codecl peer revoke` made last") from None

    def check(self, agents: Sequence[int]) -> None:
        last = len(self.fleet.addresses) - 1
        for agent in agents:
            if not 0 <= agent <= last:
                raise ConfigError(f"agent {agent}: is not of fleet {self.fleet.name}; it has agents 0 to {last}")


def is_encrypted(folder: Path) -> bool:
    """Whether the authority's key of this fleet needs a passphrase."""
    return certificates.is_encrypted(read_key(folder / FOLDER / "key.pem", _where(folder)))


def open_authority(folder: Path, passphrase: str = "") -> Authority:
    """The authority of the fleet in this folder."""
    at = folder / FOLDER / "key.pem"
    text = read_key(at, _where(folder))
    fleet = yamlfile.read(Fleet, folder / "fleet.yaml", AGAIN)
    try:
        key = certificates.load_key(text, passphrase)
    except (ValueError, TypeError):
        why = "the passphrase is not its own" if certificates.is_encrypted(text) else f"is not a key; {ANEW}"
        raise ConfigError(f"{at}: {why}") from None
    certificate = certificates.load(fleet.authority)
    if certificate.public_key() != key.public_key():
        raise ConfigError(f"{at}: is not the key of fleet {fleet.name}'s authority; give the folder of its fleet")
    return Authority(folder, fleet, key, certificate)


def renew(authority: Authority, agents: Sequence[int] = ()) -> list[Path]:
    """New keys and certificates for these agents, or all, in their folders; gives those. Older ones hold as long as
    before."""
    authority.check(agents)
    folders = []
    for agent in agents or range(len(authority.fleet.addresses)):
        key, host = certificates.new_key(), authority.fleet.addresses[agent].host
        name = name_of(authority.fleet.name, agent)
        new = certificates.of_agent(name, host, key, authority.certificate, authority.key)
        path = authority.folder / FOLDER / ISSUED
        before = path.read_text(encoding="utf-8") if path.is_file() else ""
        write_text(path, before + certificates.pem(new).decode())  # first: what is not listed could not be revoked
        folder = authority.folder / f"agent-{agent}"
        folder.mkdir(mode=0o700, exist_ok=True)
        write_key(folder / "key.pem", certificates.key_pem(key))
        write_text(folder / "certificate.pem", certificates.pem(new).decode())
        folders.append(folder)
    return folders


def revoke(authority: Authority, agents: Sequence[int]) -> list[Path]:
    """A new list, with all certificates that these agents were given so far; gives where it was written."""
    authority.check(agents)
    before, fleet = authority.revoked, authority.fleet
    owners = {certificate.serial_number: holder(certificate, fleet.name) for certificate in authority.issued}
    added = {serial: agent for serial, agent in owners.items() if agent is not None and agent in agents}
    new = revocations.write(before.number + 1, {**before.agents, **added}, authority.certificate, authority.key)
    folders = [authority.folder / f"agent-{agent}" for agent in range(len(fleet.addresses))]
    files = [folder / REVOKED for folder in (authority.folder / FOLDER, *filter(Path.is_dir, folders))]
    for path in files:
        write_text(path, new.pem.decode())
    return files


def _where(folder: Path) -> str:
    return f"put the authority's folder back as {folder / FOLDER}, or say where the fleet's folder is"
