"""Connections between neighbours: gRPC with mutual TLS, one a pair, dialled by the agent with the lower number.

TLS checks that the other side holds a certificate of this fleet's authority; here is checked that it is the neighbour
that the topology says, and that its certificate is not revoked. Who is dialled proves which certificate it has by a
signature, since gRPC does not tell. Whoever else knocks is refused and logged.
"""

import logging
import secrets
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import grpc

from codecl.errors import ConfigError
from codecl.peers import certificates, limits
from codecl.peers.certificates import Certificate, Identity, agent_of, name_of
from codecl.peers.frames import BadFrame, tensor_bytes
from codecl.peers.keys import Keys, Untrusted
from codecl.peers.link import Link
from codecl.peers.membership import log
from codecl.train.events import LinkBytes

if TYPE_CHECKING:
    from codecl.peers.receiving import Receiving

SERVICE, METHOD = "codecl.Peers", "Link"
RETRY_S, MAX_RETRY_S = 0.1, 2.0
LEAVE_S = 10.0  # for what is on its way out when an agent ends, at most: a commit may be large, a link slow
JOIN_S = 2.0  # for threads to end: one that lives on when Python ends can abort the process
GRPC_SLACK = 8 << 20  # of a message, beside its tensors
TOO_OFTEN = 20  # refusals of one member that are recorded, once
NONCE, PROOF, CERTIFICATE = "codecl-nonce-bin", "codecl-proof-bin", "codecl-certificate-bin"  # metadata of a call


