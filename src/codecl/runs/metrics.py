"""Folds over events: metrics, and where a run stands. The same events give the same, live or from events.jsonl."""

import statistics
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from codecl.errors import ConfigError, DataError
from codecl.runs.schema import Labels, MeanMax, Metrics, Privacy, Timing, Traffic
from codecl.train.accounting import Spending, epsilon
from codecl.train.events import (
    Agreed,
    EpochEnded,
    Evaluated,
    Grown,
    InTask,
    LinksClosed,
    MemberChanged,
    Recorded,
    RunEnded,
    RunStarted,
    Sent,
    Status,
    TaskOpened,
    Voted,
    of_type,
)

Rows = Sequence[Sequence[float | None] | None]  # an entry of None: the task was not scored again
T = TypeVar("T", bound=InTask)
PHASES = {
    "run": "starting",
    "directions": "training",
    "task": "training",
    "epoch": "training",
    "agree": "growing",
    "grow": "flooding",
    "flood": "testing",
    "eval": "between tasks",
    "links": "ending",
    "end": "ended",
}
AWAY = ("lost", "dead", "gone", "absent", "disconnected")  # states of a neighbour
PRESENT = ("back", "alive", "connected", "joined", "restarted")
RECENT = 5  # epochs that tell how fast it goes


def metrics(
    events: Sequence[Recorded], labels: Labels, status: Status, wall_s: float, accounts: bool = True
) -> Metrics:
    """The metrics of a run from its events. `accounts`: with ε, which takes a while."""
    epochs, opened = of_type(events, EpochEnded), last_of_task(of_type(events, TaskOpened))
    ends = last_of_task(epochs)
    scores, evaluated = rows(events), of_type(events, Evaluated)
    started, links = of_type(events, RunStarted)[-1:], of_type(events, LinksClosed)[-1:]
    seconds = sum(epoch.seconds for epoch in epochs)
    iterations = sum(epoch.step for epoch in ends)
    return Metrics(
        **labels.model_dump(),
        status=status,
        acc=acc(scores, labels.each_task_alone),
        bwt=None if labels.each_task_alone else bwt(scores),
        accuracy_matrix=_matrix(scores, labels.tasks),
        traffic=traffic(events),
        consensus_error_by_task=[epoch.consensus_error for epoch in ends],
        free_by_task=[task.free for task in opened],
        kept_by_task=[task.kept for task in opened],
        body=opened[0].body if opened else None,
        trained_by_task=[task.trained or {} for task in opened] if any(task.trained for task in opened) else None,
        own_by_task=[task.own or {} for task in opened] if any(task.own for task in opened) else None,
        timing=Timing(
            train_s=round(seconds, 3),
            iterations=iterations,
            ms_per_iteration=round(1000 * seconds / iterations, 4) if iterations else None,
            wall_s=round(wall_s, 3),
        ),
        acc_without_identity=evaluated[-1].without_identity if evaluated else None,
        mu_by_task=_mu(epochs) or None,
        disagreement_by_task=[epoch.disagreement for epoch in ends] if links else None,
        missed=links[0].missed if links else None,
        links=links[0].links if links else None,
        data_sets=started[0].data_sets if started else None,
        privacy=privacy(opened, epochs) if accounts else None,
        not_scored=not_scored(scores, labels.each_task_alone) or None,
    )


def privacy(opened: Sequence[TaskOpened], epochs: Sequence[EpochEnded]) -> Privacy | None:
    """(ε, δ) of each task, by the steps that its epochs say; None where gradients are not clipped."""
    tasks = {task.task: task.privacy for task in opened if task.privacy is not None}
    if not tasks:
        return None
    by_task: list[float | None] = []
    for task in opened:
        about, counts = task.privacy, [epoch.private_steps for epoch in epochs if epoch.task == task.task]
        if about is None or not about.noise:
            by_task.append(None)
            continue
        steps = private_steps([count for count in counts if count is not None], task.steps)
        how = Spending(about.noise, about.sampling, about.images, about.batch, steps, task.steps)
        by_task.append(_epsilon(how, about.delta) if steps else 0.0)
    known = [value for value in by_task if value is not None]
    last = tasks[max(tasks)]
    return Privacy(
        epsilon=max(known) if len(known) == len(by_task) else None,
        epsilon_by_task=by_task,
        **last.model_dump(include={"delta", "covers", "clip", "noise", "sampling"}),
    )


def _epsilon(how: Spending, delta: float) -> float | None:
    """None where the library is not here: what has ended has it in its metrics."""
    with suppress(ConfigError):
        return epsilon(how, delta)
    return None


