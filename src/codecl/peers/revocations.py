"""The list of revoked certificates of a fleet: signed by its authority, so that it can be believed whoever passes it
on; the newer of two is the one with the higher number."""

import datetime
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from codecl.peers.certificates import AUTHORITY_DAYS, DAY, SHA256, Certificate, Key

AGENT = x509.ObjectIdentifier("2.25.258149812366047961410838512459268190823")  # of an entry: whose certificate it was
MAX_BYTES = 1 << 20  # of a list


class Revocations(NamedTuple):
    """Which certificates hold no longer. Law: read(write(…)) gives the same."""

    number: int = 0
    agents: Mapping[int, int] = MappingProxyType({})  # by serial number, whose certificate it was
    pem: bytes = b""


def write(number: int, agents: Mapping[int, int], authority: Certificate, key: Key) -> Revocations:
    """A signed list of these certificates."""
    now = datetime.datetime.now(datetime.UTC)
    new = x509.CertificateRevocationListBuilder().issuer_name(authority.subject)
    new = new.last_update(now - DAY).next_update(now + AUTHORITY_DAYS * DAY)
    new = new.add_extension(x509.CRLNumber(number), critical=False)
    for serial, agent in agents.items():
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now)
        entry = entry.add_extension(x509.UnrecognizedExtension(AGENT, str(agent).encode()), critical=False)
        new = new.add_revoked_certificate(entry.build())
    pem = new.sign(key, SHA256).public_bytes(serialization.Encoding.PEM)
    return Revocations(number, dict(agents), pem)


def read(pem: bytes, authority: Certificate) -> Revocations:
    """ValueError for what is not a list that this authority signed."""
    if len(pem) > MAX_BYTES:
        raise ValueError(f"a list of {len(pem)} bytes")
    found = x509.load_pem_x509_crl(pem)
    if not found.is_signature_valid(authority.public_key()):  # type: ignore[arg-type]
        raise ValueError("a list that the fleet's authority did not sign")
    try:
        number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        agents = {entry.serial_number: _agent(entry) for entry in found}
    except x509.ExtensionNotFound as error:
        raise ValueError("a list without numbers") from error
    return Revocations(number, agents, pem)


def _agent(entry: x509.RevokedCertificate) -> int:
    value = entry.extensions.get_extension_for_oid(AGENT).value
    assert isinstance(value, x509.UnrecognizedExtension)
    return int(value.value)
