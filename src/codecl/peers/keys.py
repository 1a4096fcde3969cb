"""What an agent proves itself by and whom it believes, while it runs: its key and certificate, and the fleet's list of
revoked ones. Files that change are taken up; a list that is newer may also come from a neighbour."""

import datetime
import logging
import threading
from collections.abc import Iterable
from pathlib import Path

from codecl.errors import CodeclError, ConfigError
from codecl.files import write_text
from codecl.peers import certificates, fleet, revocations
from codecl.peers.authority import REVOKED
from codecl.peers.certificates import DAY, Certificate, holder
from codecl.peers.fleet import RENEW, Member
from codecl.peers.revocations import Revocations

SOON = 30 * DAY  # before a certificate's end, in which its agent says so
CERTIFICATE_BEGINS = b"-----BEGIN CERTIFICATE-----"
log = logging.getLogger("codecl.peers")


class Untrusted(Exception):
    """A certificate that is not believed, and why."""


class Keys:
    """Laws: a list with a higher number is never given up for another; a certificate on the list is never believed; an
    agent is revoked as long as one of its certificates is on the list and no other is known."""

    def __init__(self, member: Member) -> None:
        self.member, self.identity = member, member.identity
        self.revoked = Revocations()
        self._authority = certificates.load(member.fleet.authority)
        self._back: dict[int, Certificate] = {}  # agents with a certificate on the list -> another that holds
        self._path = member.folder / REVOKED
        self._files = [member.folder / name for name in (member.settings.key, member.settings.certificate)]
        self._looked = {path: _changed_at(path) for path in (self._path, *self._files)}
        self._said, self._lock = "", threading.Lock()
        if self._looked[self._path] is not None:
            self.revoked = self._read_list()
        if self.own.serial_number in self.revoked.agents:
            raise ConfigError(f"{self._files[1]}: is revoked; {RENEW}")
        self._say_when_it_ends()

    @property
    def own(self) -> Certificate:
        return certificates.load(self.identity.certificate)

    def sign(self, data: bytes) -> bytes:
        """A signature, and the certificate to check it by."""
        identity = self.identity
        return certificates.sign(identity.key, data) + identity.certificate

    def check(self, agent: int, data: bytes, signature: bytes) -> bool:
        """Whether this agent signed these data with a key that the authority ever certified: what was signed before a
        certificate ended stands. Without a certificate: that of fleet.yaml."""
        bare, begins, rest = signature.partition(CERTIFICATE_BEGINS)
        pem = begins + rest
        if not begins:
            return certificates.signed_by(self.member.fleet.addresses[agent].certificate, data, bare)
        try:
            certificate = certificates.load(pem)
        except ValueError:
            return False
        ours = certificates.issued(certificate, self._authority) and holder(certificate, self.identity.fleet) == agent
        return ours and certificates.signed_by(pem, data, bare)

    def believe(self, certificate: Certificate | None, agent: int) -> None:
        """Untrusted, unless it is this agent's, of our authority, and holds today."""
        if certificate is None or holder(certificate, self.identity.fleet) != agent:
            raise Untrusted(f"it has no certificate of agent {agent}")
        if not certificates.issued(certificate, self._authority):
            raise Untrusted("its certificate is not signed by the fleet's authority")
        self.still_holds(certificate)

    def still_holds(self, certificate: Certificate) -> None:
        """Untrusted where a certificate that was believed is revoked or over."""
        if certificate.serial_number in self.revoked.agents:
            raise Untrusted("its certificate is revoked")
        now = datetime.datetime.now(datetime.UTC)
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise Untrusted(f"its certificate ended on {certificate.not_valid_after_utc:%Y-%m-%d}")

    def met(self, certificate: Certificate, agent: int) -> bool:
        """Remember a certificate that is believed; whether its agent was revoked until now."""
        with self._lock:
            if agent not in self.revoked.agents.values():
                return False
            known = self._back.get(agent)
            if known is None or certificate.not_valid_before_utc > known.not_valid_before_utc:
                self._back[agent] = certificate
            return known is None

    @property
    def revoked_agents(self) -> frozenset[int]:
        """Others than ourselves that have no certificate which holds, as far as we know."""
        with self._lock:
            return frozenset(self.revoked.agents.values()) - {*self._back, self.identity.agent}

    def to_pass_on(self) -> tuple[bytes, list[bytes]]:
        """The list, and the certificates of those who are back."""
        own = [self.own] if self.identity.agent in self.revoked.agents.values() else []
        with self._lock:
            return self.revoked.pem, [certificates.der(one) for one in (*self._back.values(), *own)]

    def take(self, pem: bytes, back: Iterable[bytes]) -> bool:
        """What a neighbour passed on; whether anything was new. Untrusted where it is not of our authority."""
        try:
            given = revocations.read(pem, self._authority)
            known = [certificates.load_der(data) for data in back]
        except (ValueError, TypeError) as error:
            raise Untrusted(f"{error}") from error
        changed = self._take_list(given, save=True)
        for certificate in known:
            agent = holder(certificate, self.identity.fleet)
            if agent is None or agent == self.identity.agent:
                continue
            try:
                self.believe(certificate, agent)
            except Untrusted:  # of one who is revoked once more, or whose clock differs
                continue
            changed |= self.met(certificate, agent)
        return changed

    def look(self) -> bool:
        """Take up files that have changed; whether the list did."""
        changed = False
        for path in (self._path, *self._files):
            at = _changed_at(path)
            if at is None or at == self._looked[path]:
                continue
            if path == self._path:
                self._looked[path] = at
                changed = self._look_at_list()
            elif self._renewed():
                self._looked |= {file: _changed_at(file) for file in self._files}
        self._say_when_it_ends()
        return changed

    def _renewed(self) -> bool:
        """Whether key and certificate fit: while they are written one may be older."""
        try:
            new = fleet.identity(self.member.fleet, self.member.settings, self.member.folder / "agent.yaml")
        except (CodeclError, OSError) as error:
            self._say(logging.WARNING, str(error))
            return False
        if new != self.identity:
            self.identity = new
            log.info("a new certificate is taken up: it ends on %s", f"{self.own.not_valid_after_utc:%Y-%m-%d}")
        return True

    def _read_list(self) -> Revocations:
        try:
            return revocations.read(self._path.read_bytes(), self._authority)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{self._path}: {error}; copy it again from the authority's folder") from None

    def _look_at_list(self) -> bool:
        try:
            return self._take_list(self._read_list(), save=False)
        except (ConfigError, OSError) as error:
            self._say(logging.WARNING, str(error))
            return False

    def _take_list(self, given: Revocations, save: bool) -> bool:
        with self._lock:
            if given.number <= self.revoked.number:
                return False
            self.revoked = given
            self._back = {agent: one for agent, one in self._back.items() if one.serial_number not in given.agents}
        if save:
            self._save()
        if self.own.serial_number in given.agents:
            self._say(logging.ERROR, f"the certificate of this agent is revoked: nobody hears it; {RENEW}")
        return True

    def _save(self) -> None:
        """For the next start; where the folder cannot be written, neighbours have it still."""
        try:
            write_text(self._path, self.revoked.pem.decode())
            self._looked[self._path] = _changed_at(self._path)
        except OSError as error:
            self._say(logging.WARNING, f"{self._path}: cannot be written ({error.strerror})")

    def _say_when_it_ends(self) -> None:
        end, now = self.own.not_valid_after_utc, datetime.datetime.now(datetime.UTC)
        if now > end:
            self._say(logging.ERROR, f"the certificate of this agent ended on {end:%Y-%m-%d}; {RENEW}")
        elif now > end - SOON:
            self._say(logging.WARNING, f"the certificate of this agent ends on {end:%Y-%m-%d}; before that, {RENEW}")

    def _say(self, level: int, line: str) -> None:
        """Once, until there is something else to say."""
        if line != self._said:
            self._said = line
            log.log(level, "%s", line)


def _changed_at(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
