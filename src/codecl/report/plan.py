"""The tables of `codecl plan`: plans side by side, and the tasks of one."""

from collections.abc import Sequence

from codecl.plan import Plan
from codecl.plan.forecast import Known
from codecl.report.formats import Column, Sheet, size

SIGNS: dict[Known, str] = {"exact": "", "estimate": "≈ ", "bound": "≤ ", "partly": "≥ "}
RATIO: dict[Known, str] = {**SIGNS, "bound": "≥ ", "partly": "≤ "}
NOTE = "≤ and ≥ are bounds, ≈ is as in the run of --like; other bytes are exact"


def side_by_side(plans: Sequence[Plan]) -> Sheet:
    """A column a plan."""
    columns = [Column("", [name for name, _ in _rows(plans[0])], words=True, fold=True)]
    columns += [Column(_title(plan, plans), [cell for _, cell in _rows(plan)], fold=True) for plan in plans]
    unsure = any(plan.known != "exact" for plan in plans)
    return Sheet(f"plan of {plans[0].preset}", columns, NOTE if unsure else "", [])


def tasks(plan: Plan) -> Sheet:
    """A row a task."""
    columns = [
        Column("task", [task.name for task in plan.tasks], words=True),
        Column("images an agent", [_span(task.shard) for task in plan.tasks]),
        Column("steps an epoch", [str(task.steps) for task in plan.tasks]),
        Column("epochs", [str(task.epochs) for task in plan.tasks]),
        Column("left over", [_span(task.left_over) for task in plan.tasks]),
        Column("a step and link", [SIGNS[task.message_known] + size(task.message_bytes) for task in plan.tasks]),
        Column("training", [SIGNS[task.message_known] + size(task.train_bytes) for task in plan.tasks]),
        Column("agreement", [SIGNS[task.message_known] + size(task.agree_bytes) for task in plan.tasks]),
        Column("pool, flood", [SIGNS[t.end_known] + size(t.reduce_bytes + t.flood_bytes) for t in plan.tasks]),
    ]
    return Sheet(f"{plan.method} on {plan.topology}, {plan.graph.agents} agents", columns, "", [])


def _title(plan: Plan, plans: Sequence[Plan]) -> str:
    seeds = len({other.seed for other in plans}) > 1
    return f"{plan.method}, {plan.topology}{plan.graph.agents}" + (f", seed {plan.seed}" if seeds else "")


def _rows(plan: Plan) -> list[tuple[str, str]]:
    graph, sign = plan.graph, SIGNS[plan.known]
    sent = plan.train_bytes + plan.boundary_bytes
    rows = [
        ("agents", str(graph.agents)),
        ("links (directed edges)", f"{graph.links} ({graph.edges})"),
        ("agents that one hears", _span(graph.degree)),
        ("√ρ", f"{graph.contraction:.4f}"),
        ("spectral gap, 1 − √ρ", f"{graph.gap:.4f}"),
        ("rounds to a tenth, to a millionth", f"{graph.rounds_tenfold}, {graph.rounds_millionfold}"),
        ("agreement: rounds, leaving", f"{graph.agree_rounds}, {graph.contraction**graph.agree_rounds:.1e}"),
        ("lr × curvature below", f"{graph.stable_below:.2f}"),
        ("steps", str(sum(task.steps * task.epochs for task in plan.tasks))),
        ("first task: bytes a step and link", size(plan.tasks[0].message_bytes)),
        ("sent while training", sign + size(plan.train_bytes)),
        ("sent at tasks' ends", sign + size(plan.boundary_bytes)),
        ("full communication / sent", f"{RATIO[plan.known]}{plan.full_bytes / sent:.2f}" if sent else "–"),
        ("memory of an agent, of all, about", f"{size(plan.agent_memory_bytes)}, {size(plan.memory_bytes)}"),
    ]
    if plan.ms_per_step is not None and plan.train_s is not None:
        rows.append(("a step of all agents here", f"{plan.ms_per_step:.2f} ms"))
        rows.append(("training here", _duration(plan.train_s)))
    if plan.messages_s is not None:
        rows.append(("messages at this bandwidth", sign + _duration(plan.messages_s)))
    return rows


def _duration(seconds: float) -> str:
    """In the largest unit of which there is at least one."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def _span(min_max: tuple[int, int]) -> str:
    low, high = min_max
    return str(low) if low == high else f"{low}-{high}"
