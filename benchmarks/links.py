"""What slow links cost: a step of codec against codec-full, one agent a rank, every rank behind a link of its own.

    sudo python benchmarks/links.py --ranks 4 --mbit 100          (Linux, iproute2, root)

Each rank lives in a network namespace whose link is limited in both directions (tc tbf). The case is that of `codecl
bench`: AlexNet in its second task with half of every layer's space free, on random images, on the CPU.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

BRIDGE, NET, PORT = "codecl-br", "10.199.0", "29500"
STEPS = 16  # of a round


def measure(model: str, methods: Sequence[str], rounds: int) -> None:
    """What every rank runs. Rank 0 prints a line for each method."""
    import torch

    from codecl import bench
    from codecl.assemble import assemble, build_model, computing, deal, seeded
    from codecl.exchange.ranks import joined

    cpu, problem = torch.device("cpu"), bench.PROBLEMS[model]
    with joined("cluster", cpu) as here, computing(cpu):
        for method in methods:
            config = bench._config(problem, here.size, method, {"running": "loop"})
            with seeded(0, "bench", cpu):
                dealt = deal(config, bench._tasks(problem, here.size * STEPS), cpu)
                model_ = build_model(config, dealt[0].shape, dealt[0].classes)
                setup, start = assemble(config, model_, dealt, cpu, here.exchange)
                case = bench._ours(setup, bench._second_task(setup, start))
                next(case)
                before: Any = setup.exchange.wire.sent_bytes  # type: ignore[attr-defined]
                ms = [next(case).ms for _ in range(rounds)]
            sent: Any = setup.exchange.wire.sent_bytes - before  # type: ignore[attr-defined]
            steps = rounds * dealt[1].steps(problem.batch)
            if here.leads:
                row = {"method": method, "ms": round(statistics.median(ms), 1), "of": [round(one, 1) for one in ms]}
                print(json.dumps({**row, "wire_mb_a_step": round(sent / steps / 1e6, 3)}), flush=True)


def sh(command: str) -> None:
    subprocess.run(command.split(), check=True)


@contextmanager
def network(ranks: int, mbit: float) -> Iterator[list[str]]:
    """A namespace for each rank, all on one bridge, each behind a link of so many Mbit/s; 0: no limit."""
    names = [f"codecl-{rank}" for rank in range(ranks)]
    try:
        sh(f"ip link add {BRIDGE} type bridge")
        sh(f"ip link set {BRIDGE} up")
        for rank, name in enumerate(names):
            sh(f"ip netns add {name}")
            sh(f"ip link add {name} type veth peer name wan netns {name}")
            sh(f"ip link set {name} master {BRIDGE} up")
            sh(f"ip -n {name} addr add {NET}.{rank + 1}/24 dev wan")
            sh(f"ip -n {name} link set wan up")
            sh(f"ip -n {name} link set lo up")
            if mbit:
                limit = f"root tbf rate {mbit}mbit burst 64kb latency 50ms"
                sh(f"tc qdisc add dev {name} {limit}")
                sh(f"tc -n {name} qdisc add dev wan {limit}")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)
        subprocess.run(["ip", "link", "del", BRIDGE], stderr=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--mbit", type=float, default=100, help="of each link, both directions; 0: no limit")
    parser.add_argument("--model", default="alexnet")
    parser.add_argument("--methods", default="codec,codec-full")
    parser.add_argument("--rounds", type=int, default=5, help="epochs of 16 steps")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        return measure(given.model, given.methods.split(","), given.rounds)
    with network(given.ranks, given.mbit) as names:
        common = {"WORLD_SIZE": str(given.ranks), "MASTER_ADDR": f"{NET}.1", "MASTER_PORT": PORT}
        common |= {"GLOO_SOCKET_IFNAME": "wan", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        command = [sys.executable, __file__, *sys.argv[1:], "--rank"]
        processes = [
            subprocess.Popen(["ip", "netns", "exec", name, *command], env={**os.environ, **common, "RANK": str(rank)})
            for rank, name in enumerate(names)
        ]
        sys.exit(max(process.wait() for process in processes))


if __name__ == "__main__":
    main()
