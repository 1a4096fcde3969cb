"""Facts of events.jsonl -> where a run stands. A pure fold: the same facts give the same progress, live or recorded."""

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from codecl.runs.metrics import Fact, Status, metrics

ALONE = {"stl"}  # methods whose tasks do not follow each other: of each task its own model counts
PHASES = {
    "run": "starting",
    "task": "training",
    "epoch": "training",
    "agree": "growing",
    "grow": "flooding",
    "flood": "testing",
    "eval": "between tasks",
    "links": "ending",
    "end": "ended",
}
# what a change in membership says: the agent is away, or it is here (again)
AWAY = {
    **dict.fromkeys(("lost", "dead", "gone", "absent", "disconnected"), True),
    **dict.fromkeys(("back", "alive", "connected", "joined", "restarted"), False),
}
RECENT = 5  # epochs that tell how fast it goes


class Progress(NamedTuple):
    """Where a run stands. Tasks and epochs are counted, not numbered: 0 is none yet."""

    about: Fact  # labels of the run: benchmark, method, agents, topology, seed, tasks
    phase: str = "starting"
    ended: Status | None = None
    tasks: int = 0  # all
    opened: int = 0
    closed: int = 0
    names: Sequence[str] = ()
    epoch: int = 0  # done, of the task that is open
    epochs: int = 0  # of a task
    steps: int = 0
    all_steps: int = 0  # tasks ahead taken to be as long as this one
    losses: Sequence[float] = ()  # a mean over agents an epoch
    loss: Sequence[float] = ()  # by agent, now
    learned: Sequence[float | None] = ()  # accuracy of each task when its training ended
    known: Sequence[float] = ()  # and now
    acc: float | None = None
    sent: int = 0
    cc: float | None = None
    cc_by_task: Sequence[float | None] = ()
    apart: float | None = None  # consensus error; of a peer: distance to the neighbours that it heard
    steps_a_second: float | None = None
    left_s: float | None = None  # from the last fact on
    longest_s: float = 0.0  # that passed before a fact
    away: Sequence[int] = ()  # neighbours of a peer that are lost
    missed: int = 0  # messages that a peer did not hear
    note: str = ""  # a peer's last change in membership


def progress(facts: Sequence[Fact], epochs: int) -> Progress:
    """Where a run with so many epochs a task stands after these facts."""
    by_kind: dict[str, list[Fact]] = {}
    for fact in facts:
        by_kind.setdefault(fact["kind"], []).append(fact)
    if "run" not in by_kind:
        return Progress({}, epochs=epochs)
    about = by_kind["run"][-1]
    found = metrics(facts, {"tasks": about["tasks"]}, "partial", 0.0, about["method"] in ALONE)
    matrix, traffic = found["accuracy_matrix"], found["traffic"]
    return Progress(
        about,
        phase=next((PHASES[fact["kind"]] for fact in reversed(facts) if fact["kind"] in PHASES), "starting"),
        ended=next((fact.get("status") for fact in reversed(facts) if fact["kind"] in ("run", "end")), None),
        tasks=about["tasks"],
        closed=len(matrix),
        learned=[row[task] for task, row in enumerate(matrix)],
        known=[score for score in matrix[-1] if score is not None] if matrix else [],
        acc=found["acc"],
        sent=traffic["train_bytes"] + traffic["boundary_bytes"],
        cc=traffic["cc"],
        cc_by_task=traffic["cc_by_task"],
        longest_s=max(fact.get("seconds", 0.0) for fact in facts),
        **_training(by_kind, about["tasks"], epochs),
        **_neighbours(by_kind),
    )


def _training(by_kind: dict[str, list[Fact]], tasks: int, epochs: int) -> dict[str, Any]:
    """What epochs tell: where training is, how fast it goes, how long it will take."""
    opened = {fact["task"]: fact for fact in by_kind.get("task", [])}
    if not opened:
        return {"epochs": epochs}
    here = opened[max(opened)]
    done = list({(fact["task"], fact["epoch"]): fact for fact in by_kind.get("epoch", [])}.values())
    last = {fact["task"]: fact for fact in done}
    steps = sum(fact["step"] for fact in last.values())
    ahead = epochs * (sum(fact["steps"] for fact in opened.values()) + (tasks - len(opened)) * here["steps"])
    recent = [(opened[fact["task"]]["steps"], fact["seconds"]) for fact in done[-RECENT:]]
    took = sum(seconds for _, seconds in recent)
    pace = sum(count for count, _ in recent) / took if took else None
    return {
        "opened": len(opened),
        "names": [fact["name"] for _, fact in sorted(opened.items())],
        "epoch": last[here["task"]]["epoch"] + 1 if here["task"] in last else 0,
        "epochs": epochs,
        "steps": steps,
        "all_steps": max(ahead, steps),
        "losses": [statistics.fmean(fact["loss"]) for fact in done],
        "loss": done[-1]["loss"] if done else (),
        "apart": done[-1].get("consensus_error", done[-1].get("disagreement")) if done else None,
        "steps_a_second": pace,
        "left_s": max(ahead - steps, 0) / pace + _between(by_kind, tasks) if pace else None,
    }


def _between(by_kind: dict[str, list[Fact]], tasks: int) -> float:
    """Seconds that the ends of the tasks ahead will take, if they are like those behind."""
    closed = len({fact["task"] for fact in by_kind.get("eval", [])})
    took = sum(fact["seconds"] for kind in ("grow", "eval") for fact in by_kind.get(kind, []))
    return took / closed * (tasks - closed) if closed else 0.0


def _neighbours(by_kind: dict[str, list[Fact]]) -> dict[str, Any]:
    """What a peer says of its neighbours; nothing, of agents that share a process."""
    away: dict[int, bool] = {}
    for fact in by_kind.get("member", []):
        away[fact["agent"]] = AWAY.get(fact["state"], away.get(fact["agent"], False))
    changes = [fact for fact in by_kind.get("member", []) if fact["state"] not in ("connected", "disconnected")]
    spans = [span for fact in by_kind.get("epoch", []) for spans in fact.get("missed", {}).values() for span in spans]
    return {
        "away": sorted(agent for agent, is_away in away.items() if is_away),
        "missed": sum(last - first + 1 for first, last in spans),
        "note": f"{changes[-1]['state']} {changes[-1]['agent']}" if changes else "",
    }
