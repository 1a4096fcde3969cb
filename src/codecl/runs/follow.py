"""Following runs from their folders alone: what was appended since the last look, and whether anyone still writes."""

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from codecl import files
from codecl.errors import DataError
from codecl.runs.metrics import Fact
from codecl.runs.progress import Progress, progress
from codecl.runs.tail import Tail, look

State = Literal["starting", "under way", "silent", "stopped", "complete", "degraded"]
GOING: tuple[State, ...] = ("starting", "under way", "silent")
QUIET_S = 5.0  # without a new fact, where nobody is seen to write: silent
PATIENCE_S = 60.0  # the same, and as long as several epochs: stopped
EPOCHS = 3
LINGER_S = 10.0  # in which the next run of a grid may begin
CODES: dict[State, int] = {"stopped": 1, "degraded": 4}


class Seen(NamedTuple):
    """A run at one look."""

    folder: Path
    state: State
    progress: Progress
    silent_s: float  # since its last fact
    new: tuple[Progress, ...] = ()  # where it stood at the end of each task that ended since the last look


def state_of(now: Progress, written: bool, left: bool, silent_s: float) -> State:
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


class Eye:
    """Follows one run folder. Reads only, and takes no lock."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.facts, self._tail = folder, list[Fact](), Tail()
        self.written, self._epochs, self._progress, self._new = False, 0, Progress({}), True

    def look(self) -> Seen:
        written = files.is_locked(self.folder) is True  # first: what is recorded before the lock goes is read below
        left, self.written = self.written and not written, self.written or written
        ended = self._read()
        now = self._progress
        if now.ended and not self._closed(now.ended):  # metrics and model are not there yet
            now = now._replace(ended=None)
        silent_s = max(0.0, time.time() - self._sign())
        return Seen(self.folder, state_of(now, written, left, silent_s), now, silent_s, ended)

    def _read(self) -> tuple[Progress, ...]:
        self._tail, lines, anew = look(self.folder / "events.jsonl", self._tail)
        if anew:
            self.facts, self._progress = [], Progress({})
        first, self._new = self._new, False
        if not lines:
            return ()
        if not self.facts:
            self._epochs = _epochs(self.folder)
        before = len(self.facts)
        try:
            self.facts += map(_fact, lines)
            ends = [at for at, fact in enumerate(self.facts[before:], before + 1) if fact["kind"] == "eval"]
            self._progress = progress(self.facts, self._epochs)
            return () if first else tuple(progress(self.facts[:end], self._epochs) for end in ends)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise DataError(f"{self.folder}: events.jsonl is damaged or of another version ({error!r:.80})") from error

    def _closed(self, status: str) -> bool:
        """Whether the run's last word, its metrics, is there."""
        try:
            return bool(json.loads((self.folder / "metrics.json").read_bytes())["status"] == status)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def _sign(self) -> float:
        """When the run last wrote. Not the time of its last fact: one that was resumed has old ones."""
        for path in (self.folder / "events.jsonl", self.folder):
            with suppress(OSError):
                return path.stat().st_mtime
        return time.time()


def _fact(line: bytes) -> dict[str, Any]:
    fact = json.loads(line)
    if not isinstance(fact, dict):
        raise ValueError(f"{line[:40]!r} is not a fact")
    return fact


def _epochs(folder: Path) -> int:
    """Of a task, as the config says; 0 where there is none (yet)."""
    try:
        config: Mapping[str, Any] = yaml.safe_load((folder / "config.yaml").read_bytes())
        return int(config["train"]["epochs"])
    except (OSError, yaml.YAMLError, ValueError, KeyError, TypeError):
        return 0


def together(states: Sequence[State]) -> State:
    """The state of what consists of these."""
    order: tuple[State, ...] = ("under way", "starting", "silent", "stopped", "degraded", "complete")
    return next((state for state in order if state in states), "starting")


class Place(NamedTuple):
    """Where a run is recorded: in its folder, or, of a fleet, in those of its agents."""

    folder: Path
    agents: tuple[Path, ...] = ()


def find(path: Path) -> list[Place]:
    """The runs at or under this path, begun or finished."""
    if _is_run(path):
        return [Place(path)]
    places: dict[Path, list[Path]] = {}
    for folder in sorted(_runs(path), key=_in_order):
        agent = re.fullmatch(r"agent-\d+", folder.name) and not _is_run(folder.parent)
        places.setdefault(folder.parent if agent else folder, []).extend([folder] if agent else [])
    return [Place(folder, tuple(agents)) for folder, agents in places.items()]


def _is_run(folder: Path) -> bool:
    return (folder / "events.jsonl").is_file()


def _runs(path: Path) -> Iterator[Path]:
    for at, folders, names in os.walk(path):
        if "events.jsonl" in names:
            yield Path(at)
            folders[:] = [name for name in folders if re.fullmatch(r"agent-\d+", name)]


def _in_order(folder: Path) -> tuple[Any, ...]:
    """agent-10 after agent-9."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", str(folder)))


class Group(NamedTuple):
    """A run at one look: itself, or its agents."""

    place: Place
    state: State
    parts: tuple[Seen, ...]


class View(NamedTuple):
    """All that is watched, at one look."""

    path: Path
    runs: tuple[Group, ...]
    over: bool  # nothing more will come
    exit_code: int

    @property
    def alone(self) -> Group | None:
        """The run, where one is watched and not a folder of them."""
        return self.runs[0] if len(self.runs) == 1 and self.runs[0].place.folder == self.path else None


class Onlooker:
    """Follows what is recorded at a path: a run, a fleet, or a folder of runs, in which more may begin. `patience`:
    seconds in which the first may."""

    def __init__(self, path: Path, patience: float = 0.0) -> None:
        self.path, self.patience, self.places = path, patience, list[Place]()
        self._eyes, self._going, self._last = dict[Path, Eye](), set[Path](), time.monotonic()

    def there(self) -> bool:
        """Whether anything is recorded at the path."""
        self.places = find(self.path) or self.places  # a run that starts anew is not there for a moment
        return bool(self.places)

    def look(self) -> View:
        self.there()
        runs = tuple(self._group(place) for place in self.places)
        going = {run.place.folder for run in runs if run.state in GOING}
        self._going |= going
        now = time.monotonic()
        self._last = now if going else self._last
        whole = View(self.path, runs, False, 0)
        patience = LINGER_S if self._going else self.patience
        lingers = not whole.alone and now - self._last < patience
        watched = [run.state for run in runs if whole.alone or run.place.folder in self._going]
        code = next((CODES[state] for state in CODES if state in watched), 0) if not going else 0
        return whole._replace(over=not going and not lingers, exit_code=code)

    def _group(self, place: Place) -> Group:
        folders = place.agents or (place.folder,)
        parts = tuple(self._eyes.setdefault(folder, Eye(folder)).look() for folder in folders)
        return Group(place, together([part.state for part in parts]), parts)
