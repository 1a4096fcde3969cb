"""Reading run folders: the one reader of what the writer wrote. It needs no torch, but for configs and tasks."""

import math
import os
import re
import stat
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import ValidationError

from codecl.errors import ConfigError, DataError
from codecl.files import parse_json, read_bytes, read_json, shown
from codecl.registry import reason
from codecl.runs import held, yamlfile
from codecl.runs.metrics import metrics
from codecl.runs.schema import SCHEMA, Labels, Metrics, Privacy, fault
from codecl.train.events import EVENT, E, MemberChanged, Recorded, RunStarted, Status, TaskOpened, of_type

if TYPE_CHECKING:
    from torch import Tensor

    from codecl.data.task import TaskInfo
    from codecl.runs.config import RunConfig
    from codecl.space.layers import Layer

EVENTS = "events.jsonl"
TASKS = Path("model") / "tasks.json"
MAX_EVENTS = 256 << 20  # bytes of a file of them
MAX_INPUT = 1 << 27  # numbers of an image
BEFORE = ".before"  # in a run folder whose next task is being learned: how it was after the last
AGENT = re.compile(r"agent-\d+")  # the folder of a peer
FROM_WORST: tuple[Status, ...] = ("partial", "degraded", "complete")


class Link(NamedTuple):
    """Bytes of tensors that one peer sent to another."""

    sender: int
    hearer: int
    bytes: int


class Run(NamedTuple):
    """A run, or a fleet of peers as one. Its metrics have what it is called and how it ended."""

    folder: Path
    metrics: Metrics
    events: Sequence[Recorded] = ()  # of a fleet: those of the agent that got furthest, with who holds what of all
    config: "RunConfig | None" = None  # None: there is none that can be read
    links: Sequence[Link] = ()  # of a fleet

    @property
    def opened(self) -> list[int]:
        """Its tasks, as `cc_by_task` and `free_by_task` have them; where no events were kept, from the first on."""
        known = dict.fromkeys(event.task for event in self.of(TaskOpened))
        return list(known) or list(range(len(self.metrics.free_by_task)))

    def of(self, kind: type[E]) -> list[E]:
        """Its events of one kind."""
        return of_type(self.events, kind)


def find_runs(paths: Sequence[Path], marks: Sequence[str] = ("metrics.json",)) -> list[Path]:
    """The run folders at or under these paths: those with one of `marks` in them."""
    folders: list[Path] = []
    for path in paths:
        if not path.exists():
            raise DataError(f"{path}: no such folder")
        found = {file.parent for mark in marks for file in path.rglob(mark)}
        runs = sorted(folder for folder in found if not folder.name.startswith(BEFORE))
        if not runs:
            what = "finished runs" if len(marks) == 1 else "runs"
            raise DataError(f"{path}: no {what} in it (no {' or '.join(marks)})")
        folders += runs
    return list(dict.fromkeys(folders))


def one_run(path: Path) -> Path:
    """The run folder at this path, or the only one under it."""
    folders = find_runs([path])
    if len(folders) > 1:
        raise ConfigError(f"{path}: holds {len(folders)} runs; name one of them, such as {folders[0]}")
    return folders[0]


def read_run(folder: Path) -> Run:
    """A run that is complete, was stopped or goes on; DataError says why it cannot be used."""
    try:
        config = read_config(folder)
    except DataError:  # what was recorded can be shown without it
        config = None
    written = read_metrics(folder) if (folder / "metrics.json").exists() else None
    if not (folder / EVENTS).is_file():
        if written is None:
            begun = "nothing is recorded in it yet" if config else "config.yaml in it is not a run's"
            raise DataError(f"{folder}: {begun} (no {EVENTS})")
        return Run(folder, written, (), config)  # its scores were kept, its curves were not
    events = read_events(folder)
    if not events or not isinstance(events[0], RunStarted | MemberChanged):  # a peer that came back says so first
        raise DataError(f"{folder}: nothing is recorded in it yet")
    if written is None or written.status == "partial":  # a run that goes on has more events than its last metrics
        started = of_type(events, RunStarted)
        if not started:
            raise DataError(f"{folder}: {EVENTS} does not say which run it is of (no event of kind run)")
        written = metrics(events, Labels.of(started[0]), "partial", lasted_s(events))
    links = [Link(written.agent or 0, int(peer), count.sent) for peer, count in (written.links or {}).items()]
    return Run(folder, written, events, config, links)


