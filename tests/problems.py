"""Small problems that tests train on, and small runs that they record or write by hand."""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from codecl import api
from codecl.data.task import Task
from codecl.exchange import Simulated
from codecl.runs.build import BuildExchange, build_setup, task_data
from codecl.runs.config import RunConfig, merge, validate
from codecl.runs.grid import grid
from codecl.runs.schema import Metrics, Timing, Traffic
from codecl.train import loop
from codecl.train.cuda_graph import Replay
from codecl.train.loop import train
from codecl.train.state import Setup, State, TaskPosition

CPU = torch.device("cpu")


def tasks(count: int = 3, images: int = 48, shape: tuple[int, ...] = (2, 6, 6), classes: int = 3) -> list[Task]:
    """Random low-rank images with labels that can be learned, another kind each task."""
    out = []
    for number in range(count):
        generator = torch.Generator().manual_seed(number)
        means = torch.randn(classes, *shape, generator=generator, dtype=torch.float64)
        labels = torch.arange(2 * images) % classes
        noise = torch.randn(2 * images, *shape, generator=generator, dtype=torch.float64)
        pixels = means[labels] + 0.3 * noise
        out.append(Task((pixels[:images], labels[:images]), (pixels[images:], labels[images:]), classes, f"t{number}"))
    return out


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(72, 10), nn.Tanh(), nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 3))


def convolutional() -> nn.Module:
    """Padding, stride, bias and groups."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(54, 7),
        nn.Tanh(),
        nn.Linear(7, 3),
    )


def normed() -> nn.Module:
    """A norm over the batch and one over the features of an image."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(64, 8),
        nn.LayerNorm(8),
        nn.Tanh(),
        nn.Linear(8, 3),
    )


def pooled(shape: tuple[int, ...], classes: int) -> nn.Module:
    """For a config to name, as `tests.problems:pooled`: of images of the quickstart, with a norm."""
    inner = nn.Linear(49, 16), nn.BatchNorm1d(16), nn.Tanh()
    return nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), *inner, nn.Linear(16, classes))


class Tied(nn.Module):
    """One weight used twice, and two layers that share a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.inner = nn.Linear(72, 6), nn.Linear(6, 6)
        self.one, self.two = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        self.two.weight = self.one.weight
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.inner(torch.tanh(self.inner(torch.tanh(self.enter(x.flatten(1)))))))
        return self.head(self.two(torch.tanh(self.one(x))))


def config(**fields: object) -> RunConfig:
    small = {
        "preset": "test",
        "seed": 3,
        "dtype": "float64",
        "agents": 4,
        "topology": {"name": "ring"},
        "model": {"name": "own"},
        "data": {"stream": "own"},
        "growth": {"threshold": 0.9, "increment": 0.01, "images": 8},
        "train": {"epochs": 2, "batch_size": 4, "lr": 0.05},
    }
    return validate(merge(small, fields))


def record(
    out: Path, method: str, agents: str | None = None, topology: str | None = None, seeds: str | None = None, *more: str
) -> Path:
    """Real runs of the quickstart, of two short tasks."""
    settings = ["train.epochs=2", "data.tasks=2", "train.batch_size=20", *more]
    for run in grid("quickstart", method, agents, topology, seeds, settings):
        api.run(run, out=out, device="cpu", mu=True)
    return out


def recorded_run(runs: Path, method: str = "codec", seed: int = 1) -> Path:
    """The folder of one of the runs of the fixtures `recorded` and `copied`."""
    (folder,) = runs.glob(f"quickstart-{method}-ring4-*/seed-{seed}")
    return folder


def event_lines(folder: Path) -> list[str]:
    return (folder / "events.jsonl").read_text().splitlines(keepends=True)


def change_metrics(folder: Path, **fields: object) -> None:
    path = folder / "metrics.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def write_metrics(
    folder: Path, traffic: dict[str, object] | None = None, ms_per_iteration: float = 3.0, **fields: object
) -> None:
    """metrics.json of a run with these labels and scores; all else is made up."""
    sent = {"cc": 2.0, "cc_reference": 1.75, "train_bytes": 1000, "boundary_bytes": 500, "full_bytes": 3000}
    scores = {"acc": 54.0, "bwt": -1.0, "tasks": 1, "accuracy_matrix": [], "consensus_error_by_task": []}
    metrics = Metrics(
        **scores | {"free_by_task": [], "kept_by_task": []} | fields,
        traffic=Traffic(**{"cc_by_task": [], "wire_bytes": None} | sent | (traffic or {})),
        timing=Timing(train_s=1.0, iterations=100, ms_per_iteration=ms_per_iteration, wall_s=2.0),
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.json").write_text(json.dumps(metrics.dump()))


def build(
    module: nn.Module,
    stream: list[Task],
    settings: RunConfig,
    exchange: BuildExchange = Simulated,
    device: torch.device = CPU,
) -> tuple[Setup, State]:
    return build_setup(settings, task_data(settings, stream, device), device, module, exchange)


def trajectory(
    module: nn.Module, stream: list[Task], settings: RunConfig, device: torch.device = CPU
) -> Iterator[list[dict[str, torch.Tensor]]]:
    """All parameters of all agents after each step."""
    layout = None
    for event in train(*build(module, stream, settings, device=device)):
        if event.kind == "task":
            layout = event.agents.layout
        if event.kind == "step":
            yield [layout.parameters(row) for row in event.coords_AD.clone()]


def furthest(ours: list[dict[str, torch.Tensor]], theirs: list[dict[str, torch.Tensor]]) -> float:
    """The largest difference of any parameter of any agent."""
    return max(float((a[name] - b[name]).abs().max()) for a, b in zip(ours, theirs, strict=True) for name in b)


def told(settings, module):
    """All events of a run of these settings."""
    return list(train(*build(module, tasks(), settings)))


def digests(events):
    return [event.digest for event in events if event.kind == "flood"]


def check_goes_on(settings, module):
    """Stopped inside the second task, it ends as if it had not."""
    whole = told(settings, module)
    stopped = [event.live for event in whole if event.kind == "epoch"][4]
    setup, _ = build(module, tasks(), settings)
    rest = list(train(setup, stopped.state, TaskPosition(stopped.epoch + 1, stopped.carry.joined())))
    assert digests(rest) == digests(whole)[1:]


def check_replays(settings, module, monkeypatch):
    """A replayed step is a plain one."""
    plain = digests(told(settings, module))
    monkeypatch.setattr(loop, "epochs", lambda step, carry, indices, traffic, _: Replay(step, carry, indices, traffic))
    assert digests(told(settings, module)) == plain


def check_codec_is_codec_full(settings_of, module):
    """`settings_of`: by the method's name."""
    runs = [trajectory(module, tasks(), settings_of(method)) for method in ("codec", "codec-full")]
    for ours, theirs in zip(*runs, strict=True):
        assert furthest(ours, theirs) < 1e-9
