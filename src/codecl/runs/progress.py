"""Events -> where a run stands. A pure fold: the same events give the same progress, live or recorded."""

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from codecl.runs.metrics import last_of_task, metrics
from codecl.runs.schema import Labels
from codecl.train.events import (
    EpochEnded,
    Evaluated,
    Grown,
    MemberChanged,
    Recorded,
    RunEnded,
    RunStarted,
    Status,
    TaskOpened,
    of_type,
)

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

    about: RunStarted | None = None  # what the run is called; None: it has recorded nothing yet
    phase: str = "starting"
    ended: Status | None = None
    tasks: int = 0  # all
    opened: int = 0
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
    left_s: float | None = None  # from the last event on
    longest_s: float = 0.0  # that passed before an event
    away: Sequence[int] = ()  # neighbours of a peer that are lost
    missed: int = 0  # messages that a peer did not hear


def progress(events: Sequence[Recorded], epochs: int) -> Progress:
    """Where a run with so many epochs a task stands after these events."""
    started = of_type(events, RunStarted)
    if not started:
        return Progress(epochs=epochs)
    about = started[-1]
    so_far = metrics(events, Labels.of(about), "partial", 0.0)
    matrix = so_far.accuracy_matrix
    bounds = [event for event in events if isinstance(event, RunStarted | RunEnded)]
    return Progress(
        about,
        phase=next(PHASES[event.kind] for event in reversed(events) if event.kind in PHASES),
        ended=bounds[-1].status if isinstance(bounds[-1], RunEnded) else None,
        tasks=about.tasks,
        learned=[row[task] for task, row in enumerate(matrix)],
        known=[score for score in matrix[-1] if score is not None] if matrix else [],
        acc=so_far.acc,
        sent=so_far.traffic.sent_bytes,
        cc=so_far.traffic.cc,
        cc_by_task=so_far.traffic.cc_by_task,
        steps=so_far.timing.iterations,
        longest_s=max(getattr(event, "seconds", 0.0) for event in events),
        **_training(events, about.tasks, epochs, so_far.timing.iterations),
        **_neighbours(events),
    )


def _training(events: Sequence[Recorded], tasks: int, epochs: int, steps: int) -> dict[str, Any]:
    """What epochs tell: where training is, how fast it goes, how long it will take."""
    opened = {event.task: event for event in of_type(events, TaskOpened)}
    if not opened:
        return {"epochs": epochs}
    current = opened[max(opened)]
    epochs_by_place = {
        (epoch.task, epoch.epoch): epoch for epoch in of_type(events, EpochEnded) if epoch.task in opened
    }
    done = list(epochs_by_place.values())
    last = {event.task: event for event in last_of_task(done)}
    ahead = epochs * (sum(task.steps for task in opened.values()) + (tasks - len(opened)) * current.steps)
    recent = done[-RECENT:]
    took = sum(event.seconds for event in recent)
    pace = sum(opened[event.task].steps for event in recent) / took if took else None
    return {
        "opened": len(opened),
        "names": [task.name for _, task in sorted(opened.items())],
        "epoch": last[current.task].epoch + 1 if current.task in last else 0,
        "epochs": epochs,
        "all_steps": max(ahead, steps),
        "losses": [statistics.fmean(event.loss) for event in done],
        "loss": done[-1].loss if done else (),
        "apart": _apart(done[-1]) if done else None,
        "steps_a_second": pace,
        "left_s": max(ahead - steps, 0) / pace + _between(events, tasks) if pace else None,
    }


def _apart(epoch: EpochEnded) -> float | None:
    return epoch.disagreement if epoch.consensus_error is None else epoch.consensus_error


def _between(events: Sequence[Recorded], tasks: int) -> float:
    """Seconds that the ends of the tasks ahead will take, if they are like those behind."""
    closed = len({event.task for event in of_type(events, Evaluated)})
    took = sum(event.seconds for event in events if isinstance(event, Grown | Evaluated))
    return took / closed * (tasks - closed) if closed else 0.0


def _neighbours(events: Sequence[Recorded]) -> dict[str, Any]:
    """What a peer says of its neighbours; nothing, of agents that share a process."""
    away: dict[int, bool] = {}
    for event in of_type(events, MemberChanged):
        away[event.agent] = AWAY.get(event.state, away.get(event.agent, False))
    missed = [spans for event in of_type(events, EpochEnded) for spans in (event.missed or {}).values()]
    return {
        "away": sorted(agent for agent, is_away in away.items() if is_away),
        "missed": sum(last - first + 1 for spans in missed for first, last in spans),
    }
