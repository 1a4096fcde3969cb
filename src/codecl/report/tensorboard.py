"""A run on TensorBoard: a fold over facts, so that live events and recorded ones give the same board."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from codecl.errors import ConfigError, DataError
from codecl.runs.metrics import Fact, acc, bwt, traffic
from codecl.runs.progress import ALONE
from codecl.runs.tail import Tail, look

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from codecl.train.events import Event

OURS = ".codecl"  # ends the names of the files that are written here
FLUSH_S = 5  # points are on disk after so many seconds


class Point(NamedTuple):
    tag: str
    value: float
    step: int  # iterations over the whole run


class Points:
    """Facts, one after another -> the points that each adds."""

    def __init__(self) -> None:
        self.by_kind: dict[str, list[Fact]] = {}
        self.steps: dict[int, int] = {}  # by task

    def of(self, fact: Fact) -> Iterator[Point]:
        self.by_kind.setdefault(fact["kind"], []).append(fact)
        if fact["kind"] == "epoch":
            self.steps[fact["task"]] = fact["step"]
        step = sum(self.steps.values())
        scalars = SCALARS.get(fact["kind"], _nothing)(fact, self.by_kind)
        return (Point(tag, value, step) for tag, value in scalars.items() if value is not None)


Scalars = dict[str, float | None]
ByKind = Mapping[str, Sequence[Fact]]


def _nothing(fact: Fact, before: ByKind) -> Scalars:
    return {}


def _task(fact: Fact, before: ByKind) -> Scalars:
    return {f"free/{layer}": count for layer, count in fact["free"].items()}


def _epoch(fact: Fact, before: ByKind) -> Scalars:
    steps = next((task["steps"] for task in reversed(before.get("task", ())) if task["task"] == fact["task"]), None)
    return {
        "loss/mean": sum(fact["loss"]) / len(fact["loss"]),
        **{f"loss_by_agent/{agent}": value for agent, value in enumerate(fact["loss"])},
        "consensus_error": fact.get("consensus_error"),
        "disagreement": fact.get("disagreement"),  # of a peer
        "lr": fact["lr"],
        "mu/mean": fact.get("mu_mean"),
        "mu/max": fact.get("mu_max"),
        "steps_a_second": steps / fact["seconds"] if steps and fact["seconds"] else None,
    }


def _eval(fact: Fact, before: ByKind) -> Scalars:
    """A task's end: what is known of each task, and what this one sent."""
    names = {task["task"]: task["name"] for task in before.get("task", ())}
    kinds = ("epoch", "agree", "grow", "flood")
    sent = sum(one["bytes"] for kind in kinds for one in before.get(kind, ()) if one["task"] == fact["task"])
    found, known = traffic(before), _scores(before)
    scores = {f"accuracy/{task + 1} {names.get(task, '')}".strip(): s for task, s in enumerate(fact["accuracy"])}
    return {
        **scores,
        "accuracy/mean": known["acc"],
        "traffic/bytes_of_task": sent,
        "traffic/cc_of_task": found["cc_by_task"][-1] if found["cc_by_task"] else None,
        "traffic/cc": found["cc"],
    }


def _scores(before: ByKind) -> Scalars:
    alone = any(fact["method"] in ALONE for fact in before.get("run", ()))
    rows = {fact["task"]: fact["accuracy"] for fact in before.get("eval", ())}
    every = [rows.get(task) for task in range(max(rows, default=-1) + 1)]
    return {"acc": acc(every, alone), "bwt": None if alone or not every else bwt(every)}


SCALARS = {"task": _task, "epoch": _epoch, "eval": _eval}


class Board:
    """Writes a run's board: `with Board("tensorboard/mine") as board: fit(..., on_event=board)`.

    `folder` is the board's own: what was written there before is replaced. `recorded`: the run's folder, where a run
    that is resumed has its beginning, and its config."""

    def __init__(self, folder: str | Path, recorded: Path | None = None) -> None:
        self.folder, self.recorded, self._points = Path(folder), recorded, Points()
        self._writer: SummaryWriter | None = None
        check()

    def __call__(self, event: "Event") -> None:
        if event.kind == "step":
            return
        if self._writer is None and self.recorded is not None:
            self.catch_up(self.recorded)  # an event is recorded before it is handed on
        else:
            self.note(event.record())

    def catch_up(self, run: Path) -> None:
        """All that is recorded of a run."""
        path = run / "events.jsonl"
        try:
            for line in look(path, Tail()).lines:
                self.note(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path}: is damaged or of another version ({error!r:.80})") from error

    def note(self, fact: Fact) -> None:
        """Draw what a fact adds."""
        writer = self._opened()
        for point in self._points.of(fact):
            if math.isfinite(point.value):
                writer.add_scalar(point.tag, point.value, point.step, walltime=fact.get("time"))

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
        scores = {**_scores(self._points.by_kind), "cc": traffic(self._points.by_kind)["cc"]}
        known = {f"score/{name}": value for name, value in scores.items() if value is not None}
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
