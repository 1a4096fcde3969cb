"""Events -> metrics.json. A fold over what was recorded, so it can be made again from events.jsonl."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

Fact = Mapping[str, Any]
Status = Literal["complete", "degraded", "partial"]


def metrics(
    facts: Iterable[Fact], labels: Mapping[str, Any], status: Status, wall_s: float, each_task_alone: bool = False
) -> dict[str, Any]:
    """The metrics of a run from its facts. `labels`: benchmark, method, agents, topology, seed, tasks."""
    by_kind: dict[str, list[Fact]] = {}
    for fact in facts:
        by_kind.setdefault(fact["kind"], []).append(fact)
    epochs, rows = by_kind.get("epoch", []), [fact["accuracy"] for fact in by_kind.get("eval", [])]
    tasks = int(labels["tasks"])
    last = {fact["task"]: fact for fact in epochs}  # the last epoch of each task
    seconds, iterations = sum(fact["seconds"] for fact in epochs), sum(fact["step"] for fact in last.values())
    return {
        "schema": 1,
        "status": status,
        **labels,
        "acc": acc(rows, each_task_alone),
        "bwt": None if each_task_alone else bwt(rows),
        "accuracy_matrix": [row + [None] * (tasks - len(row)) for row in rows],
        "traffic": traffic(by_kind),
        "consensus_error_by_task": [fact["consensus_error"] for fact in last.values()],
        "free_by_task": [fact["free"] for fact in by_kind.get("task", [])],
        "timing": {
            "train_s": round(seconds, 3),
            "iterations": iterations,
            "ms_per_iteration": round(1000 * seconds / iterations, 4) if iterations else None,
            "wall_s": round(wall_s, 3),
        },
    }


def acc(rows: Sequence[Sequence[float]], each_task_alone: bool = False) -> float | None:
    """ACC = (1/T) Σ A_T,i; of tasks alone: the diagonal."""
    if not rows:
        return None
    scores = [row[-1] for row in rows] if each_task_alone else rows[-1]
    return sum(scores) / len(scores)


def bwt(rows: Sequence[Sequence[float]]) -> float | None:
    """BWT = 1/(T-1) Σ_{i<T} A_T,i - A_i,i. None before the second task."""
    if len(rows) < 2:
        return None
    return sum(rows[-1][i] - rows[i][i] for i in range(len(rows) - 1)) / (len(rows) - 1)


def traffic(by_kind: Mapping[str, Sequence[Fact]]) -> dict[str, Any]:
    """Bytes and compression ratios.

    `cc` counts all that left, against full communication of what can change in the same rounds of training and
    agreement; `cc_by_task` training only; `cc_reference` as the authors count: training only, all heads and all norms
    in every message."""

    def per_task(kind: str, what: str) -> dict[int, int]:
        sums: dict[int, int] = {}
        for fact in by_kind.get(kind, []):
            sums[fact["task"]] = sums.get(fact["task"], 0) + fact[what]
        return sums

    train, messages = per_task("epoch", "bytes"), per_task("epoch", "messages")
    agreeing = per_task("agree", "messages")
    boundary = sum(sum(per_task(kind, "bytes").values()) for kind in ("agree", "grow", "flood"))
    full, by_task, reference_full, reference_sent = 0, [], 0, 0
    for fact in by_kind.get("task", []):
        task, size = fact["task"], fact["whole"] * fact["itemsize"]
        sent, count = train.get(task, 0), messages.get(task, 0)
        full += size * (count + agreeing.get(task, 0))
        by_task.append(_ratio(size * count, sent))
        reference_full += count * (fact["whole"] + fact["shared"])
        reference_sent += count * (fact["coordinates"] + fact["shared"])
    return {
        "cc": _ratio(full, sum(train.values()) + boundary),
        "cc_by_task": by_task,
        "cc_reference": _ratio(reference_full, reference_sent),
        "train_bytes": sum(train.values()),
        "boundary_bytes": boundary,
        "full_bytes": full,
        "wire_bytes": None,
    }


def _ratio(full: int, sent: int) -> float | None:
    """None where nothing was sent (one agent alone)."""
    return full / sent if sent else None
