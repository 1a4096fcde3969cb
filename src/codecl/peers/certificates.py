"""Keys and certificates of a fleet: an authority signs a certificate for each agent, which names it and its host."""

import datetime
import ipaddress
import re
from contextlib import suppress
from importlib.util import find_spec
from typing import NamedTuple

from codecl.errors import ConfigError

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    if not all(map(find_spec, ("grpc", "google.protobuf"))):  # needed later: say so before anything is made
        raise ImportError("grpc")
except ImportError as error:
    raise ConfigError("peers need grpcio, protobuf and cryptography: pip install 'codecl[peers]'") from error

Key = ec.EllipticCurvePrivateKey
Certificate = x509.Certificate
DAY = datetime.timedelta(days=1)
AUTHORITY_DAYS, AGENT_DAYS = 3652, 365  # for which certificates are valid
SHA256 = hashes.SHA256()
PURPOSES = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]


class Identity(NamedTuple):
    """Who an agent is to the others. All PEM."""

    agent: int
    fleet: str
    key: bytes
    certificate: bytes
    authority: bytes


def name_of(fleet: str, agent: int) -> str:
    """The name in an agent's certificate. Law: agent_of(fleet, name_of(fleet, agent)) == agent."""
    return f"agent-{agent}.{fleet}.codecl"


def agent_of(fleet: str, name: str) -> int | None:
    """The agent of this fleet that has this name; None for any other name."""
    match = re.fullmatch(rf"agent-(0|[1-9][0-9]{{0,8}})\.{re.escape(fleet)}\.codecl", name)
    return int(match[1]) if match else None


def new_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: Key, passphrase: str = "") -> bytes:
    """PKCS8, encrypted where there is a passphrase."""
    how: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase:
        how = serialization.BestAvailableEncryption(passphrase.encode())
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)


def load_key(text: bytes, passphrase: str = "") -> Key:
    """ValueError for what is not a key of ours, or not with this passphrase; TypeError where it needs one."""
    key = serialization.load_pem_private_key(text, passphrase.encode() if passphrase else None)
    if not isinstance(key, Key):
        raise ValueError("not an elliptic-curve key")
    return key


def is_encrypted(text: bytes) -> bool:
    return b"ENCRYPTED PRIVATE KEY" in text


def pem(certificate: Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def of_authority(fleet: str, key: Key) -> Certificate:
    """It may sign agents, and no further authority."""
    return _builder(f"authority.{fleet}.codecl", None, key, AUTHORITY_DAYS).sign(key, SHA256)


def of_agent(
    name: str, host: str, key: Key, authority: Certificate, authority_key: Key, days: float = AGENT_DAYS
) -> Certificate:
    """It may serve and call, under its name and at its host, for so many days."""
    ip = ip_of(host)
    hosts = [x509.DNSName(name), x509.IPAddress(ip) if ip else x509.DNSName(host)]
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    new = _builder(name, authority.subject, key, days)
    new = new.add_extension(x509.ExtendedKeyUsage(PURPOSES), critical=False)
    new = new.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    return new.add_extension(issuer, critical=False).sign(authority_key, SHA256)


def _builder(name: str, issuer: x509.Name | None, key: Key, days: float) -> x509.CertificateBuilder:
    """What every certificate says; one without an issuer signs others."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    public, signs_others = key.public_key(), issuer is None
    new = x509.CertificateBuilder(issuer or subject, subject, public, x509.random_serial_number())
    now = datetime.datetime.now(datetime.UTC)
    new = new.not_valid_before(now - DAY).not_valid_after(now + days * DAY)  # a day earlier: clocks differ
    new = new.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    constraints = x509.BasicConstraints(ca=signs_others, path_length=0 if signs_others else None)
    signs = {"key_cert_sign": signs_others, "crl_sign": signs_others, "digital_signature": not signs_others}
    never = dict.fromkeys(("content_commitment", "key_agreement", "key_encipherment", "data_encipherment"), False)
    usage = x509.KeyUsage(**signs, **never, encipher_only=False, decipher_only=False)
    return new.add_extension(constraints, critical=True).add_extension(usage, critical=True)


def ip_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """A host that is an IP address."""
    with suppress(ValueError):
        return ipaddress.ip_address(host)
    return None


def load(text: bytes | str) -> Certificate:
    """ValueError for what is not a certificate."""
    return x509.load_pem_x509_certificate(text.encode() if isinstance(text, str) else text)


def load_der(data: bytes) -> Certificate:
    """ValueError for what is not a certificate."""
    return x509.load_der_x509_certificate(data)


def der(certificate: Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


def issued(certificate: Certificate, authority: Certificate) -> bool:
    """Whether this authority signed this certificate."""
    with suppress(InvalidSignature, ValueError, TypeError):
        certificate.verify_directly_issued_by(authority)
        return True
    return False


def holder(certificate: Certificate, fleet: str) -> int | None:
    """The one agent of this fleet that a certificate names, both as its subject and as a host."""
    try:
        hosts = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return None
    subject = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    as_subject = {agent_of(fleet, str(attribute.value)) for attribute in subject} - {None}
    as_host = {agent_of(fleet, name) for name in hosts.get_values_for_type(x509.DNSName)} - {None}
    return as_subject.pop() if as_subject == as_host and len(as_subject) == 1 else None


def sign(key: bytes, data: bytes) -> bytes:
    """A signature of `data` by this key; ValueError for what is not a key of ours."""
    return load_key(key).sign(data, ec.ECDSA(SHA256))


def signed_by(certificate: bytes | str, data: bytes, signature: bytes) -> bool:
    """Whether the holder of this certificate signed these data."""
    with suppress(Exception):  # a stranger may send anything; it is not a signature then
        public = load(certificate).public_key()
        assert isinstance(public, ec.EllipticCurvePublicKey)
        public.verify(signature, data, ec.ECDSA(SHA256))
        return True
    return False
