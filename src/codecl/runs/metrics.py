"""Events -> metrics. A fold over what was recorded, so it can be made again from events.jsonl."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from codecl.runs.schema import Labels, MeanMax, Metrics, Timing, Traffic
from codecl.train.events import (
    Agreed,
    EpochEnded,
    Evaluated,
    InTask,
    LinksClosed,
    Recorded,
    Sent,
    Status,
    TaskOpened,
    of_type,
)

Rows = Sequence[Sequence[float] | None]
T = TypeVar("T", bound=InTask)


def metrics(events: Sequence[Recorded], labels: Labels, status: Status, wall_s: float) -> Metrics:
    """The metrics of a run from its events."""
    epochs, opened = of_type(events, EpochEnded), last_of_task(of_type(events, TaskOpened))
    ends = last_of_task(epochs)
    scores = rows(events)
    links = of_type(events, LinksClosed)[-1:]
    seconds = sum(epoch.seconds for epoch in epochs)
    iterations = sum(epoch.step for epoch in ends)
    return Metrics(
        **labels.model_dump(),
        status=status,
        acc=acc(scores, labels.each_task_alone),
        bwt=None if labels.each_task_alone else bwt(scores),
        accuracy_matrix=[[*(row or ()), *[None] * (labels.tasks - len(row or ()))] for row in scores],
        traffic=traffic(events),
        consensus_error_by_task=[epoch.consensus_error for epoch in ends],
        free_by_task=[task.free for task in opened],
        kept_by_task=[task.kept for task in opened],
        timing=Timing(
            train_s=round(seconds, 3),
            iterations=iterations,
            ms_per_iteration=round(1000 * seconds / iterations, 4) if iterations else None,
            wall_s=round(wall_s, 3),
        ),
        mu_by_task=_mu(epochs) or None,
        disagreement_by_task=[epoch.disagreement for epoch in ends] if links else None,
        missed=links[0].missed if links else None,
        links=links[0].links if links else None,
    )


def last_of_task(events: Iterable[T]) -> list[T]:
    """One event of each task. A peer whose task was discarded has it twice: the last one stands."""
    return list({event.task: event for event in events}.values())


def _mu(epochs: Sequence[EpochEnded]) -> list[MeanMax]:
    """How constrained the gradient was, of each task: mean and maximum of what its epochs saw."""
    means: dict[int, list[float]] = {}
    largest: dict[int, float] = {}
    for epoch in epochs:
        if epoch.mu_mean is not None and epoch.mu_max is not None:
            means.setdefault(epoch.task, []).append(epoch.mu_mean)
            largest[epoch.task] = max(epoch.mu_max, largest.get(epoch.task, epoch.mu_max))
    return [MeanMax(mean=sum(seen) / len(seen), max=largest[task]) for task, seen in means.items()]


def rows(events: Sequence[Recorded]) -> Rows:
    """Accuracies after each task; None: a peer was away when it ended."""
    scored = {event.task: event.accuracy for event in of_type(events, Evaluated)}
    return [scored.get(task) for task in range(max(scored, default=-1) + 1)]


def acc(rows: Rows, each_task_alone: bool = False) -> float | None:
    """ACC = (1/T) Σ A_T,i; of tasks alone: the diagonal."""
    known = [row for row in rows if row]
    if not known:
        return None
    scores = [row[-1] for row in known] if each_task_alone else known[-1]
    return sum(scores) / len(scores)


def bwt(rows: Rows) -> float | None:
    """BWT = 1/(T-1) Σ_{i<T} A_T,i - A_i,i, of the tasks whose A_i,i is known. None before the second task."""
    last = rows[-1] if rows else None
    changes = [last[i] - row[i] for i, row in enumerate(rows[:-1]) if row and last]
    return sum(changes) / len(changes) if changes else None


def traffic(events: Sequence[Recorded]) -> Traffic:
    """Bytes and compression ratios.

    `cc` counts all that left, against full communication of what can change in the same rounds of training and
    agreement; `cc_by_task` training only; `cc_reference` as the authors count: training only, all heads and all norms
    in every message."""
    epochs, agreements = of_type(events, EpochEnded), of_type(events, Agreed)
    train_bytes = sum(epoch.bytes for epoch in epochs)
    boundary_bytes = sum(message.bytes for message in of_type(events, Sent)) - train_bytes
    full_bytes = reference_full = reference_sent = 0
    by_task: list[float | None] = []
    for task in last_of_task(of_type(events, TaskOpened)):
        size, training = task.full * task.itemsize, _of_task(epochs, task.task)
        messages = sum(epoch.messages for epoch in training)
        full_bytes += size * (messages + sum(event.messages for event in _of_task(agreements, task.task)))
        by_task.append(_ratio(size * messages, sum(epoch.bytes for epoch in training)))
        reference_full += messages * (task.full + task.reference_extra)
        reference_sent += messages * (task.coordinates + task.reference_extra)
    return Traffic(
        cc=_ratio(full_bytes, train_bytes + boundary_bytes),
        cc_by_task=by_task,
        cc_reference=_ratio(reference_full, reference_sent),
        train_bytes=train_bytes,
        boundary_bytes=boundary_bytes,
        full_bytes=full_bytes,
        wire_bytes=_wire_bytes(events),
    )


def _of_task(events: Sequence[T], task: int) -> list[T]:
    return [event for event in events if event.task == task]


def _wire_bytes(events: Sequence[Recorded]) -> int | None:
    """What a peer handed to its links, headers of ours included, those of gRPC and TLS not."""
    closed = of_type(events, LinksClosed)
    return sum(link.sent + link.headers_sent for link in closed[-1].links.values()) if closed else None


def _ratio(full: int, sent: int) -> float | None:
    """None where nothing was sent (one agent alone)."""
    return full / sent if sent else None
