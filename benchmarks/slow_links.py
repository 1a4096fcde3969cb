"""Ranks behind links of a given rate, on one machine: each in a network namespace of its own (Linux, as root).

    python benchmarks/slow_links.py 4 100mbit bench --models alexnet --agents 4 --method codec,codec-full
    python benchmarks/slow_links.py 4 none run quickstart --agents 8

Starts `python -m codecl …` once in each of so many namespaces, joined by a bridge; what leaves a namespace is held to
the rate by the kernel (tc, token bucket). Prints what rank 0 prints. Nothing outside the namespaces is touched.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

NET, PORT = "10.213.0", "29513"


def sh(*words: str) -> None:
    subprocess.run(words, check=True)


@contextmanager
def made(make: list[str], undo: list[str]) -> Iterator[None]:
    sh(*make)
    try:
        yield
    finally:
        subprocess.run(undo, check=False)


@contextmanager
def links(ranks: int, rate: str) -> Iterator[list[str]]:
    """Namespaces on a bridge, each with one link; gives their names."""
    names, bridge = [f"codecl{rank}" for rank in range(ranks)], "codeclbr"
    with ExitStack() as stack:
        stack.enter_context(made(["ip", "link", "add", bridge, "type", "bridge"], ["ip", "link", "del", bridge]))
        sh("ip", "link", "set", bridge, "up")
        for rank, name in enumerate(names):
            stack.enter_context(made(["ip", "netns", "add", name], ["ip", "netns", "del", name]))
            sh("ip", "link", "add", f"{name}o", "type", "veth", "peer", "name", "net0", "netns", name)
            sh("ip", "link", "set", f"{name}o", "master", bridge, "up")
            sh("ip", "-n", name, "addr", "add", f"{NET}.{rank + 1}/24", "dev", "net0")
            for device in ("lo", "net0"):
                sh("ip", "-n", name, "link", "set", device, "up")
            if rate != "none":
                bucket = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "200ms"]
                sh("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "net0", *bucket)
        yield names


def main() -> int:
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    ranks, rate, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    meet = {"MASTER_ADDR": f"{NET}.1", "MASTER_PORT": PORT, "WORLD_SIZE": str(ranks), "GLOO_SOCKET_IFNAME": "net0"}
    with links(ranks, rate) as names:
        started = []
        for rank, name in enumerate(names):
            words = ["ip", "netns", "exec", name, sys.executable, "-m", "codecl", *command]
            place = {"RANK": str(rank), "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"}
            started.append(subprocess.Popen(words, env={**os.environ, **meet, **place}))
        return max(process.wait() for process in started)


if __name__ == "__main__":
    sys.exit(main())
