"""Run folders -> runs with all that was recorded of them, ended or not; what cannot be used is said."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from codecl.errors import DataError
from codecl.methods import METHODS
from codecl.report.fleets import together
from codecl.report.rows import Metrics
from codecl.runs import record
from codecl.runs.config import RunConfig
from codecl.runs.metrics import Fact, metrics

MARKS = ("metrics.json", "events.jsonl", "config.yaml")
LABELS = ("benchmark", "method", "agents", "topology", "seed", "tasks")
OF_METRICS = (*LABELS, "status", "acc", "bwt", "accuracy_matrix", "traffic", "free_by_task", "timing")
OF_TRAFFIC = ("cc", "cc_by_task", "train_bytes", "boundary_bytes", "full_bytes")
OF_FACTS: Mapping[str, Sequence[str]] = {
    "run": (*LABELS, "edges"),
    "task": ("task", "name", "coordinates", "full", "reference_extra", "kept", "itemsize", "free"),
    "epoch": ("task", "epoch", "step", "loss", "messages", "bytes", "seconds"),
    "agree": ("task", "messages", "bytes"),
    "grow": ("task", "bytes"),
    "flood": ("task", "bytes"),
    "eval": ("task", "accuracy"),
}


class Run(NamedTuple):
    """A run, or a fleet of peers as one. Its metrics have what it is called and how it ended."""

    folder: Path
    metrics: Metrics
    events: Sequence[Fact]  # of a fleet: those of the agent that got furthest
    config: RunConfig | None  # None: there is none that can be read
    links: Sequence[tuple[int, int, int]] = ()  # of a fleet: sender, hearer, bytes

    @property
    def alone(self) -> bool:
        """Whether each task is scored right after it was learned, and never again."""
        return _alone(self.metrics["method"])

    @property
    def opened(self) -> list[int]:
        """Its tasks, as `cc_by_task` and `free_by_task` have them; where no events were kept, from the first on."""
        known = dict.fromkeys(fact["task"] for fact in self.facts("task"))
        return list(known) or list(range(len(self.metrics["free_by_task"])))

    def facts(self, kind: str) -> list[Fact]:
        return [fact for fact in self.events if fact["kind"] == kind]


class Refused(NamedTuple):
    """A folder that cannot be used, and why, in a plain sentence."""

    folder: Path
    why: str


class Gathered(NamedTuple):
    runs: Sequence[Run]
    refused: Sequence[Refused]


def gather(paths: Sequence[Path]) -> Gathered:
    """The runs at or under these paths; DataError where there is not one."""
    folders: dict[Path, None] = {}
    refused: list[Refused] = []
    runs: list[Run] = []
    for path in paths:
        try:
            folders |= dict.fromkeys(record.find_runs([path], MARKS))
        except DataError as error:
            refused.append(_refused(path, error))
    for folder in folders:
        try:
            runs.append(read(folder))
        except DataError as error:
            refused.append(_refused(folder, error))
    if not runs:
        raise DataError(_nothing(paths, refused))
    return Gathered(sorted(_fleets_as_one(runs), key=_place), refused)


def _place(run: Run) -> tuple[Any, ...]:
    """codec first, its opponents after it, methods of a user's own last; few agents before many."""
    of, order = run.metrics, list(METHODS)
    method = order.index(of["method"]) if of["method"] in order else len(order)
    return str(of["benchmark"]), method, str(of["method"]), str(of["topology"]), of["agents"]


def _refused(folder: Path, error: DataError) -> Refused:
    return Refused(folder, str(error).removeprefix(f"{folder}: "))


def _nothing(paths: Sequence[Path], refused: Sequence[Refused]) -> str:
    if not refused:
        return f"{', '.join(map(str, paths)) or 'paths'}: no runs in it"
    first, more = refused[0], len(refused) - 1
    return f"{first.folder}: {first.why}" + (f"; nor can {more} more be used" if more else "")


