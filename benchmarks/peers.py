"""Time a step, AlexNet, 4 agents on a ring: `peers` (gRPC, TLS) against `cluster` (gloo), in turn, on this machine.

python benchmarks/peers.py [TIMES] [--agents N]        made images; prints a row a turn, then ratios
python benchmarks/peers.py --load 32 [--topology torus]        the quickstart: messages, memory, sockets
python benchmarks/peers.py --against SRC [TIMES]       bare rounds of two agents, of this code and of other sources (the
                                                       src folder of another checkout), in turn
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from codecl.runs.reader import read_run
from codecl.train.events import EpochEnded, TaskOpened

EPOCHS = 3
WARM, ROUNDS = 50, 2000  # without a model


def made(folder: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (6000, 3, 32, 32), generator=generator, dtype=torch.uint8)
    labels = torch.arange(6000) % 100
    parts = {"train_images": images[:5000], "train_labels": labels[:5000]}
    save_file({**parts, "test_images": images[5000:], "test_labels": labels[5000:]}, folder / "cifar100.safetensors")


def settings(agents: int) -> list[str]:
    fields = {"train.epochs": EPOCHS, "data.tasks": 1, "train.execution": "loop", "train.batch_size": 22}
    words = [word for field, value in fields.items() for word in ("--set", f"{field}={value}")]
    return ["--agents", str(agents), "--method", "codec", "--set", "data.stream=split(cifar100, 100)", *words]


def step_ms(folder: Path) -> float:
    """Of the epochs after the first, the median."""
    run = read_run(folder)
    epochs = run.of(EpochEnded)[1:]
    return 1000 * statistics.median(epoch.seconds for epoch in epochs) / run.of(TaskOpened)[0].steps


def cluster(agents: int, out: Path, env: dict[str, str]) -> float:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    common = {"WORLD_SIZE": str(agents), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "codecl", "run", "split-cifar100", *settings(agents), "--out", str(out)]
    ranks = [
        subprocess.Popen(command, env={**env, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=-3)
        for rank in range(agents)
    ]
    assert [rank.wait() for rank in ranks] == [0] * agents
    return step_ms(next(out.glob("*/seed-*")))


def peers(agents: int, out: Path, env: dict[str, str]) -> float:
    command = [sys.executable, "-m", "codecl", "peer", "local", "split-cifar100", *settings(agents), "--out", str(out)]
    assert subprocess.run([*command, "--deadline", "none"], env=env, stdout=-3).returncode == 0
    return statistics.median(step_ms(folder) for folder in out.glob("*/seed-*/agent-?"))


def connections(process: int) -> int:
    """TCP connections that stand."""
    files = [Path(f"/proc/{process}/net/{name}") for name in ("tcp", "tcp6")]
    table = [line.split() for file in files if file.exists() for line in file.read_text().splitlines()[1:]]
    standing = {f"socket:[{row[9]}]" for row in table if row[3] == "01"}
    return sum(os.readlink(file) in standing for file in Path(f"/proc/{process}/fd").iterdir() if file.is_symlink())


def memory(process: int) -> dict[str, int]:
    """MiB: resident, and of that not shared with others."""
    rows = dict(line.split(":", 1) for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:])
    own = sum(int(rows[name].split()[0]) for name in ("Private_Clean", "Private_Dirty"))
    return {"resident": int(rows["Rss"].split()[0]) >> 10, "own": own >> 10}


def load(agents: int, topology: str) -> None:
    """A fleet of the quickstart, looked at in the middle of its second task."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        command = [sys.executable, "-m", "codecl", "peer", "local", "--agents", str(agents), "--topology", topology]
        began = time.monotonic()
        fleet = subprocess.Popen([*command, "--set", "data.tasks=2", "--deadline", "none", "--out", name], stdout=-3)
        while not any('"task": 1' in file.read_text() for file in out.glob("*/seed-*/agent-0/events.jsonl")):
            time.sleep(0.5)
            assert fleet.poll() is None
        children = Path(f"/proc/{fleet.pid}/task/{fleet.pid}/children").read_text().split()
        sizes, sockets = [memory(int(one)) for one in children], [connections(int(one)) for one in children]
        assert fleet.wait() == 0
        seconds = time.monotonic() - began
        folders = sorted(out.glob("*/seed-*/agent-[0-9]*/"))
        runs = [read_run(folder) for folder in folders]
    first, epochs = runs[0].metrics, runs[0].of(EpochEnded)
    steps, busy = first.timing.iterations, sum(epoch.seconds for epoch in epochs)
    messages = sum(epoch.messages for epoch in epochs) * agents
    print(f"{agents} peers on {topology}: {seconds:.0f} s in all, ACC {first.acc:.2f}, {first.status}")
    print(f"{1000 * busy / steps:.1f} ms a step, {messages / busy:.0f} messages a second while training")
    for what in ("resident", "own"):
        print(f"{what} memory of an agent: {statistics.median(size[what] for size in sizes)} MiB")
    neighbours = sorted({len(run.metrics.links) for run in runs})
    print(f"connections of an agent: {sorted(set(sockets))}; neighbours: {neighbours}")