class Links:
    """The connections of one agent. Its node is told of frames and changes from threads of their own."""

    def __init__(self, node: "Receiving", keys: Keys, addresses: Mapping[int, str], listen: str) -> None:
        self.node, self.me, self.keys, self.addresses = node, keys.identity.agent, keys, addresses
        self._counts: dict[int, Counter[str]] = defaultdict(Counter)  # LinkBytes by neighbour, over all links to it
        self._links: dict[int, Link] = {}
        self._dialled: dict[int, threading.Event] = {}  # whom we dial -> set when we should stop
        self._dialling: dict[threading.Thread, Link] = {}  # with what each tries now
        self._lock = threading.Lock()
        self._not_before: dict[int, float] = {}  # who has to wait: it dials over and over, or sent what does not fit
        self._dialled_at: dict[int, float] = {}  # when each neighbour that dials us was last let in
        self._refused: Counter[int] = Counter()  # how often a neighbour came too soon
        self._options = [
            ("grpc.max_receive_message_length", node.max_bytes + GRPC_SLACK),
            ("grpc.max_send_message_length", -1),
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.initial_reconnect_backoff_ms", int(RETRY_S * 1000)),
            ("grpc.min_reconnect_backoff_ms", int(RETRY_S * 1000)),
            ("grpc.max_reconnect_backoff_ms", int(MAX_RETRY_S * 1000)),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.so_reuseport", 0),
        ]
        self._workers = ThreadPoolExecutor(len(addresses) + 4, thread_name_prefix="served")
        calls = limits.MAX_CALLS * len(addresses)
        options = [*self._options, *limits.server_options()]
        self._server = grpc.server(self._workers, options=options, maximum_concurrent_rpcs=calls)
        handler = grpc.stream_stream_rpc_method_handler(self._answer)
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})])
        self._serving = keys.identity
        credentials = grpc.dynamic_ssl_server_credentials(_served(self._serving), self._new_keys, True)
        bound = 0
        with suppress(RuntimeError):
            bound = self._server.add_secure_port(listen, credentials)
        if not bound:
            raise ConfigError(f"listen: {listen} cannot be listened on; is another agent running there?")
        self._server.start()

    def _new_keys(self) -> grpc.ServerCertificateConfiguration | None:
        """Key and certificate, where they are new: gRPC asks whenever somebody dials. To give it the same ones again
        is not safe: it takes them up while others are still being answered with what it throws away."""
        before, self._serving = self._serving, self.keys.identity
        return None if self._serving is before else _served(self._serving)

    @property
    def up(self) -> set[int]:
        with self._lock:
            return {peer for peer, link in self._links.items() if link.open}

    @property
    def traffic(self) -> dict[str, LinkBytes]:
        """By neighbour that anything went to or came from."""
        return {str(peer): LinkBytes(**counts) for peer, counts in sorted(self._counts.items()) if counts.total()}

    def link_to(self, peer: int) -> Link | None:
        """The open link to this agent, if there is one."""
        with self._lock:
            link = self._links.get(peer)
        return link if link and link.open else None

    def connect_only(self, peers: set[int]) -> None:
        """Hold links to these agents and to nobody else."""
        ours = {peer for peer in peers if self.me < peer}
        for peer in ours - set(self._dialled):
            stop = self._dialled[peer] = threading.Event()
            threading.Thread(target=self._dial, args=(peer, stop), name=f"dial-{peer}", daemon=True).start()
        for peer in set(self._dialled) - ours:
            self._dialled.pop(peer).set()
        with self._lock:
            others = [link for peer, link in self._links.items() if peer not in peers]
        for link in others:
            link.close("no longer a neighbour")

    def close_untrusted(self) -> None:
        """Close links to those whose certificate holds no longer."""
        with self._lock:
            links = list(self._links.values())
        for link in links:
            try:
                if link.certificate is not None:
                    self.keys.still_holds(link.certificate)
            except Untrusted as error:
                line = "refused: agent %d, for %s; its link is closed"
                self.node.journal.log(logging.WARNING, (link.peer, "untrusted"), line, link.peer, error)
                link.close(str(error))

    def close(self) -> None:
        """What is on its way out still leaves."""
        for stop in self._dialled.values():
            stop.set()
        with self._lock:
            links = list(self._links.values())
        for link in links:
            link.close("this agent ends", at_once=False)
        deadline = time.monotonic() + LEAVE_S
        self._server.stop(LEAVE_S).wait()
        self._workers.shutdown(wait=False)
        for thread, link in list(self._dialling.items()):
            if link in links:
                thread.join(max(0.0, deadline - time.monotonic()))
            link.close()
            thread.join(JOIN_S)

    def _dial(self, peer: int, stop: threading.Event) -> None:
        """Dial until told to stop; with new keys over a new channel."""
        while not stop.is_set():
            us = self.keys.identity
            credentials = grpc.ssl_channel_credentials(us.authority, us.key, us.certificate)
            options = [*self._options, ("grpc.ssl_target_name_override", name_of(us.fleet, peer))]
            with grpc.secure_channel(self.addresses[peer], credentials, options) as channel:
                call = channel.stream_stream(f"/{SERVICE}/{METHOD}")
                self._dial_over(call, peer, stop, us)
        self._dialling.pop(threading.current_thread(), None)

    def _dial_over(self, call: Any, peer: int, stop: threading.Event, us: Identity) -> None:
        """As long as we are who the channel says."""
        pause, logged = RETRY_S, ""
        while not stop.is_set() and us is self.keys.identity:
            link, began, nonce = self._new_link(peer), time.monotonic(), secrets.token_bytes(32)
            stream = call(link.frames(), metadata=((NONCE, nonce),))
            link.cancel = stream.cancel
            self._dialling[threading.current_thread()] = link
            why = self._read(link, stream, nonce)
            stream.cancel()
            if stop.is_set():
                break
            if why != logged:
                about = peer, self.addresses[peer], why
                self.node.journal.log(logging.INFO, (peer, "no link"), "agent %d at %s: no link (%s)", *about)
            pause = RETRY_S if time.monotonic() - began > MAX_RETRY_S else min(1.5 * pause, MAX_RETRY_S)
            logged = why
            stop.wait(pause)

    def _new_link(self, peer: int) -> Link:
        return Link(peer, self.node.max_rows, self._counts[peer], limits.waiting_bytes(self.node.max_bytes))

    def _answer(self, incoming: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """A neighbour has dialled us."""
        names = [name.decode(errors="replace") for name in context.auth_context().get("x509_common_name", ())]
        peer = agent_of(self.keys.identity.fleet, names[0]) if names else None
        if peer is None or peer >= self.me or not self.node.admits(peer):
            who = f"agent {peer}" if peer is not None else repr(names[0] if names else "nobody")
            line = "refused: %s from %s is no neighbour that dials agent %d"
            self.node.journal.log(logging.WARNING, (who, "refused"), line, who, context.peer(), self.me)
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"agent {self.me} does not expect {who}")
            return
        if self._is_too_soon(peer):
            context.abort(grpc.StatusCode.UNAVAILABLE, "too soon after the last time")
            return
        link = self._new_link(peer)
        try:
            link.certificate = certificates.load(context.auth_context()["x509_pem_cert"][0])
            self.keys.believe(link.certificate, peer)
        except Untrusted as error:
            self.node.journal.log(logging.WARNING, (peer, "untrusted"), "refused: agent %d, for %s", peer, error)
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"agent {self.me} refuses agent {peer}: {error}")
            return
        self._prove(context, peer)
        link.cancel = context.cancel
        context.add_callback(link.close)
        threading.Thread(target=self._read, args=(link, incoming), name=f"read-{peer}", daemon=True).start()
        yield from link.frames()

    def _is_too_soon(self, peer: int) -> bool:
        """Whether a neighbour dials again too soon; one that does so over and over is recorded, once."""
        now = time.monotonic()
        with self._lock:
            too_soon = now < self._not_before.get(peer, now)
            if not too_soon:
                again = now - self._dialled_at.get(peer, -MAX_RETRY_S) < MAX_RETRY_S
                self._not_before[peer] = now + (MAX_RETRY_S if again else RETRY_S)
                self._dialled_at[peer] = now
            self._refused[peer] += too_soon
            recorded = too_soon and self._refused[peer] == TOO_OFTEN
        if recorded:
            self.node.link_refused(peer, f"it dialled {TOO_OFTEN} times too soon: one link a neighbour")
        return too_soon

    def _prove(self, context: Any, peer: int) -> None:
        """To who dialled us, that the certificate which we name is ours."""
        nonces = [value for name, value in context.invocation_metadata() if name == NONCE]
        if nonces:
            us = self.keys.identity
            proof = certificates.sign(us.key, _claim(us.fleet, peer, self.me, nonces[0][:64]))
            own = certificates.der(certificates.load(us.certificate))
            context.send_initial_metadata(((CERTIFICATE, own), (PROOF, proof)))

    def _proven(self, peer: int, nonce: bytes, metadata: Any) -> Certificate:
        """The certificate of whom we dialled; Untrusted where it is not believed."""
        said = dict(metadata or ())
        try:
            certificate = certificates.load_der(said[CERTIFICATE])
            claim = _claim(self.keys.identity.fleet, self.me, peer, nonce)
            fits = certificates.signed_by(certificates.pem(certificate), claim, said[PROOF])
        except (KeyError, ValueError, TypeError):
            fits = False
        if not fits:
            raise Untrusted("it does not prove which certificate it has")
        self.keys.believe(certificate, peer)
        return certificate

    def _read(self, link: Link, incoming: Any, nonce: bytes | None = None) -> str:
        """Take in frames until the link ends; why it did. `nonce`: what whom we dialled has to sign."""
        known = nonce is None
        if known:
            self._up(link)
        try:
            if nonce is not None:
                link.put(b"")
            for data in incoming:
                if not link.open:  # what is on its way out still leaves, so it is not cancelled here
                    continue
                if not known and nonce is not None:  # its first frame shows that it took us
                    link.certificate = self._proven(link.peer, nonce, incoming.initial_metadata())
                    known = True
                    self._up(link)
                if data:
                    size = tensor_bytes(data)
                    link.counts.update(received=size, headers_received=len(data) - size)
                    self.node.receive(link.peer, data)
            link.close("it closed the link")
        except BadFrame as error:
            line = "refused: a frame of agent %d (%s); its link is closed"
            self.node.journal.log(logging.WARNING, (link.peer, "frame"), line, link.peer, error)
            with self._lock:
                self._not_before[link.peer] = time.monotonic() + MAX_RETRY_S
            link.close(f"a frame that does not fit: {error}")
        except Untrusted as error:
            line = "refused: agent %d at %s, for %s"
            where = self.addresses.get(link.peer, "")
            self.node.journal.log(logging.WARNING, (link.peer, "untrusted"), line, link.peer, where, error)
            link.close(str(error))
        except grpc.RpcError as error:
            said = getattr(error, "details", lambda: "")() or type(error).__name__
            link.close(str(said).splitlines()[0][:120])
        except Exception as error:  # gRPC raises a bare exception where a call was cancelled under a reader
            link.close(type(error).__name__)
            if known and type(error) is not Exception:
                log.exception("agent %d: reading failed", link.peer)
        with self._lock:
            current = self._links.get(link.peer) is link
            if current:
                del self._links[link.peer]
        if current:
            self.node.link_changed(link.peer, False, link.why)
        return link.why

    def _up(self, link: Link) -> None:
        link.put(b"")  # before anything else, so that the other side knows
        with self._lock:
            before = self._links.get(link.peer)
            self._links[link.peer] = link
        if before:
            before.close("it dialled again")
        is_back = link.certificate is not None and self.keys.met(link.certificate, link.peer)
        self.node.link_changed(link.peer, True, "", is_back)


def _claim(fleet: str, dials: int, dialled: int, nonce: bytes) -> bytes:
    """What proves a certificate to who dials: of use to nobody else, and once."""
    return b"codecl link\0" + f"{fleet} {dials} {dialled} ".encode() + nonce


def _served(identity: Identity) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(identity.key, identity.certificate)], identity.authority)
