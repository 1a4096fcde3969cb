"""Who holds what in a fleet whose agents have images of their own: each recorded its own, and no other's."""

from collections.abc import Mapping, Sequence

from codecl.train.events import Recorded, TaskOpened, of_type


def with_everyones(
    events: Sequence[Recorded], by_agent: Mapping[int, Sequence[Recorded]], agents: int
) -> Sequence[Recorded]:
    """The events of one agent, whose tasks have the images of each class of all agents that recorded theirs. Law: where
    nobody has images of its own, they stay as they are."""
    opened = {
        agent: {task.task: task for task in of_type(of_agent, TaskOpened)} for agent, of_agent in by_agent.items()
    }
    if not any(task.own_counts for tasks in opened.values() for task in tasks.values()):
        return events
    out: list[Recorded] = []
    for event in events:
        if isinstance(event, TaskOpened):
            rows = {agent: _own(tasks.get(event.task), agent) for agent, tasks in opened.items()}
            names = dict.fromkeys(name for row in rows.values() for name in row or ())
            counts = {name: [_count(rows.get(agent), name) for agent in range(agents)] for name in names}
            event = event.model_copy(update={"class_counts": counts or None, "images": None})
        out.append(event)
    return out


def _own(task: TaskOpened | None, agent: int) -> Mapping[str, int | None] | None:
    """What an agent recorded of its own images; None: nothing."""
    if task is None:
        return None
    if task.own_counts:
        return dict(task.own_counts)
    return {name: by_agent[agent] for name, by_agent in task.class_counts.items()} if task.class_counts else None


def _count(row: Mapping[str, int | None] | None, name: str) -> int | None:
    return None if row is None else row.get(name, 0)
