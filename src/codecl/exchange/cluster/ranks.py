"""The processes of a run: how they meet, which one is the main one, and how they end together when one of them fails.

A launcher such as torchrun sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (and LOCAL_RANK). The first rank that
fails leaves a note where all can read it, before it closes its connections: whoever then misses it says, and ends
with, what the note says.
"""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from codecl.errors import CodeclError, ConfigError, DataError, RunFailed
from codecl.exchange.base import Exchange
from codecl.exchange.cluster import Cluster, blocks
from codecl.exchange.cluster.wire import BOUNDARY, RankLost, Wire
from codecl.exchange.simulated import Simulated
from codecl.exchange.topology import Topology
from codecl.registry import reason

NAMES = ("simulated", "cluster")
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
MEET = timedelta(seconds=60)
GRACE_S = 5  # after SIGTERM: a broken connection shows long before, and a launcher insists only later
LINGER_S = 5.0  # rank 0 may keep the note: it stays until the others have read it
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
INTERRUPTED = 130
KINDS: dict[int, type[CodeclError]] = {2: ConfigError, 3: DataError}
NONE: Mapping[int, str] = {}
T = TypeVar("T")


class Ranks:
    """The processes of a run, as this one sees them. One alone is all of them."""

    def __init__(
        self, exchange: str, device: torch.device, rank: int = 0, size: int = 1, sockets: Mapping[int, str] = NONE
    ) -> None:
        """`sockets`: that connect it with the others."""
        self.name, self.device, self.rank, self.size, self.sockets = exchange, device, rank, size, sockets
        self._wire = Wire(device)

    @property
    def is_main(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    def broadcast(self, look: Callable[[], T]) -> T:
        """What the main rank finds when it looks, at every rank. Plain values only: they travel as JSON."""
        if self.size == 1:
            return look()
        out: T = json.loads(self.broadcast_bytes(lambda: json.dumps(look()).encode()))
        return out

    def broadcast_bytes(self, look: Callable[[], bytes]) -> bytes:
        """The same for bytes."""
        if not self.is_main:
            return self._wire.hear(0)
        value = look()
        for post in [post for peer in range(1, self.size) for post in self._wire.say(peer, value)]:
            post.wait(BOUNDARY)
        return value

    def exchange(self, topology: Topology, dtype: torch.dtype, device: torch.device) -> Exchange:
        if self.name == "simulated":
            return Simulated(topology, dtype, device)
        cluster = Cluster(topology, dtype, device, self.rank, self.size)
        self._wire.name = cluster.wire.name  # by now it is known who holds which agents
        return cluster

    def own(self, purpose: str) -> str:
        """A purpose of randomness that differs between ranks."""
        return f"{purpose}/{self.rank}" if self.rank else purpose

    def check(self, agents: int) -> None:
        """Refuse more ranks than agents."""
        blocks(agents, self.size)


_joined: Ranks | None = None  # by an outer call in this process
_meetings = 0  # so far: a launcher's store outlives each, and the next must not read what the last has left there


@contextmanager
def joined(exchange: str, device: torch.device) -> Iterator[Ranks]:
    """In here the ranks are together. Inside another call: those that it has joined.

    `exchange`: simulated, cluster, or auto: cluster where a launcher started more than one process."""
    global _joined
    name = _chosen(exchange)
    if _joined is not None:
        yield _joined
    elif name == "simulated":
        yield Ranks(name, device)
    else:
        ranks, store = _meet(device)
        _joined = ranks
        with _on_terminate():
            try:
                yield ranks
                ranks.broadcast(lambda: None)  # nobody leaves while another may still wait for it
            except BaseException as error:
                raise _failed(ranks, store, error) from error
            finally:
                _joined = None
                _part()


def _chosen(exchange: str) -> str:
    if exchange == "auto":
        return "cluster" if os.environ.get("WORLD_SIZE", "1") != "1" else "simulated"
    if exchange not in NAMES:
        raise ConfigError(f"exchange: {exchange!r} is not one of auto, {', '.join(NAMES)}")
    return exchange


def _meet(device: torch.device) -> tuple[Ranks, Store]:
    missing = [name for name in VARIABLES if name not in os.environ]
    if missing:
        raise ConfigError(
            f"exchange: cluster needs a launcher that sets {', '.join(VARIABLES)} ({missing[0]} is not set), such as"
            " torchrun --nproc-per-node 4 -m codecl run …"
        )
    if dist.is_initialized():
        raise ConfigError("exchange: torch.distributed is in use already in this process; leave it to codecl")
    global _meetings
    _meetings += 1
    device = _own(device)
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    try:
        store, rank, size = next(iter(rendezvous("env://", timeout=MEET)))
        before = _sockets()
        dist.init_process_group(
            BACKENDS[device.type],
            store=PrefixStore(f"codecl/{_meetings}/group", store),
            rank=rank,
            world_size=size,
            timeout=MEET,
            device_id=device if device.type == "cuda" else None,
        )
        store = PrefixStore(f"codecl/{_meetings}/run", store)
        _all_met(store, size)
    except (RuntimeError, ValueError) as error:
        rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
        raise RunFailed(f"rank {rank}: {size} ranks did not meet at {where} ({reason(error)})") from error
    sockets = {} if device.type == "cuda" else dict(_sockets().items() - before.items())
    return Ranks("cluster", device, rank, size, sockets), store


def _all_met(store: Store, size: int) -> None:
    """Nobody goes on, and fails, while another still connects: that one would say that they did not meet."""
    if store.add("met", 1) == size:
        store.set("all met", "")
    store.wait(["all met"], MEET)


def _own(device: torch.device) -> torch.device:
    """A rank's own GPU; the CPU is everyone's."""
    if device.type != "cuda":
        return device
    number, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= there:
        raise ConfigError(f"exchange: rank {number} of this machine has no GPU ({there} here); start {there} processes")
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def _failed(ranks: Ranks, store: Store, error: BaseException) -> BaseException:
    """Leave a note, or find that of the rank that failed first: that is what happened."""
    note = {"by": ranks.rank, "text": _text(ranks, error), "code": _code(error), "lost": isinstance(error, RankLost)}
    try:
        first = json.loads(store.compare_set("note", "", json.dumps(note)))
    except RuntimeError:
        first = {**note, "text": f"rank 0 is gone, and with it the place where all meet ({note['text']})"}
    _hang_up(ranks.sockets)  # the others notice
    _part()
    with suppress(RuntimeError):
        if not ranks.is_main:
            store.add("read", 1)
        deadline = time.monotonic() + LINGER_S
        others = ranks.size - 1 - first["lost"]
        while ranks.is_main and store.add("read", 0) < others and time.monotonic() < deadline:
            time.sleep(0.05)
    if not isinstance(error, CodeclError):
        return error
    out = KINDS.get(first["code"], RunFailed)(first["text"])
    out.said = first["by"] != ranks.rank
    return out


def _sockets() -> dict[int, str]:
    """The sockets of this process by file descriptor, each with its name; none where the system does not list them."""
    found = {}
    with suppress(OSError):
        for number in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                found[int(number)] = os.readlink(f"/proc/self/fd/{number}")
    return {number: name for number, name in found.items() if name.startswith("socket:")}


def _hang_up(sockets: Mapping[int, str]) -> None:
    """Close connections whoever still holds them: gloo keeps its own open while any message on its way is held
    somewhere, in a frame of the error for one, and others would wait for us until this process has ended."""
    for number, name in sockets.items():
        if _sockets().get(number) != name:
            continue
        with suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
            connection.getpeername()  # an error where it only listens: gloo aborts the process if that one is closed
            connection.shutdown(socket.SHUT_RDWR)


def _text(ranks: Ranks, error: BaseException) -> str:
    if isinstance(error, RankLost):
        return str(error)
    what = "interrupted" if _code(error) == INTERRUPTED else str(error) or type(error).__name__
    return f"{what} (rank {ranks.rank} of {ranks.size})"


def _code(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    code: Any = getattr(error, "exit_code", getattr(error, "code", 1))
    return code if isinstance(code, int) else 1


def _part() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def _on_terminate() -> Iterator[None]:
    """In here SIGTERM raises an error, after some seconds in which a better reason may show.

    Left by an error, the process still ends only some seconds after the signal: it has that error to report."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return
    inside = True

    def wait(*_: Any) -> None:
        signal.alarm(GRACE_S)

    def end(*_: Any) -> None:
        if inside:
            raise RunFailed("ended by the launcher (SIGTERM)")
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)

    before_terminate = signal.signal(signal.SIGTERM, wait)
    before_alarm = signal.signal(signal.SIGALRM, end)
    try:
        yield
    finally:
        inside = False
    signal.alarm(0)
    signal.signal(signal.SIGTERM, before_terminate)
    signal.signal(signal.SIGALRM, before_alarm)