def lasted_s(events: Sequence[Recorded]) -> float:
    """From the first event to the last."""
    times = [event.time for event in events if event.time is not None]
    return times[-1] - times[0] if times else 0.0


def recorded(folder: Path, config: "RunConfig") -> Metrics | None:
    """The metrics of this run, where the folder holds it complete. A folder with something else in it is refused."""
    from codecl.runs.config import difference

    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: is a file, not a run folder; choose another --out")
    if not folder.exists() or all(path.name.startswith("agent-") for path in folder.iterdir()):  # a fleet's, or empty
        return None
    if not (folder / "config.yaml").is_file():
        raise ConfigError(f"{folder}: is there already and is not a run folder; choose another --out")
    before = read_config(folder)
    if before.decisive() != config.decisive():
        changes = difference(before, config)
        raise ConfigError(f"{folder}: holds a run with another config ({'; '.join(changes[:3])}); choose another --out")
    try:
        done = read_metrics(folder)
    except DataError:  # it did not come to its end
        return None
    return done if done.status in ("complete", "degraded") else None


def read_config(folder: Path) -> "RunConfig":
    from codecl.runs.config import parse

    try:
        fields = yamlfile.load(read_bytes(folder / "config.yaml", yamlfile.MAX_BYTES))
        if shown(fields) != fields:
            raise ValueError("there are control characters in it")
        return parse(fields)
    except (OSError, ValueError, TypeError, AttributeError, ConfigError) as error:
        raise DataError(f"{folder}: config.yaml is broken or of another version ({reason(error)})") from error


def read_metrics(folder: Path) -> Metrics:
    try:
        values = shown(read_json(folder / "metrics.json"))
    except FileNotFoundError:
        raise DataError(f"{folder}: holds no finished run (no metrics.json)") from None
    except (OSError, ValueError):
        raise DataError(f"{folder}: metrics.json is broken, it cannot be read as JSON") from None
    if not isinstance(values, dict) or "schema" not in values:
        raise DataError(f"{folder}: metrics.json is not a run's (it names no schema)")
    if values["schema"] != SCHEMA:
        raise DataError(
            f"{folder}: metrics.json is of another version (schema {values['schema']!r}, known is {SCHEMA})"
        )
    try:
        return Metrics(**values)
    except ValidationError as error:
        raise DataError(f"{folder}: metrics.json is broken, {fault(error)}") from error


def read_tasks(folder: Path) -> list["TaskInfo"]:
    """What is known of the tasks of a recorded run."""
    from codecl.data.task import TaskInfo

    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        values = shown(read_json(folder / TASKS))
        tasks = [TaskInfo(**task) for task in values["tasks"]]
        for task in tasks:
            _check_shapes(folder, task)
        if tasks:
            return tasks
    raise DataError(f"{folder}: model/tasks.json is missing, broken or of another version")


def _check_shapes(folder: Path, task: "TaskInfo") -> None:
    """Of images that are made as large as a folder says."""
    for shape in (task.shape, task.original):
        if min(shape, default=0) < 0 or math.prod(shape) > MAX_INPUT:
            raise DataError(
                f"{folder}: images of task {task.name!r} are {list(shape)}; {MAX_INPUT:,} numbers are the most that an"
                " image may have"
            )


def read_files(folder: Path) -> dict[str, str]:
    """Digests of the data set files that a recorded run read, by name."""
    with suppress(OSError, ValueError, TypeError, AttributeError):
        return dict(read_json(folder / TASKS).get("files", {}))
    return {}


def read_structure(folder: Path) -> dict[str, list[str]]:
    """Of the module of a recorded run; empty: recorded before it was."""
    with suppress(OSError, ValueError, TypeError, AttributeError):
        found = dict(read_json(folder / TASKS).get("structure", {}))
        if all(isinstance(part, list) and [*map(type, part)] == [str] * 3 for part in found.values()):
            return found
    return {}


def read_layers(folder: Path, parameters: Mapping[str, "Tensor"]) -> list["Layer"]:
    """The layers of a recorded run that carry coordinates, as far as its own directions need to know them."""
    from codecl.space.calls import Form
    from codecl.space.layers import Layer

    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        values = read_json(folder / TASKS)
        layers = []
        for facts in values["layers"]:
            form = facts.pop("form", None)
            form = form and Form(*form[:3], *map(tuple, form[3:]))
            layers.append(Layer(**facts, shape=parameters[facts["weight"]].shape, rows=0, owned=False, form=form))
        return layers
    raise DataError(f"{folder}: model/tasks.json is missing, broken or of another version")