def read(folder: Path) -> Run:
    """One run folder; DataError says why it cannot be used."""
    try:
        config = record.read_config(folder)
    except DataError:  # what was recorded can be shown without it
        config = None
    written = _written(folder)
    if not (folder / "events.jsonl").is_file():
        if written is None:
            begun = "nothing is recorded in it yet" if config else "config.yaml in it is not a run's"
            raise DataError(f"{folder}: {begun} (no events.jsonl)")
        return Run(folder, written, (), config)  # its scores were kept, its curves were not
    facts = _facts(folder)
    if written is None or written["status"] == "partial":  # a run that goes on has more events than its last metrics
        written = _so_far(folder, facts)
    links = [(int(written["agent"]), int(peer), int(count["sent"])) for peer, count in written.get("links", {}).items()]
    return Run(folder, written, facts, config, links)


def _written(folder: Path) -> dict[str, Any] | None:
    path = folder / "metrics.json"
    if not path.exists():
        return None
    try:
        out = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise DataError(f"{folder}: metrics.json is broken, it cannot be read as JSON") from None
    if not isinstance(out, dict) or "schema" not in out:
        raise DataError(f"{folder}: metrics.json is not a run's (it names no schema)")
    if out["schema"] != 2:
        raise DataError(f"{folder}: metrics.json is of another version (schema {out['schema']!r}, known is 2)")
    traffic = out.get("traffic")
    missing = [key for key in OF_METRICS if key not in out]
    missing += [key for key in OF_TRAFFIC if not isinstance(traffic, dict) or key not in traffic]
    if missing:
        raise DataError(f"{folder}: metrics.json is broken, {missing[0]} is not in it")
    return out


def _facts(folder: Path) -> list[Fact]:
    """All events; of a last line that is half written, nothing."""
    try:
        lines = (folder / "events.jsonl").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise DataError(f"{folder}: events.jsonl cannot be read ({error.strerror or error})") from error
    facts: list[Fact] = []
    for number, line in enumerate(lines, 1):
        try:
            fact = json.loads(line)
        except ValueError:
            if number == len(lines):
                break
            raise DataError(f"{folder}: events.jsonl is broken at line {number}") from None
        if not isinstance(fact, dict) or "kind" not in fact:
            raise DataError(f"{folder}: events.jsonl is not a run's (line {number} has no kind)")
        lacking = [key for key in OF_FACTS.get(fact["kind"], ()) if fact.get(key) is None]
        if lacking:
            raise DataError(f"{folder}: events.jsonl is broken at line {number}, {lacking[0]} is not in it")
        facts.append(fact)
    if not facts or facts[0]["kind"] not in ("run", "member"):  # a peer that came back says so first
        raise DataError(f"{folder}: nothing is recorded in it yet")
    return facts


def _so_far(folder: Path, facts: Sequence[Fact]) -> dict[str, Any]:
    """The metrics of a run that goes on or was stopped."""
    run = next((fact for fact in facts if fact["kind"] == "run"), None)
    if run is None:
        raise DataError(f"{folder}: events.jsonl does not say which run it is of (no event of kind run)")
    peer = ("agent", "exchange") if "agent" in run else ()
    labels = {key: run[key] for key in (*LABELS, *peer)}
    return metrics(facts, labels, "partial", facts[-1]["time"] - facts[0]["time"], _alone(run["method"]))


def _alone(method: str) -> bool:
    return method in METHODS and METHODS[method].each_task_alone


def _fleets_as_one(runs: Sequence[Run]) -> list[Run]:
    """Runs as they are; agents of a fleet as one. A seed's folder may hold a fleet and, simulated, a run as well."""
    groups: dict[tuple[Path, bool], list[Run]] = {}
    for run in runs:
        peer = "agent" in run.metrics and bool(re.fullmatch(r"agent-\d+", run.folder.name))
        groups.setdefault((run.folder.parent if peer else run.folder, peer), []).append(run)
    out = []
    for folder, found in together([(run.folder, dict(run.metrics)) for run in runs]):
        agents = groups[folder, "here" in found]
        furthest = max(agents, key=lambda run: len(run.metrics["accuracy_matrix"]))
        links = [link for run in agents for link in run.links]
        out.append(furthest._replace(folder=folder, metrics=found, links=links))
    return out