def rounds(agent: int, folder: Path) -> None:
    """As one of two agents: rounds of 100,000 numbers without a model; prints milliseconds of each."""
    from codecl.exchange import topology
    from codecl.peers import agent as peer
    from codecl.peers import fleet
    from codecl.peers.decisions import PeersConfig
    from codecl.peers.history import History
    from codecl.peers.node import Node

    torch.set_num_threads(1)
    member, rules = fleet.read(folder / f"agent-{agent}" / "agent.yaml"), PeersConfig(deadline=None)
    graph = topology.build(member.fleet.run_config().topology, 2, 0)
    node = Node(graph, torch.float32, torch.device("cpu"), peer.identity_of(member), rules)
    node.open(History(bytes(32), ()), 1, 1 << 26, lambda node: peer.connect(member, node))
    node.meet()
    row, began = torch.randn(1, 100_000), 0.0
    for number in range(WARM + ROUNDS):
        if number == WARM:
            began = time.perf_counter()
        row = node.start(row, "train").wait()
    print(1000 * (time.perf_counter() - began) / ROUNDS)
    node.close()


def fleet_of_two(folder: Path) -> None:
    from codecl.peers import fleet
    from codecl.peers.decisions import PeersConfig
    from codecl.peers.local import free_ports
    from codecl.runs.config import validate

    config = validate({"preset": "fit", "agents": 2, "topology": {"name": "complete"}})
    fleet.init(config, [("127.0.0.1", port) for port in free_ports(2)], PeersConfig(), folder)


def against(other: Path, times: int) -> None:
    """Bare rounds, in turn: what a message costs beside the model."""
    here, ratios = Path(__file__).resolve().parents[1] / "src", []
    for _ in range(times):
        took = {}
        for source in (other, here):
            with tempfile.TemporaryDirectory() as name:
                command = [sys.executable, __file__, "--rounds", str(Path(name) / "fleet")]
                env = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
                subprocess.run(command, env=env, check=True)
                agents = [[*command, "--agent", str(agent)] for agent in (0, 1)]
                both = [subprocess.Popen(one, env=env, stdout=subprocess.PIPE, text=True) for one in agents]
                took[source] = max(float(one.communicate()[0]) for one in both)
        ratios.append(took[here] / took[other])
        print(f"other {took[other]:.3f} ms   here {took[here]:.3f} ms   ratio {ratios[-1]:.3f}", flush=True)
    print(f"here / other: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}, {times} turns)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("times", type=int, nargs="?", default=5)
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--load", type=int)
    parser.add_argument("--topology", default="ring")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--rounds", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--agent", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rounds:
        return fleet_of_two(given.rounds) if given.agent is None else rounds(given.agent, given.rounds)
    if given.against:
        return against(given.against.resolve(), given.times)
    if given.load:
        return load(given.load, given.topology)
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made(folder)
        env = {**os.environ, "CODECL_DATA": name, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        for turn in range(given.times):
            a = cluster(given.agents, folder / f"cluster-{turn}", env)
            b = peers(given.agents, folder / f"peers-{turn}", env)
            ratios.append(b / a)
            print(f"cluster {a:.1f} ms   peers {b:.1f} ms   ratio {b / a:.2f}", flush=True)
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    print(f"peers / cluster: {statistics.median(ratios):.2f} ({spread}, {len(ratios)} turns)")


if __name__ == "__main__":
    main()