def read_events(folder: Path, size: int = -1) -> list[Recorded]:
    """All events, or those of the file's first bytes; of a last line that is half written, nothing."""
    tail = EventTail(folder)
    tail.read(size)
    return tail.events


class EventTail:
    """Follows the events of a run folder: only what is new, only whole lines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._start()

    def _start(self) -> None:
        self.events: list[Recorded] = []
        self._at = 0  # up to where the file was read
        self._last = b""  # the line that ends there

    def read(self, size: int = -1) -> int:
        """Take up what came since; how many events were there before. A line that is half written waits. All is read
        anew where the last line is no longer where it was: the file is another, or was cut."""
        try:
            length = _length(self.folder / EVENTS)
            with (self.folder / EVENTS).open("rb") as file:
                file.seek(self._at - len(self._last))
                data = file.read(length if size < 0 else size)
                if os.fstat(file.fileno()).st_size < self._at or not data.startswith(self._last):
                    self._start()
                    file.seek(0)
                    data = file.read(length if size < 0 else size)
        except FileNotFoundError:
            self._start()
            return 0
        except OSError as error:
            raise DataError(f"{self.folder}: {EVENTS} cannot be read ({error.strerror or error})") from error
        before = len(self.events)
        for line in data[len(self._last) :].split(b"\n")[:-1]:
            self.events.append(self._event(line))
            self._last = line + b"\n"
            self._at += len(self._last)
        return before

    def _event(self, line: bytes) -> Recorded:
        """The event of the next line."""
        number = len(self.events) + 1
        try:
            values = shown(parse_json(line))
            if not isinstance(values, dict) or "kind" not in values:
                raise DataError(f"{self.folder}: {EVENTS} is not a run's (line {number} has no kind)")
            return EVENT.validate_python(values)
        except ValidationError as error:
            raise DataError(f"{self.folder}: {EVENTS} is broken at line {number}, {fault(error)}") from error
        except ValueError:
            raise DataError(f"{self.folder}: {EVENTS} is broken at line {number}") from None


def _length(path: Path) -> int:
    """Of a plain file that is not too long to be read."""
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode) or facts.st_size > MAX_EVENTS:
        raise OSError(f"no plain file of up to {MAX_EVENTS:,} bytes")
    return facts.st_size


def as_fleets(runs: Sequence[Run]) -> list[Run]:
    """Runs as they are; the agents of a fleet as one run, whose folder may hold a simulated one as well."""
    groups: dict[tuple[Path, bool], list[Run]] = {}
    for run in runs:
        is_agent = run.metrics.agent is not None and AGENT.fullmatch(run.folder.name) is not None
        folder = run.folder.parent if is_agent else run.folder
        groups.setdefault((folder, is_agent), []).append(run)
    return [_fleet(group) if is_fleet else group[0] for (_, is_fleet), group in groups.items()]


def _fleet(agents: Sequence[Run]) -> Run:
    """What agents sent is added up; accuracies are means over those recorded; the worst of their states counts."""
    furthest = max(agents, key=lambda run: len(run.metrics.accuracy_matrix))
    each = [run.metrics for run in agents]
    sums = ("train_bytes", "boundary_bytes", "full_bytes", "wire_bytes")
    traffic = furthest.metrics.traffic.model_copy(
        update={name: sum(getattr(agent.traffic, name) or 0 for agent in each) for name in sums}
    )
    cc = traffic.full_bytes / traffic.sent_bytes if traffic.sent_bytes else None
    together = furthest.metrics.model_copy(
        update={
            "agent": None,
            "links": None,
            "status": next(status for status in FROM_WORST if status in [agent.status for agent in each]),
            "acc": _mean([agent.acc for agent in each]),
            "bwt": _mean([agent.bwt for agent in each]),
            "traffic": traffic.model_copy(update={"cc": cc}),
            "missed": sum(agent.missed or 0 for agent in each),
            "recorded_agents": len(each),
            "privacy": _least_private([agent.privacy for agent in each if agent.privacy]),
        }
    )
    links = [link for run in agents for link in run.links]
    by_agent = {run.metrics.agent: run.events for run in agents if run.metrics.agent is not None}
    events = held.with_everyones(furthest.events, by_agent, furthest.metrics.agents)
    return furthest._replace(folder=furthest.folder.parent, metrics=together, events=events, links=links)


def _least_private(each: Sequence[Privacy]) -> Privacy | None:
    """That of the agent with the largest ε; none is more than any."""
    return max(each, key=lambda one: math.inf if one.epsilon is None else one.epsilon, default=None)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
