"""`codecl plan`."""

import functools
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from codecl.cli.common import AsJson, Graphs, Methods, Numbers, PresetName, Seeds, Settings, app, console_for
from codecl.errors import ConfigError

if TYPE_CHECKING:
    from codecl.plan import Plan
    from codecl.runs.config import RunConfig

UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}


@app.command()
def plan(
    preset: PresetName = "quickstart",
    method: Methods = None,
    agents: Numbers = None,
    topology: Graphs = None,
    seeds: Seeds = None,
    settings: Settings = None,
    like: Annotated[Path | None, typer.Option(help="A recorded run to take the free directions from.")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Time a step on this machine.")] = False,
    bandwidth: Annotated[str | None, typer.Option(help="Of an agent's way out, such as 10Mbit.")] = None,
    device: Annotated[str, typer.Option(help="For --measure: auto, cpu or cuda.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """What a run will be, before anything trains: graph, steps, bytes, memory, and what will hurt."""
    import dataclasses

    from codecl.runs.config import grid

    bits = bits_a_second(bandwidth) if bandwidth else None
    configs = list(grid(preset, method, agents, topology, seeds, settings or []))
    plans = _plans(configs, like, device if measure else "", bits)
    if as_json:
        print(json.dumps([dataclasses.asdict(plan) for plan in plans], indent=1))
    else:
        _show(plans)


def bits_a_second(text: str) -> float:
    """10Mbit -> 1e7."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMG]?)bit(?:/s)?", text.strip())
    if not match or float(match[1]) == 0:
        raise ConfigError(f"--bandwidth: {text!r} is not a bandwidth; write 10Mbit, 500kbit or 1Gbit")
    return float(match[1]) * UNITS[match[2]]


def _plans(configs: list["RunConfig"], like: Path | None, measured_on: str, bits: float | None) -> list["Plan"]:
    from codecl import plan as planning
    from codecl.plan import forecast
    from codecl.runs import build

    earlier = forecast.read(like) if like else None
    if earlier and all(config.method.name != earlier.config.method.name for config in configs):
        raise ConfigError(f"--like: {earlier.folder} is a run of {earlier.config.method.name}, which is not planned")
    device = build.device_of(measured_on or "cpu")
    read = functools.cache(build.read_stream)  # each stream once
    plans = []
    for config in configs:
        known = earlier if earlier and config.method.name == earlier.config.method.name else None
        tasks = build.load_tasks(config, read=read)
        plans.append(planning.plan(config, tasks, known, device, bool(measured_on), bits))
    return plans


def _show(plans: list["Plan"]) -> None:
    from codecl.report import plan as planned
    from codecl.report.formats import show

    console = console_for(False)
    if len(plans) == 1:
        show(planned.tasks(plans[0]), console, uncut=not console.is_terminal)
    show(planned.side_by_side(plans), console, uncut=not console.is_terminal)
    for line in dict.fromkeys(line for plan in plans for line in plan.warnings):
        console.print(f"warning: {line}", markup=False, highlight=False, soft_wrap=True)
