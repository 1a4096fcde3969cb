"""A run folder that goes on with more tasks: a new one after a finished one, or the same, which then keeps how it was
until the task is learned. Whenever it is stopped, it can go on, or go back."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from codecl.data import verdicts
from codecl.data.streams import PLUS
from codecl.data.task import TaskInfo
from codecl.errors import ConfigError, DataError
from codecl.files import write_text
from codecl.runs.config import RunConfig, difference
from codecl.runs.next_task import OWN, Past
from codecl.runs.reader import BEFORE, EVENTS, read_config, read_events, read_metrics, read_tasks
from codecl.runs.writer import kept_alone, write_begun
from codecl.train.events import Evaluated, Recorded, RunStarted, TaskOpened
from codecl.train.state import Setup

MAY_DIFFER = ("data.stream", "data.digest", "data.tasks", "sources.data")
CONFIG = "config.yaml"
SET_ASIDE = (
    EVENTS,
    "metrics.json",
    "model/tasks.json",
    "checkpoint",
)  # beside the config: what makes it a finished run


class Standing(NamedTuple):
    """Where the folder of a learner stands."""

    config: RunConfig  # of its tasks so far, with the one that is begun
    tasks: Sequence[TaskInfo] = ()  # that are finished
    learned: Sequence[str] = ()  # of these, the digests of a caller's own
    begun: str | None = None  # the digest of a task that is not finished

    @property
    def numbers(self) -> dict[str, int]:
        """Digests of own tasks -> their numbers, from 0; none where other streams come between them."""
        if OWN in self.config.data.stream.split(PLUS)[:-1]:
            return {}
        return dict(zip(self.learned, range(len(self.tasks) - len(self.learned), len(self.tasks)), strict=True))


def standing(folder: Path, start: RunConfig | None = None) -> Standing:
    """`start`: the config of a learner whose folder need not be there yet."""
    if start is not None and not (folder / CONFIG).is_file():
        return Standing(start)
    config = read_config(folder)
    digests = (config.data.digest or "").split()
    if is_complete(folder):
        return Standing(config, read_tasks(folder), digests)
    if (folder / BEFORE).is_dir():
        return Standing(config, read_tasks(folder / BEFORE), digests[:-1], digests[-1])
    if config.data.stream != OWN or len(digests) != 1:
        raise ConfigError(f"{folder}: its run is not finished; finish it with the call that began it")
    return Standing(config, begun=digests[0])


def begin(past: Past, folder: Path, config: RunConfig, setup: Setup) -> None:
    """A folder to resume with the tasks that `past` lacks. Law: it ends as a run that had all tasks from the start."""
    others = [text for text in difference(past.config, config) if not text.startswith(MAY_DIFFER)]
    if others:
        raise ConfigError(f"{past.name}: has another config ({'; '.join(others[:3])}); a run is extended as it is")
    heads = sum(value.numel() for head in setup.heads[len(past.tasks) :] for value in head.values())
    recorded = read_events(past.folder, past.point.events)
    amended_events = [amended(event, config, len(setup.heads), heads) for event in recorded]
    write_begun(folder, config, amended_events, past.point)


def amended(event: Recorded, config: RunConfig, tasks: int, heads: int) -> Recorded:
    """What a run with all tasks would have recorded: their number and data sets, their heads in the authors' count."""
    if isinstance(event, RunStarted):
        data_sets = {**(event.data_sets or {}), **(verdicts.of_stream(config.data) or {})} or None
        return event.model_copy(update={"tasks": tasks, "digest": config.digest(), "data_sets": data_sets})
    if isinstance(event, TaskOpened):
        return event.model_copy(update={"reference_extra": event.reference_extra + heads})
    if isinstance(event, Evaluated):
        return event.model_copy(update={"without_identity": None})  # of all tasks, after the last
    return event


def is_begun(folder: Path, config: RunConfig) -> bool:
    """Whether the folder can be resumed with this config."""
    if not (folder / "checkpoint").is_dir():
        return False
    return read_config(folder).decisive() == config.decisive()


def set_aside(folder: Path) -> Path:
    """How a finished run in this folder is now: a folder inside it, whole or not there."""
    before, unfinished = folder / BEFORE, folder / f"{BEFORE}.part"
    if not before.is_dir():
        shutil.rmtree(unfinished, ignore_errors=True)
        for name in (CONFIG, *SET_ASIDE):
            _copy(folder / name, unfinished / name)
        os.replace(unfinished, before)
    return before


def restore(folder: Path) -> None:
    """The folder as it was set aside. The config first: until all is back, the folder is known as what it was."""
    before, gone = folder / BEFORE, folder / f"{BEFORE}.part"
    with kept_alone(folder):
        write_text(folder / CONFIG, (before / CONFIG).read_text(encoding="utf-8"))
        for name in SET_ASIDE:
            _copy(before / name, folder / name)
        shutil.rmtree(gone, ignore_errors=True)
        os.replace(before, gone)
        shutil.rmtree(gone, ignore_errors=True)


def tidy(folder: Path) -> None:
    """Put right what a stop between two tasks may have left."""
    before = folder / BEFORE
    if not before.is_dir():
        shutil.rmtree(folder / f"{BEFORE}.part", ignore_errors=True)
        return
    if (folder / CONFIG).read_bytes() == (before / CONFIG).read_bytes():  # the next task was not quite begun
        restore(folder)
    elif is_complete(folder):
        shutil.rmtree(before, ignore_errors=True)


def is_complete(folder: Path) -> bool:
    try:
        return read_metrics(folder).status == "complete"
    except DataError:
        return False


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