def private_steps(counts: Sequence[int], of_epoch: int) -> int:
    """All steps that had noise, from what was counted at the end of epochs. A process that began again counts from 0;
    the one before it may have been in the middle of an epoch."""
    before = [last + of_epoch for last, following in pairwise(counts) if following <= last]
    return sum(before) + (counts[-1] if counts else 0)


def last_of_task(events: Iterable[T]) -> list[T]:
    """One event of each task. A peer whose task was discarded has it twice: the last one stands."""
    return list({event.task: event for event in events}.values())


def _matrix(scores: Rows, tasks: int) -> list[list[float | None]]:
    """A row for each task so far, with None where a task was not scored."""
    if max([len(scores), *(len(row or ()) for row in scores)]) > tasks:
        raise DataError(f"scores of more tasks than the {tasks} of the run are recorded")
    return [[*(row or ()), *[None] * (tasks - len(row or ()))] for row in scores]


def _mu(epochs: Sequence[EpochEnded]) -> list[MeanMax]:
    """How constrained the gradient was, of each task: mean and maximum of what its epochs saw."""
    by_task: dict[int, list[MeanMax]] = {}
    for epoch in epochs:
        if epoch.mu_mean is not None and epoch.mu_max is not None:
            by_task.setdefault(epoch.task, []).append(MeanMax(mean=epoch.mu_mean, max=epoch.mu_max))
    seen = by_task.values()
    return [MeanMax(mean=sum(mu.mean for mu in mus) / len(mus), max=max(mu.max for mu in mus)) for mus in seen]


def rows(events: Sequence[Recorded]) -> Rows:
    """Accuracies after each task; None: a peer was away when it ended."""
    scored = {event.task: event.accuracy for event in of_type(events, Evaluated)}
    return [scored.get(task) for task in range(max(scored, default=-1) + 1)]


def acc(rows: Rows, each_task_alone: bool = False) -> float | None:
    """ACC = (1/T) Σ A_T,i, of the tasks that were scored; of tasks alone: the diagonal."""
    known = [row for row in rows if row]
    last = known[-1] if known else []
    scores = [score for score in ([row[-1] for row in known] if each_task_alone else last) if score is not None]
    return sum(scores) / len(scores) if scores else None


def bwt(rows: Rows) -> float | None:
    """BWT = 1/(T-1) Σ_{i<T} A_T,i - A_i,i, where both are known. None before the second task."""
    last = rows[-1] if rows else None
    pairs = [(last[i], row[i]) for i, row in enumerate(rows[:-1]) if row and last]
    changes = [now - then for now, then in pairs if now is not None and then is not None]
    return sum(changes) / len(changes) if changes else None


def not_scored(rows: Rows, each_task_alone: bool) -> list[int]:
    """The tasks that ACC does not count: they were learned, and their test data was not there at the end."""
    last = next((row for row in reversed(rows) if row), ())
    return [] if each_task_alone else [task for task, score in enumerate(last) if score is None]


