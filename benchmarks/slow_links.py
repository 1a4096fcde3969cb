"""Ranks behind links of a given rate, on one machine: each in a network namespace of its own (Linux, as root).

    python benchmarks/slow_links.py 4 100mbit bench --models alexnet --agents 4 --method codec,codec-full
    python benchmarks/slow_links.py 4 none run quickstart --agents 8
    python benchmarks/slow_links.py 4 100mbit peers 32,8,4

Starts `python -m codecl …` once in each of so many namespaces, joined by a bridge; what leaves a namespace is held to
the rate by the kernel (tc, token bucket). Prints what rank 0 prints. With `peers`: a fleet of as many peers, AlexNet on
made images, with messages of each of these widths in turn; prints a step's time. Nothing outside the namespaces is
touched.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

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


def inside(name: str, *words: str) -> list[str]:
    return ["ip", "netns", "exec", name, sys.executable, "-m", "codecl", *words]


def ranks(names: Sequence[str], command: Sequence[str]) -> int:
    meet = {"MASTER_ADDR": f"{NET}.1", "MASTER_PORT": PORT, "WORLD_SIZE": str(len(names)), "GLOO_SOCKET_IFNAME": "net0"}
    started = []
    for rank, name in enumerate(names):
        place = {"RANK": str(rank), "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"}
        started.append(subprocess.Popen(inside(name, *command), env={**os.environ, **meet, **place}))
    return max(process.wait() for process in started)


def peers(names: Sequence[str], bits: str, turns: int = 3) -> int:
    from peers import made, settings, step_ms

    with tempfile.TemporaryDirectory() as held:
        folder = Path(held)
        made(folder)
        env = {**os.environ, "CODECL_DATA": held, "OMP_NUM_THREADS": "1"}
        places = [word for number in range(len(names)) for word in ("--at", f"{NET}.{number + 1}:{PORT}")]
        for turn in range(turns):
            for width in bits.split(","):
                fleet, out = folder / f"fleet-{turn}-{width}", folder / f"out-{turn}-{width}"
                words = ["split-cifar100", *settings(len(names)), "--set", f"message.bits={width}", *places]
                init = inside(names[0], "peer", "init", *words, "--deadline", "none", "--out", str(fleet))
                subprocess.run(init, check=True, stdout=-3)
                files = [fleet / f"agent-{number}" / "agent.yaml" for number in range(len(names))]
                started = [
                    subprocess.Popen(inside(name, "agent", str(file), "--out", str(out)), env=env, stdout=-3, stderr=-3)
                    for name, file in zip(names, files, strict=True)
                ]
                if any(process.wait() for process in started):
                    return 1
                ms = statistics.median(step_ms(run) for run in out.glob("*/seed-*/agent-?"))
                print(f"{width} bits: {ms:.1f} ms a step", flush=True)
    return 0


def main() -> int:
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    with links(int(sys.argv[1]), sys.argv[2]) as names:
        if sys.argv[3] == "peers":
            return peers(names, sys.argv[4])
        return ranks(names, sys.argv[3:])


if __name__ == "__main__":
    sys.exit(main())
