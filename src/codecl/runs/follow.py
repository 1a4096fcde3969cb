"""Following runs from their folders alone: what was appended since the last look, and whether anyone still writes."""

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from codecl import files
from codecl.errors import DataError
from codecl.runs import yamlfile
from codecl.runs.metrics import Progress, progress
from codecl.runs.reader import AGENT, EVENTS, EventTail, read_metrics
from codecl.train.events import Evaluated, Status

Liveness = Literal["starting", "under way", "silent", "stopped", "complete", "degraded"]
GOING: tuple[Liveness, ...] = ("starting", "under way", "silent")
QUIET_S = 5.0  # without a new event, where nobody is seen to write: silent
PATIENCE_S = 60.0  # the same, and as long as several epochs: stopped
EPOCHS = 3
LINGER_S = 10.0  # in which the next run of a grid may begin
CODES: dict[Liveness, int] = {"stopped": 1, "degraded": 4}


class Snapshot(NamedTuple):
    """What one run folder holds at one look."""

    folder: Path
    state: Liveness
    progress: Progress
    silent_s: float  # since its last event
    new: tuple[Progress, ...] = ()  # where it stood at the end of each task that ended since the last look


def state_of(now: Progress, written: bool, left: bool, silent_s: float) -> Liveness:
    """`written`: someone is seen to write the folder; `left`: someone was, and is no longer."""
    if now.ended in ("complete", "degraded"):
        return now.ended
    if now.ended == "partial" or (left and not written):
        return "stopped"
    if not written and silent_s > max(PATIENCE_S, EPOCHS * now.longest_s):
        return "stopped"
    if not written and silent_s > QUIET_S:
        return "silent"
    return "under way" if now.about else "starting"


class RunFollower:
    """Follows one run folder. Reads only, and takes no lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tail = EventTail(folder)
        self._progress = Progress()
        self._epochs = 0
        self._written = False  # whether someone was ever seen to write
        self._looked = False

    def look(self) -> Snapshot:
        written = files.is_locked(self.folder) is True  # first: what is recorded before the lock goes is read below
        left = self._written and not written
        self._written |= written
        new = self._read()
        now = self._progress
        if now.ended and not self._closed(now.ended):  # metrics and model are not there yet
            now = now._replace(ended=None)
        silent_s = max(0.0, time.time() - self._last_write())
        return Snapshot(self.folder, state_of(now, written, left, silent_s), now, silent_s, new)

    def _read(self) -> tuple[Progress, ...]:
        """Takes up what is new; gives the progress at each task's end in it, but for the first look."""
        first = not self._looked
        self._looked = True
        before = self._tail.read()
        events = self._tail.events
        if before == 0:  # it begins, or began again
            self._progress = Progress()
            self._epochs = _epochs(self.folder)
        if len(events) > before:
            self._progress = progress(events, self._epochs)
        ends = [at for at, event in enumerate(events, 1) if at > before and isinstance(event, Evaluated)]
        return () if first else tuple(progress(events[:end], self._epochs) for end in ends)

    def _closed(self, status: Status) -> bool:
        """Whether the run's last word, its metrics, is there."""
        with suppress(DataError):
            return read_metrics(self.folder).status == status
        return False

    def _last_write(self) -> float:
        """When the run last wrote. Not the time of its last event: one that was resumed has old ones."""
        for path in (self.folder / EVENTS, self.folder):
            with suppress(OSError):
                return path.stat().st_mtime
        return time.time()


def _epochs(folder: Path) -> int:
    """Of a task, as the config says; 0 where there is none (yet). Not by `read_config`: that needs torch."""
    with suppress(OSError, ValueError, KeyError, TypeError, OverflowError):
        held = yamlfile.load(files.read_bytes(folder / "config.yaml", yamlfile.MAX_BYTES))
        return int(held["train"]["epochs"])
    return 0


def together(states: Sequence[Liveness]) -> Liveness:
    """The state of what consists of these."""
    order: tuple[Liveness, ...] = ("under way", "starting", "silent", "stopped", "degraded", "complete")
    return next((state for state in order if state in states), "starting")


class RunFolder(NamedTuple):
    """Where a run is recorded: in its folder, or, of a fleet, in those of its agents."""

    folder: Path
    agents: tuple[Path, ...] = ()


def find(path: Path) -> list[RunFolder]:
    """The runs at or under this path, begun or finished."""
    if (path / EVENTS).is_file():
        return [RunFolder(path)]
    agents: dict[Path, list[Path]] = {}
    for folder in sorted(_runs(path), key=_in_order):
        if AGENT.fullmatch(folder.name) and not (folder.parent / EVENTS).is_file():
            agents.setdefault(folder.parent, []).append(folder)
        else:
            agents[folder] = []
    return [RunFolder(folder, tuple(its_agents)) for folder, its_agents in agents.items()]


def _runs(path: Path) -> Iterator[Path]:
    for at, folders, names in os.walk(path):
        if EVENTS in names:
            yield Path(at)
            folders[:] = [name for name in folders if AGENT.fullmatch(name)]


def _in_order(folder: Path) -> tuple[Any, ...]:
    """agent-10 after agent-9."""
    return tuple(int(word) if word.isdigit() else word for word in re.split(r"(\d+)", str(folder)))


class RunSnapshot(NamedTuple):
    """A run at one look: itself, or its agents."""

    place: RunFolder
    state: Liveness
    parts: tuple[Snapshot, ...]


class FollowerView(NamedTuple):
    """All that is followed, at one look."""

    path: Path
    runs: tuple[RunSnapshot, ...]
    over: bool  # nothing more will come
    exit_code: int

    @property
    def alone(self) -> RunSnapshot | None:
        """The run, where one is watched and not a folder of them."""
        return self.runs[0] if len(self.runs) == 1 and self.runs[0].place.folder == self.path else None


class Follower:
    """Follows what is recorded at a path: a run, a fleet, or a folder of runs, in which more may begin. `patience`:
    seconds in which the first may. `known`: the runs to follow, where they need not be searched for."""

    def __init__(self, path: Path, patience: float = 0.0, known: Sequence[RunFolder] = ()) -> None:
        self.path = path
        self.patience = patience
        self._known = known
        self._places: Sequence[RunFolder] = known
        self._followers: dict[Path, RunFollower] = {}
        self._going: set[Path] = set()  # that were seen to go on
        self._last = time.monotonic()  # when any did

    def there(self) -> bool:
        """Whether anything is recorded at the path."""
        if not self._known:
            self._places = find(self.path) or self._places  # a run that starts anew is not there for a moment
        return bool(self._places)

    def look(self) -> FollowerView:
        self.there()
        runs = tuple(self._snapshot(place) for place in self._places)
        going = {run.place.folder for run in runs if run.state in GOING}
        self._going |= going
        now = time.monotonic()
        self._last = now if going else self._last
        view = FollowerView(self.path, runs, False, 0)
        lingers = not view.alone and now - self._last < (LINGER_S if self._going else self.patience)
        watched = [run.state for run in runs if view.alone or run.place.folder in self._going]
        code = next((CODES[state] for state in CODES if state in watched), 0) if not going else 0
        return view._replace(over=not going and not lingers, exit_code=code)

    def _snapshot(self, place: RunFolder) -> RunSnapshot:
        folders = place.agents or (place.folder,)
        parts = tuple(self._followers.setdefault(folder, RunFollower(folder)).look() for folder in folders)
        return RunSnapshot(place, together([part.state for part in parts]), parts)
