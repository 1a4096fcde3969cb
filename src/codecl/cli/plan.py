"""`codecl plan`."""

import functools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from codecl.cli import common
from codecl.errors import ConfigError

if TYPE_CHECKING:
    from codecl.plan import Plan
    from codecl.plan.forecast import Known
    from codecl.report.formats import Column, Sheet
    from codecl.runs.config import RunConfig

UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
SIGNS: dict["Known", str] = {"exact": "", "estimate": "≈ ", "bound": "≤ ", "partly": "≥ "}
RATIO: dict["Known", str] = {**SIGNS, "bound": "≥ ", "partly": "≤ "}
NOTE = "≤ and ≥ are bounds, ≈ is as in the run of --like; other bytes are exact"


@common.app.command()
def plan(
    preset: common.PresetName = "quickstart",
    method: common.Methods = None,
    agents: common.Numbers = None,
    topology: common.Graphs = None,
    seeds: common.Seeds = None,
    settings: common.Settings = None,
    like: Annotated[Path | None, typer.Option(help="A recorded run to take the free directions from.")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Time a step on this machine.")] = False,
    bandwidth: Annotated[str | None, typer.Option(help="Of an agent's way out, such as 10Mbit.")] = None,
    device: Annotated[str, typer.Option(help="For --measure: auto, cpu or cuda.")] = "auto",
    as_json: common.AsJson = False,
) -> None:
    """What a run will be, before anything trains: graph, steps, bytes, memory, and what will hurt."""
    import dataclasses

    from codecl.report.formats import show
    from codecl.runs.grid import grid

    bits = bits_a_second(bandwidth) if bandwidth else None
    configs = list(grid(preset, method, agents, topology, seeds, settings or []))
    plans = _plans(configs, like, device if measure else "", bits)
    if as_json:
        print(json.dumps([dataclasses.asdict(plan) for plan in plans], indent=1))
        return
    console = common.console_for(False)
    for sheet in [*([tasks(plans[0])] if len(plans) == 1 else []), side_by_side(plans)]:
        show(sheet, console)
    for line in dict.fromkeys(line for plan in plans for line in plan.warnings):
        console.print(f"warning: {line}", markup=False, highlight=False, soft_wrap=True)


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
    from codecl.runs.machine import device_of

    earlier = forecast.read(like) if like else None
    if earlier and all(config.method.name != earlier.config.method.name for config in configs):
        raise ConfigError(f"--like: {earlier.folder} is a run of {earlier.config.method.name}, which is not planned")
    device = device_of(measured_on or "cpu")
    read = functools.cache(build.read_stream)  # each stream once
    plans = []
    for config in configs:
        known = earlier if earlier and config.method.name == earlier.config.method.name else None
        tasks = build.load_tasks(config, read=read)
        plans.append(planning.plan(config, tasks, known, device, bool(measured_on), bits))
    return plans


def side_by_side(plans: Sequence["Plan"]) -> "Sheet":
    """A column a plan."""
    from codecl.report.formats import Column, Sheet

    columns = [Column("", [name for name, _ in _rows(plans[0])], words=True, fold=True)]
    several_seeds = len({plan.seed for plan in plans}) > 1
    for plan in plans:
        title = f"{plan.method}, {plan.topology}{plan.graph.agents}" + (f", seed {plan.seed}" if several_seeds else "")
        columns.append(Column(title, [cell for _, cell in _rows(plan)], fold=True))
    unsure = any(plan.known != "exact" for plan in plans)
    return Sheet(f"plan of {plans[0].preset}", columns, NOTE if unsure else "", [])


def tasks(plan: "Plan") -> "Sheet":
    """A row a task."""
    from codecl.report.formats import Column, Sheet

    columns = [
        Column("task", [task.name for task in plan.tasks], words=True, fold=True),
        Column("images per agent", [_span(task.shard) for task in plan.tasks], fold=True),
        Column("steps per epoch", [str(task.steps) for task in plan.tasks], fold=True),
        Column("epochs", [str(task.epochs) for task in plan.tasks]),
        Column("left over", [_span(task.left_over) for task in plan.tasks], fold=True, optional=True),
        _bytes("per step and link", [(task.message_known, task.message_bytes) for task in plan.tasks]),
        _bytes("training", [(task.message_known, task.train_bytes) for task in plan.tasks]),
        *_openings(plan),
        _bytes("agreement", [(task.message_known, task.agree_bytes) for task in plan.tasks]),
        _bytes("pool, flood", [(task.end_known, task.reduce_bytes + task.flood_bytes) for task in plan.tasks]),
    ]
    return Sheet(f"{plan.method} on {plan.topology}, {plan.graph.agents} agents", columns, "", [])


def _openings(plan: "Plan") -> list["Column"]:
    """What choosing directions sends, where it is done."""
    if not any(task.opening_bytes for task in plan.tasks):
        return []
    return [_bytes("opening", [(task.message_known, task.opening_bytes) for task in plan.tasks])]


def _bytes(title: str, counts: Sequence[tuple["Known", int]]) -> "Column":
    from codecl.report.formats import Column, size

    return Column(title, [SIGNS[known] + size(count) for known, count in counts], fold=True)


def _step(rounds: int, leaves: float) -> list[tuple[str, str]]:
    if rounds == 1:
        return []
    return [("rounds of a step", str(rounds)), ("… what they leave of a disagreement", f"{leaves:.4f}")]


def _rows(plan: "Plan") -> list[tuple[str, str]]:
    from codecl.report.formats import size

    graph, sign = plan.graph, SIGNS[plan.known]
    sent = plan.train_bytes + plan.boundary_bytes
    rows = [
        ("agents", str(graph.agents)),
        ("links (directed edges)", f"{graph.links} ({graph.edges})"),
        ("neighbours that an agent hears", _span(graph.degree)),
        ("√ρ", f"{graph.contraction:.4f}"),
        ("spectral gap, 1 − √ρ", f"{graph.gap:.4f}"),
        ("rounds until disagreement is 1/10", str(graph.rounds_tenfold)),
        ("… until it is 1/1,000,000", str(graph.rounds_millionfold)),
        *_step(graph.step_rounds, graph.step_contraction),
        ("rounds of agreement between tasks", str(graph.agree_rounds)),
        ("… what they leave of a disagreement", f"{graph.agree_leaves:.1e}"),
        ("stable while lr × curvature is below", "–" if graph.stable_below is None else f"{graph.stable_below:.2f}"),
        *_corrected(graph.correction_modulus),
        ("distance of an agent's mix of classes", _distance(plan)),
        ("steps", str(sum(task.steps * task.epochs for task in plan.tasks))),
        ("first task: bytes per step and link", size(plan.tasks[0].message_bytes)),
        ("sent while training", sign + size(plan.train_bytes)),
        ("sent between tasks", sign + size(plan.boundary_bytes)),
        ("cc: full communication / all sent", f"{RATIO[plan.known]}{plan.full_bytes / sent:.2f}" if sent else "–"),
        ("kept for each task, at most", _share(max(task.kept for task in plan.tasks), plan.body)),
        ("memory of one agent, about", size(plan.agent_memory_bytes)),
        ("memory of all in one process, about", size(plan.memory_bytes)),
    ]
    if plan.ms_per_step is not None and plan.train_s is not None:
        rows.append(("a step of all agents here", f"{plan.ms_per_step:.2f} ms"))
        rows.append(("training here", _duration(plan.train_s)))
    if plan.messages_s is not None:
        rows.append(("messages at this bandwidth", sign + _duration(plan.messages_s)))
    return rows


def _distance(plan: "Plan") -> str:
    """Mean over tasks; where labels are not known, nothing is."""
    known = [task.heterogeneity for task in plan.tasks if task.heterogeneity is not None]
    return f"{sum(known) / len(known):.2f}" if known else "–"


def _share(kept: int, body: int) -> str:
    return f"{100 * kept / body:.1f} %" if body else "–"


def _duration(seconds: float) -> str:
    """In the largest unit of which there is at least one."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def _span(min_max: tuple[int, int]) -> str:
    low, high = min_max
    return str(low) if low == high else f"{low}-{high}"


def _corrected(modulus: float | None) -> list[tuple[str, str]]:
    return [] if modulus is None else [("disagreement after a step, at most ×", f"{modulus:.4f}")]
