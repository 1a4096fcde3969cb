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
    for kind in ("task", "eval"):  # a peer whose task was discarded has it twice: the last one stands
        by_kind[kind] = list({fact["task"]: fact for fact in by_kind.get(kind, [])}.values())
    epochs, tasks = by_kind.get("epoch", []), int(labels["tasks"])
    scored = {fact["task"]: fact["accuracy"] for fact in by_kind["eval"]}
    rows = [scored.get(task) for task in range(max(scored, default=-1) + 1)]  # None: a peer was away when it ended
    last = {fact["task"]: fact for fact in epochs}  # the last epoch of each task
    seconds, iterations = sum(fact["seconds"] for fact in epochs), sum(fact["step"] for fact in last.values())
    return {
        "schema": 2,
        "status": status,
        **labels,
        "each_task_alone": each_task_alone,
        "acc": acc(rows, each_task_alone),
        "bwt": None if each_task_alone else bwt(rows),
        "accuracy_matrix": [(row or []) + [None] * (tasks - len(row or [])) for row in rows],
        "traffic": traffic(by_kind),
        "consensus_error_by_task": [fact.get("consensus_error") for fact in last.values()],
        **({"mu_by_task": mu} if (mu := _mu(epochs)) else {}),
        **_of_a_peer(by_kind, last.values()),
        "free_by_task": [fact["free"] for fact in by_kind["task"]],
        "kept_by_task": [fact["kept"] for fact in by_kind["task"]],
        "timing": {
            "train_s": round(seconds, 3),
            "iterations": iterations,
            "ms_per_iteration": round(1000 * seconds / iterations, 4) if iterations else None,
            "wall_s": round(wall_s, 3),
        },
    }


def _mu(epochs: Sequence[Fact]) -> list[dict[str, float]]:
    """How constrained the gradient was, of each task: mean and maximum of what its epochs saw."""
    seen: dict[int, list[Fact]] = {}
    for fact in epochs:
        if fact.get("mu_mean") is not None:  # it was measured
            seen.setdefault(fact["task"], []).append(fact)
    return [
        {"mean": sum(fact["mu_mean"] for fact in facts) / len(facts), "max": max(fact["mu_max"] for fact in facts)}
        for facts in seen.values()
    ]


def _of_a_peer(by_kind: Mapping[str, Sequence[Fact]], last: Iterable[Fact]) -> dict[str, Any]:
    """What one agent of a fleet knows and others do not: its links, whom it missed, how far neighbours were from it."""
    if "links" not in by_kind:
        return {}
    links = by_kind["links"][-1]
    return {
        "disagreement_by_task": [fact["disagreement"] for fact in last],
        "missed": links["missed"],
        "links": links["links"],
    }


Rows = Sequence[Sequence[float] | None]


def acc(rows: Rows, each_task_alone: bool = False) -> float | None:
    """ACC = (1/T) Σ A_T,i; of tasks alone: the diagonal."""
    known = [row for row in rows if row]
    if not known:
        return None
    scores = [row[-1] for row in known] if each_task_alone else known[-1]
    return sum(scores) / len(scores)


def bwt(rows: Rows) -> float | None:
    """BWT = 1/(T-1) Σ_{i<T} A_T,i - A_i,i, of the tasks whose A_i,i is known. None before the second task."""
    changes = [rows[-1][i] - row[i] for i, row in enumerate(rows[:-1]) if row and rows[-1]]
    return sum(changes) / len(changes) if changes else None


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
        task, size = fact["task"], fact["full"] * fact["itemsize"]
        sent, count = train.get(task, 0), messages.get(task, 0)
        full += size * (count + agreeing.get(task, 0))
        by_task.append(_ratio(size * count, sent))
        reference_full += count * (fact["full"] + fact["reference_extra"])
        reference_sent += count * (fact["coordinates"] + fact["reference_extra"])
    return {
        "cc": _ratio(full, sum(train.values()) + boundary),
        "cc_by_task": by_task,
        "cc_reference": _ratio(reference_full, reference_sent),
        "train_bytes": sum(train.values()),
        "boundary_bytes": boundary,
        "full_bytes": full,
        "wire_bytes": _wire(by_kind),
    }


def _wire(by_kind: Mapping[str, Sequence[Fact]]) -> int | None:
    """What a peer handed to its links, headers of ours included, those of gRPC and TLS not."""
    if "links" not in by_kind:
        return None
    return sum(link["sent"] + link["headers_sent"] for link in by_kind["links"][-1]["links"].values())


def _ratio(full: int, sent: int) -> float | None:
    """None where nothing was sent (one agent alone)."""
    return full / sent if sent else None
