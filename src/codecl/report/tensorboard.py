"""A run on TensorBoard: a fold over events, so that live and recorded ones give the same board."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from codecl.errors import ConfigError
from codecl.runs.metrics import acc, bwt, rows, traffic
from codecl.runs.reader import read_events
from codecl.train.events import EpochEnded, Evaluated, Event, Recorded, RunStarted, Sent, TaskOpened, of_type

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

Scalars = dict[str, float | None]
OURS = ".codecl"  # ends the names of the files that are written here
FLUSH_S = 5  # points are on disk after so many seconds


class Point(NamedTuple):
    tag: str
    value: float
    step: int  # iterations over the whole run


class Points:
    """Events, one after another -> the points that each adds."""

    def __init__(self) -> None:
        self.events: list[Recorded] = []
        self.steps: dict[int, int] = {}  # by task

    def of(self, event: Recorded) -> Iterator[Point]:
        self.events.append(event)
        if isinstance(event, EpochEnded):
            self.steps[event.task] = event.step
        step = sum(self.steps.values())
        return (Point(tag, value, step) for tag, value in self._scalars(event).items() if value is not None)

    def _scalars(self, event: Recorded) -> Scalars:
        if isinstance(event, TaskOpened):
            return {f"free/{layer}": count for layer, count in event.free.items()}
        if isinstance(event, EpochEnded):
            return _epoch(event, self.events)
        if isinstance(event, Evaluated):
            return _evaluated(event, self.events)
        return {}

    def scores(self) -> Scalars:
        """So far."""
        return {**_scores(self.events), "cc": traffic(self.events).cc}


def _epoch(event: EpochEnded, before: Sequence[Recorded]) -> Scalars:
    opened = [task for task in of_type(before, TaskOpened) if task.task == event.task]
    steps = opened[-1].steps if opened else None
    return {
        "loss/mean": sum(event.loss) / len(event.loss),
        **{f"loss_by_agent/{agent}": value for agent, value in enumerate(event.loss)},
        "consensus_error": event.consensus_error,
        "disagreement": event.disagreement,  # of a peer
        "lr": event.lr,
        "mu/mean": event.mu_mean,
        "mu/max": event.mu_max,
        "steps_a_second": steps / event.seconds if steps and event.seconds else None,
    }


def _evaluated(event: Evaluated, before: Sequence[Recorded]) -> Scalars:
    """A task's end: what is known of each task, and what this one sent."""
    names = {task.task: task.name for task in of_type(before, TaskOpened)}
    sent = traffic(before)
    return {
        **{f"accuracy/{task + 1} {names.get(task, '')}".strip(): score for task, score in enumerate(event.accuracy)},
        "accuracy/mean": _scores(before)["acc"],
        "traffic/bytes_of_task": sum(message.bytes for message in of_type(before, Sent) if message.task == event.task),
        "traffic/cc_of_task": sent.cc_by_task[-1] if sent.cc_by_task else None,
        "traffic/cc": sent.cc,
    }


def _scores(events: Sequence[Recorded]) -> Scalars:
    alone = any(run.each_task_alone for run in of_type(events, RunStarted))
    matrix = rows(events)
    return {"acc": acc(matrix, alone), "bwt": None if alone else bwt(matrix)}


class Board:
    """Writes a run's board: `with Board("tensorboard/mine") as board: fit(..., on_event=board)`.

    `folder` is the board's own: what was written there before is replaced. `recorded`: the run's folder, where a run
    that is resumed has its beginning, and its config."""

    def __init__(self, folder: str | Path, recorded: Path | None = None) -> None:
        self.folder, self.recorded, self._points = Path(folder), recorded, Points()
        self._writer: SummaryWriter | None = None
        check()

    def __call__(self, event: Event) -> None:
        if not isinstance(event, Recorded):
            return
        if self._writer is None and self.recorded is not None:
            self.catch_up(self.recorded)  # an event is recorded before it is handed on
        else:
            self.note(event)

    def catch_up(self, run: Path) -> None:
        """All that is recorded of a run."""
        for event in read_events(run):
            self.note(event)

    def note(self, event: Recorded) -> None:
        """Draw what an event adds."""
        writer = self._opened()
        for point in self._points.of(event.stamped() if event.time is None else event):
            if math.isfinite(point.value):
                writer.add_scalar(point.tag, point.value, point.step, walltime=event.time)

    def _opened(self) -> "SummaryWriter":
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            for earlier in self.folder.glob(f"events.out.tfevents.*{OURS}"):
                earlier.unlink(missing_ok=True)
            try:  # a TensorBoard that is open holds points of the earlier files: purge_step makes it forget them
                self._writer = SummaryWriter(str(self.folder), purge_step=0, flush_secs=FLUSH_S, filename_suffix=OURS)
            except OSError as error:
                raise ConfigError(f"--tensorboard: {self.folder} cannot be written ({error.strerror})") from error
        return self._writer

    def close(self) -> None:
        """The config, as text and beside the scores, and the end of the file."""
        if self._writer is None:
            return
        config = _config(self.recorded) if self.recorded is not None else ""
        if config:
            self._writer.add_text("config", "\n".join(f"    {line}" for line in config.splitlines()), 0)
            self._hparams(_flat(yaml.safe_load(config)))
        self._writer.close()
        self._writer = None

    def _hparams(self, fields: Mapping[str, Any]) -> None:
        """For TensorBoard's table of runs. Not `add_hparams`: that makes a folder of its own."""
        from torch.utils.tensorboard.summary import hparams

        assert self._writer is not None
        known = {f"score/{name}": value for name, value in self._points.scores().items() if value is not None}
        for summary in hparams(dict(fields), dict.fromkeys(known)):
            self._writer._get_file_writer().add_summary(summary)
        for tag, value in known.items():
            self._writer.add_scalar(tag, value, sum(self._points.steps.values()))

    def __enter__(self) -> "Board":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check() -> None:
    """That TensorBoard is here."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise ConfigError("--tensorboard: TensorBoard is not installed; pip install 'codecl[tensorboard]'") from error


def write(run: Path, folder: Path) -> None:
    """The board of a recorded run."""
    with Board(folder, run) as board:
        board.catch_up(run)


def folder_of(run: Path, boards: Path | None) -> Path:
    """Where the board of a run goes: into its folder, or under one that holds the boards of several."""
    return run / "tensorboard" if boards is None else boards / run.parent.name / run.name


def _config(run: Path) -> str:
    with suppress(OSError):
        return (run / "config.yaml").read_text(encoding="utf-8")
    return ""


def _flat(value: Any, path: str = "") -> dict[str, bool | int | float | str]:
    """Fields by their dotted names, as TensorBoard takes them."""
    if not isinstance(value, dict):
        return {path: value if isinstance(value, bool | int | float | str) else json.dumps(value)}
    parts = [_flat(part, f"{path}.{key}".strip(".")) for key, part in value.items()]
    return {name: one for part in parts for name, one in part.items()}
