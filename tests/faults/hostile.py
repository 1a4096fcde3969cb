"""One who dials an agent with gRPC, proper or not, and sends what it likes.

python -m tests.faults.hostile FLEET AGENT VICTIM FILE …       as AGENT: what is in each file once, a line on stdout;
                                                               after one on stdin ten times, a line on stdout
"""

import queue
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc

from codecl.peers import fleet, links
from codecl.peers.certificates import name_of


class Caller:
    """Calls an agent, a link after another."""

    def __init__(self, victim, identity=None, **options):
        known = victim.identity
        chosen = [("grpc.ssl_target_name_override", name_of(known.fleet, known.agent)), *options.items()]
        chosen += [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        pair = (identity.key, identity.certificate) if identity else (None, None)
        credentials = grpc.ssl_channel_credentials(known.authority, *pair)
        self.channel = grpc.secure_channel(victim.fleet.addresses[known.agent].target, credentials, chosen)
        self._out, self.stream = queue.SimpleQueue(), None
        self.dial()

    def dial(self):
        self.stop()
        self._out = queue.SimpleQueue()
        self.stream = self.channel.stream_stream(f"/{links.SERVICE}/{links.METHOD}")(iter(self._out.get, None))

    def linked(self, seconds=20):
        """Dial until it takes us."""
        deadline, said = time.monotonic() + seconds, None
        while said is None:
            try:
                said = next(self.stream, None)
                code = None
            except grpc.RpcError as error:
                code = error.code()
            if said is None:
                assert code in (None, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED), code
                assert time.monotonic() < deadline
                self.dial()
        assert said == b""

    def send(self, *data):
        for one in data:
            self._out.put(one)

    def code(self, seconds=20):
        """How the call ended, whatever was said before."""
        deadline = time.monotonic() + seconds
        with suppress(grpc.RpcError):
            for _ in self.stream:
                assert time.monotonic() < deadline, "it still goes on"
        return self.stream.code()

    def stop(self):
        self._out.put(None)
        if self.stream is not None:
            self.stream.cancel()

    def end(self):
        self.stop()
        self.channel.close()


@contextmanager
def calling(victim, identity=None, **options):
    caller = Caller(victim, identity, **options)
    try:
        yield caller
    finally:
        caller.end()


def main(folder: Path, agent: int, victim: int, files: list[Path]) -> None:
    us, them = (fleet.read(folder / f"agent-{number}" / "agent.yaml") for number in (agent, victim))
    known = [path.read_bytes() for path in files]
    with calling(them, us.identity) as caller:
        for times in (1, 10):
            for data in known:
                for _ in range(times):
                    caller.dial()
                    caller.linked()
                    caller.send(data)
                    caller.code()
            print(times, flush=True)
            sys.stdin.readline()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), list(map(Path, sys.argv[4:])))