def traffic(events: Sequence[Recorded]) -> Traffic:
    """`cc` counts all that left, against full communication of what can change in the same rounds of training and
    agreement; `cc_by_task` training only; `cc_reference` as the authors do: training only, with all heads and norms."""
    epochs, agreements = of_type(events, EpochEnded), of_type(events, Agreed)
    closed = of_type(events, LinksClosed)[-1:]
    train_bytes = sum(epoch.bytes for epoch in epochs)
    boundary_bytes = sum(message.bytes for message in of_type(events, Sent)) - train_bytes
    full_bytes = 0
    by_task: list[float | None] = []
    reference: list[tuple[int, int]] = []  # (full, sent) of each task
    for task in last_of_task(of_type(events, TaskOpened)):
        size = task.full * task.itemsize
        training = [epoch for epoch in epochs if epoch.task == task.task]
        messages = sum(epoch.messages for epoch in training) // (
            task.rows_sent or 1
        )  # full communication sends one row
        agreed = sum(event.messages // event.parts for event in agreements if event.task == task.task)  # whole rows
        full_bytes += size * (messages + agreed)
        by_task.append(_ratio(size * messages, sum(epoch.bytes for epoch in training)))
        both = task.full + task.reference_extra, task.coordinates + task.reference_extra
        reference.append((messages * both[0], messages * both[1]))
    return Traffic(
        cc=_ratio(full_bytes, train_bytes + boundary_bytes),
        cc_by_task=by_task,
        cc_reference=_ratio(sum(full for full, _ in reference), sum(sent for _, sent in reference)),
        cc_reference_by_task=[_ratio(*of_task) for of_task in reference],
        train_bytes=train_bytes,
        boundary_bytes=boundary_bytes,
        full_bytes=full_bytes,
        # what a peer handed to its links, headers of ours included, those of gRPC and TLS not
        wire_bytes=sum(link.sent + link.headers_sent for link in closed[0].links.values()) if closed else None,
    )


def _ratio(full: int, sent: int) -> float | None:
    """None where nothing was sent (one agent alone)."""
    return full / sent if sent else None


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
    known: Sequence[float | None] = ()  # and now; None: not scored again
    acc: float | None = None
    sent: int = 0
    cc: float | None = None
    cc_by_task: Sequence[float | None] = ()
    kept_percent: float | None = None  # the most that a task keeps for itself, of the body
    apart: float | None = None  # consensus error; of a peer: distance to the neighbours that it heard
    steps_a_second: float | None = None
    left_s: float | None = None  # from the last event on
    longest_s: float = 0.0  # that passed before an event
    away: Sequence[int] = ()  # neighbours of a peer that are lost
    missed: int = 0  # messages that a peer did not hear
    refused: Sequence[int] = ()  # agents of which others did not take what they grew


def progress(events: Sequence[Recorded], epochs: int) -> Progress:
    """Where a run with so many epochs a task stands after these events."""
    started = of_type(events, RunStarted)
    if not started:
        return Progress(epochs=epochs)
    about = started[-1]
    so_far = metrics(events, Labels.of(about), "partial", 0.0, accounts=False)
    matrix = so_far.accuracy_matrix
    bounds = [event for event in events if isinstance(event, RunStarted | RunEnded)]
    return Progress(
        about,
        epochs=epochs,
        phase=next(PHASES[event.kind] for event in reversed(events) if event.kind in PHASES),
        ended=bounds[-1].status if isinstance(bounds[-1], RunEnded) else None,
        tasks=about.tasks,
        learned=[row[task] for task, row in enumerate(matrix)],
        known=matrix[-1][: len(matrix)] if matrix else [],
        acc=so_far.acc,
        sent=so_far.traffic.sent_bytes,
        cc=so_far.traffic.cc,
        cc_by_task=so_far.traffic.cc_by_task,
        kept_percent=so_far.kept_percent,
        steps=so_far.timing.iterations,
        longest_s=max(getattr(event, "seconds", 0.0) for event in events),
        **_training(events, about.tasks, epochs, so_far.timing.iterations),
        refused=sorted({event.chosen for event in of_type(events, Voted) if not event.stands}),
        **_neighbours(events),
    )


def _training(events: Sequence[Recorded], tasks: int, epochs: int, steps: int) -> dict[str, Any]:
    """What epochs tell: where training is, how fast it goes, how long it will take."""
    opened = {event.task: event for event in of_type(events, TaskOpened)}
    if not opened:
        return {}
    current = opened[max(opened)]
    ended = {(event.task, event.epoch): event for event in of_type(events, EpochEnded) if event.task in opened}
    done = list(ended.values())
    last = {event.task: event for event in last_of_task(done)}
    ahead = epochs * (sum(task.steps for task in opened.values()) + (tasks - len(opened)) * current.steps)
    recent = done[-RECENT:]
    took = sum(event.seconds for event in recent)
    pace = sum(opened[event.task].steps for event in recent) / took if took else None
    closed = len({event.task for event in of_type(events, Evaluated)})
    ends_s = sum(event.seconds for event in events if isinstance(event, Grown | Evaluated))
    ends_ahead_s = ends_s / closed * (tasks - closed) if closed else 0.0  # if they are like those behind
    training = {
        "opened": len(opened),
        "names": [task.name for _, task in sorted(opened.items())],
        "epoch": last[current.task].epoch + 1 if current.task in last else 0,
        "all_steps": max(ahead, steps),
        "losses": [statistics.fmean(event.loss) for event in done],
        "steps_a_second": pace,
        "left_s": max(ahead - steps, 0) / pace + ends_ahead_s if pace else None,
    }
    if done:
        now = done[-1]
        training["loss"] = now.loss
        training["apart"] = now.disagreement if now.consensus_error is None else now.consensus_error
    return training


def _neighbours(events: Sequence[Recorded]) -> dict[str, Any]:
    """What a peer says of its neighbours; nothing, of agents that share a process."""
    away: set[int] = set()
    for event in of_type(events, MemberChanged):
        if event.state in AWAY:
            away.add(event.agent)
        elif event.state in PRESENT:
            away.discard(event.agent)
    missed = [spans for event in of_type(events, EpochEnded) for spans in (event.missed or {}).values()]
    return {"away": sorted(away), "missed": sum(last - first + 1 for spans in missed for first, last in spans)}
