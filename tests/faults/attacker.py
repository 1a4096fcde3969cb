"""A member of the fleet, with a key and a certificate of its own, that attacks a neighbour from a process of its own.

python -m tests.faults.attacker FLEET AGENT VICTIM      reads the name of an attack on stdin, says on stdout what came
                                                        of it, and goes on with it until the next line
"""

import socket
import ssl
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import torch

from codecl.peers import fleet, frames, links
from codecl.peers.certificates import name_of
from codecl.peers.frames import FrameKind
from tests.faults.hostile import calling

MANY = 1000


class Attacker:
    """Each attack gives what it says, and leaves what it holds to the stack."""

    def __init__(self, folder: Path, agent: int, victim: int):
        self.folder, self.agent = folder, agent
        self.us, self.them = (fleet.read(folder / f"agent-{number}" / "agent.yaml") for number in (agent, victim))

    def frame(self, kind, tensors=None, **about):
        agents = len(self.us.fleet.addresses)
        fields = {"fleet": self.us.fleet.name, "sender": self.agent, "stage": 1, "step": 40, "commit": bytes(32)}
        fields |= {"beats": [0] * agents, "positions": [0] * agents}
        return frames.encode(kind, tensors, **(fields | about))

    def call(self, stack, **options):
        pair = ((self.us.folder / f"{name}.pem").read_bytes() for name in ("key", "certificate"))
        identity = self.us.identity._replace(**dict(zip(("key", "certificate"), pair, strict=True)))
        return stack.enter_context(calling(self.them, identity, **options))

    def connections(self, stack):
        """TLS connections on which nothing is ever called."""
        address = self.them.fleet.addresses[self.them.identity.agent]
        context = ssl.create_default_context(cadata=self.us.fleet.authority)
        context.load_cert_chain(self.us.folder / "certificate.pem", self.us.folder / "key.pem")
        context.set_alpn_protocols(["h2"])
        name, opened = name_of(self.us.fleet.name, self.them.identity.agent), 0
        for _ in range(MANY):
            with suppress(OSError):  # it may have ended
                raw = stack.enter_context(socket.create_connection((address.host, address.port), timeout=20))
                end = stack.enter_context(context.wrap_socket(raw, server_hostname=name))
                end.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))  # no settings
                opened += 1
        return opened

    def streams(self, stack):
        """One call after another, none of which is ended."""
        channels = [self.call(stack).channel for _ in range(10)]
        ends = threading.Event()
        stack.callback(ends.set)

        def nothing():
            ends.wait()
            yield from ()

        calls = [
            channel.stream_stream(f"/{links.SERVICE}/{links.METHOD}")(nothing())
            for channel in channels
            for _ in range(MANY // len(channels))
        ]
        stack.callback(lambda: [call.cancel() for call in calls])
        return len(calls)

    def slow(self, stack):
        """Asks for commits over and over and reads nothing."""
        caller = self.call(stack, **{"grpc.http2.bdp_probe": 0})
        caller.linked()
        self._again(stack, lambda: caller.send(self.frame(FrameKind.REQUEST, history=[bytes(32)])))
        return "linked"

    def huge(self, stack):
        """Rows larger than the model allows, of a task that is to come; then a message that is larger than any."""
        said = []
        for data in (
            self.frame(FrameKind.ROW, {"row": torch.ones(400_000)}, stage=2),
            self.frame(FrameKind.FULL, {"row": torch.ones(400_000)}, stage=2),
            bytes(64 << 20),
        ):
            caller = self.call(stack)
            caller.linked()
            caller.send(data)
            said.append(caller.code().name)
        return said

    def other(self, stack):
        """Speaks as another member, in a frame and in what it is dialled as."""
        caller = self.call(stack)
        caller.linked()
        caller.send(self.frame(FrameKind.ROW, {"row": torch.ones(5)}, sender=2))
        return caller.code().name

    def lists(self, stack):
        """A list of revoked certificates that it signed itself."""
        from codecl.peers import certificates, revocations

        key = certificates.load_key(self.us.identity.key)
        other = {certificates.load(self.us.fleet.addresses[2].certificate).serial_number: 2}
        made = revocations.write(9, other, certificates.load(self.us.fleet.authority), key)
        caller = self.call(stack)
        caller.linked()
        caller.send(self.frame(FrameKind.KEYS, manifest=made.pem))
        return caller.code().name

    def busy(self, stack):
        """Says that it is busy with the step before, for ever."""
        caller = self.call(stack)
        caller.linked()

        def say():
            beats = [0] * len(self.us.fleet.addresses)
            beats[self.agent] = int(time.time() * 1000)
            caller.send(self.frame(FrameKind.BEAT, stage=0, step=0, busy=True, beats=beats))

        self._again(stack, say)
        return "linked"

    def dial(self, stack):
        """With the key and certificate as they are now; how the call ended, or that it goes on."""
        deadline = time.monotonic() + 20
        while True:
            caller = self.call(stack)
            try:
                said = next(caller.stream, None)
            except grpc.RpcError as error:
                if "too soon" in error.details() and time.monotonic() < deadline:
                    time.sleep(0.05)
                    continue
                return f"{error.code().name} {error.details()}".splitlines()[0]
            if said == b"":
                return "linked"

    def _again(self, stack, act):
        ends = threading.Event()

        def acts():
            while not ends.wait(0.02):
                act()

        thread = threading.Thread(target=acts, daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(ends.set)


def main(folder: Path, agent: int, victim: int) -> None:
    attacker, stack = Attacker(folder, agent, victim), ExitStack()
    print("here", flush=True)
    for line in sys.stdin:
        stack.close()
        print(getattr(attacker, line.strip())(stack) if line.strip() else "nothing", flush=True)
    stack.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
