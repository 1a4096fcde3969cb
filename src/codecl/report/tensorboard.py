"""A run on TensorBoard: a fold over events, so that live ones and recorded ones give the same board."""

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from codecl.errors import ConfigError, DataError
from codecl.report.score_words import ScoreWords
from codecl.runs.config import RunConfig, flat
from codecl.runs.metrics import acc, bwt, rows, traffic
from codecl.runs.reader import read_config, read_events
from codecl.runs.schema import kept_share
from codecl.train.events import EpochEnded, Evaluated, Event, Recorded, RunStarted, Sent, TaskOpened, of_type

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

OURS = ".codecl"  # ends the names of the files that are written here
FLUSH_S = 5  # points are on disk after so many seconds
PLAIN = (bool, int, float, str)  # what a field may be there
Scalars = dict[str, float | None]


def _epoch(epoch: EpochEnded, events: Sequence[Recorded]) -> Scalars:
    opened = [task for task in of_type(events, TaskOpened) if task.task == epoch.task]
    return {
        "loss/mean": sum(epoch.loss) / len(epoch.loss),
        **{f"loss_by_agent/{agent}": value for agent, value in enumerate(epoch.loss)},
        "consensus_error": epoch.consensus_error,
        "disagreement": epoch.disagreement,  # of a peer
        "lr": epoch.lr,
        "mu/mean": epoch.mu_mean,
        "mu/max": epoch.mu_max,
        "steps_a_second": opened[-1].steps / epoch.seconds if opened and epoch.seconds else None,
    }


def _task_end(end: Evaluated, events: Sequence[Recorded]) -> Scalars:
    """What is known of each task, and what this one sent."""
    names = {opened.task: opened.name for opened in of_type(events, TaskOpened)}
    sent = traffic(events)
    scores, word = _scores(events), ScoreWords.of(of_type(events, RunStarted)).word
    return {
        **{f"{word}/{task + 1} {names.get(task, '')}".strip(): score for task, score in enumerate(end.accuracy)},
        f"{word}/mean": scores["acc"],
        "kept_percent": scores["kept_percent"],
        "traffic/bytes_of_task": sum(event.bytes for event in of_type(events, Sent) if event.task == end.task),
        "traffic/cc_of_task": sent.cc_by_task[-1] if sent.cc_by_task else None,
        "traffic/cc": sent.cc,
    }


def _scores(events: Sequence[Recorded]) -> Scalars:
    alone = any(run.each_task_alone for run in of_type(events, RunStarted))
    matrix, opened = rows(events), of_type(events, TaskOpened)
    kept = kept_share([task.kept for task in opened], opened[0].body if opened else None, alone)
    return {
        "acc": acc(matrix, alone),
        "bwt": None if alone else bwt(matrix),
        "cc": traffic(events).cc,
        "kept_percent": None if kept is None else 100 * kept,
    }


class Board:
    """Writes a run's board: `with Board("tensorboard/mine") as board: fit(..., on_event=board)`.

    `folder` is the board's own: what was written there before is replaced. `recorded`: the run's folder, where a run
    that is resumed has its beginning, and its config."""

    def __init__(self, folder: str | Path, recorded: Path | None = None) -> None:
        self.folder = Path(folder)
        self.recorded = recorded
        self.events: list[Recorded] = []
        self.steps: dict[int, int] = {}  # by task
        self._writer: SummaryWriter | None = None
        check()

    def __call__(self, event: Event) -> None:
        if not isinstance(event, Recorded):
            return
        if self._writer is None and self.recorded is not None:
            self.catch_up(self.recorded)  # an event is recorded before it is handed on
        else:
            self.note(event.stamped())

    def catch_up(self, run: Path) -> None:
        """All that is recorded of a run."""
        for event in read_events(run):
            self.note(event)

    def note(self, event: Recorded) -> None:
        """Draw what an event adds, at the iterations of the whole run."""
        writer = self._opened()
        self.events.append(event)
        scalars: Scalars = {}
        if isinstance(event, TaskOpened):
            scalars = {f"free/{layer}": count for layer, count in event.free.items()}
        elif isinstance(event, EpochEnded):
            self.steps[event.task] = event.step
            scalars = _epoch(event, self.events)
        elif isinstance(event, Evaluated):
            scalars = _task_end(event, self.events)
        for tag, value in scalars.items():
            if value is not None and math.isfinite(value):
                writer.add_scalar(tag, value, sum(self.steps.values()), walltime=event.time)

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

    def __enter__(self) -> "Board":
        return self

    def __exit__(self, *_: object) -> None:
        """Adds the config, as text and beside the scores, and ends the file."""
        if self._writer is None:
            return
        if self.recorded is not None:
            with suppress(DataError):  # no config that can be read
                self._show(self._writer, read_config(self.recorded))
        self._writer.close()
        self._writer = None

    def _show(self, writer: "SummaryWriter", config: RunConfig) -> None:
        """A config, also for TensorBoard's table of runs. Not by `add_hparams`: that makes a folder of its own."""
        from torch.utils.tensorboard.summary import hparams

        writer.add_text("config", "\n".join(f"    {line}" for line in config.dump().splitlines()), 0)
        values = flat(config.model_dump(mode="json"))
        fields = {name: value if isinstance(value, PLAIN) else json.dumps(value) for name, value in values.items()}
        known = {f"score/{name}": score for name, score in _scores(self.events).items() if score is not None}
        for summary in hparams(fields, dict.fromkeys(known)):
            writer._get_file_writer().add_summary(summary)
        for tag, score in known.items():
            writer.add_scalar(tag, score, sum(self.steps.values()))


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
