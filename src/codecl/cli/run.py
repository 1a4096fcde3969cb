"""`codecl run`."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from codecl.cli import common
from codecl.errors import ConfigError, RunFailed

if TYPE_CHECKING:
    from rich.console import Console

    from codecl.api import Result
    from codecl.data.task import Task
    from codecl.exchange.cluster.ranks import Ranks
    from codecl.runs.config import RunConfig
    from codecl.runs.reader import Run

    LoadTasks = Callable[[RunConfig], list[Task]]

Boards = Annotated[bool, typer.Option("--tensorboard", help="Also write a TensorBoard, into each run's folder.")]
BoardsTo = Annotated[Path | None, typer.Option("--tensorboard-to", metavar="DIR", help="The same, under DIR.")]


@common.app.command()
def run(
    preset: common.PresetName = "quickstart",
    method: common.Methods = None,
    agents: common.Numbers = None,
    topology: common.Graphs = None,
    seeds: common.Seeds = None,
    settings: common.Settings = None,
    out: common.Out = Path("runs"),
    device: common.Device = "auto",
    exchange: common.Exchange = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Only go on with runs that were begun; start none.")] = False,
    again: common.Again = False,
    jobs: common.Jobs = 1,
    mu: Annotated[bool, typer.Option("--mu", help="Measure how much of the gradient the free space keeps.")] = False,
    tensorboard: Boards = False,
    tensorboard_to: BoardsTo = None,
    quiet: common.Quiet = False,
    as_json: common.AsJson = False,
) -> None:
    """Train, then show what was learned, what was forgotten and what was sent. Comma lists make a grid.

    A run that was stopped goes on from its last checkpoint."""
    from codecl.exchange.cluster.ranks import joined
    from codecl.runs.grid import grid
    from codecl.runs.machine import device_of

    boards = tensorboard or tensorboard_to is not None
    if boards:
        from codecl.report.tensorboard import check

        check()
    with joined(exchange, device_of(device)) as ranks:
        wanted = list(grid(preset, method, agents, topology, seeds, settings or []))
        console = common.console_for(as_json, ranks.is_main)
        options = RunOptions(out, device, ranks, quiet, console, resume, again, mu, jobs)
        outcome = run_all(wanted, options._replace(boards=boards and ranks.is_main, boards_to=tensorboard_to))
    if ranks.is_main:
        show_results(console, outcome.results, as_json)
    if outcome.failure:
        raise typer.Exit(outcome.failure.exit_code)


class After(NamedTuple):
    """A finished run to go on from."""

    folder: Path
    tests: "Callable[[], Mapping[int, Task]]"  # of its tasks, those whose data is here


class RunOptions(NamedTuple):
    """What does not change a run's numbers."""

    out: Path
    device: str
    ranks: "Ranks"
    quiet: bool
    console: "Console"
    resume: bool = False  # only go on with what was begun
    again: bool = False
    mu: bool = False  # measured beside training
    jobs: int = 1  # runs at a time
    after: After | None = None
    boards: bool = False  # on TensorBoard too,
    boards_to: Path | None = None  # under this folder; None: in the run's own


class Outcome(NamedTuple):
    results: list["Result"]
    failure: RunFailed | None  # the last


def run_all(configs: list["RunConfig"], options: RunOptions) -> Outcome:
    """Check all, then run one after another, or side by side; each stream is read once, and only if a run needs it."""
    from functools import cache, partial

    from codecl.runs.build import load_tasks, read_stream

    if options.jobs > 1 and options.ranks.size > 1:
        raise ConfigError(f"--jobs: {options.jobs} runs at a time are for one process, not for ranks; leave it out")
    load = partial(load_tasks, read=cache(read_stream))
    check_all(configs, options, load)
    if min(options.jobs, len(configs)) > 1:
        from codecl.cli.jobs import side_by_side

        return side_by_side(configs, options)
    results: list[Result] = []
    failure: RunFailed | None = None
    for number, config in enumerate(configs, 1):
        announce(config, number, len(configs), options)
        try:
            results.append(run_one(config, options, load))
        except RunFailed as error:
            failure = with_folder(error, folder_of(config, options.out))
            if options.ranks.size > 1:  # the ranks end together
                raise failure from error
            print(f"codecl: {failure}", file=sys.stderr)  # the rest of the grid can still succeed
    return Outcome(results, failure)


def announce(config: "RunConfig", number: int, among: int, options: RunOptions) -> None:
    """Say which run of so many comes now."""
    if not options.quiet:
        many = f"[{number}/{among}] " if among > 1 else ""
        about = f"{config.method.name}, {config.agents} agents on {config.topology.name}, seed {config.seed}"
        options.console.print(f"{many}{config.preset}: {about}", markup=False, highlight=False)


def with_folder(error: RunFailed, folder: Path) -> RunFailed:
    """The same, and where to look."""
    return type(error)(f"{error}; what was recorded is in {folder}" if folder.exists() else str(error))


def check_all(configs: list["RunConfig"], options: RunOptions, load: "LoadTasks") -> None:
    """What can be refused is refused before anything runs; a run alone refuses by itself."""
    from codecl import api
    from codecl.exchange import topology
    from codecl.runs import build

    for config in configs:
        options.ranks.check(config.agents)
        if options.resume and options.ranks.is_main:
            folder = folder_of(config, options.out)
            if options.again:
                raise ConfigError("--resume and --again: one goes on, the other starts anew; choose one")
            if not _begun(folder):
                why = "holds no checkpoint to go on from; leave --resume out to start this run"
                raise ConfigError(f"--resume: {folder} {why}")
    if len(configs) == 1:
        return
    for config in configs:
        topology.build(config.topology, config.agents, config.seed)
    wanted = [config for config in configs if api.recorded(config, options.out, options.ranks) is None or options.again]
    for config in {config.digest(): config for config in wanted}.values():
        build.check(config, load(config))


def _begun(folder: Path) -> bool:
    return any((folder / "checkpoint").glob("[0-9]*"))


def run_one(config: "RunConfig", options: RunOptions, load: "LoadTasks") -> "Result":
    """Run, and show how it goes; a run that is complete already is shown without a look at its data."""
    from codecl import api

    board = None
    if options.boards:
        from codecl.report import tensorboard

        board = tensorboard.folder_of(folder_of(config, options.out), options.boards_to)
    done = None
    if not options.again:
        done = api.recorded(config, options.out, options.ranks, from_start=options.after is None)
    if done is None:
        return _train(config, options, load(config), board)
    if board is not None:
        tensorboard.write(done.folder, board)
    if not options.quiet:
        options.console.print(f"  complete already, not repeated (--again repeats): {done.folder}", highlight=False)
    return done


def _train(config: "RunConfig", options: RunOptions, tasks: list["Task"], board: Path | None) -> "Result":
    from codecl import api
    from codecl.cli.live import training

    folder, console = folder_of(config, options.out), options.console
    try:
        with training(console, config, folder, options.quiet, board) as on_event:
            given: dict[str, Any] = {"again": options.again, "mu": options.mu}
            if options.after is not None:
                given |= {"after": options.after.folder, "tests": options.after.tests()}
            where: dict[str, Any] = {"out": options.out, "device": options.device, "exchange": options.ranks.name}
            return api.run(config, on_event=on_event, tasks=tasks, **where, **given)
    except KeyboardInterrupt:
        some = f"events, metrics and model of the finished tasks are in {folder}"
        kept = some if folder.exists() else "nothing to keep"
        then = "goes on from the last checkpoint" if _begun(folder) else "starts it again"
        if not console.quiet:
            print(f"codecl: interrupted; {kept}; the same command {then}", file=sys.stderr)
        sys.exit(common.INTERRUPTED)


def folder_of(config: "RunConfig", out: Path) -> Path:
    from codecl.runs import writer

    return writer.folder_of(config, out)


def show_results(console: "Console", results: list["Result"], as_json: bool) -> None:
    """What came out of runs, and the exit code that tells of degraded ones."""
    from codecl.report.configurations import scores_of

    runs = [scores_of(result.folder) for result in results]
    if as_json:
        from codecl.report.tables import plain

        print(json.dumps([plain(run.folder, run.metrics) for run in runs], indent=1))
    elif runs:
        _show(console, runs)
    if any(run.metrics.status == "degraded" for run in runs):
        raise typer.Exit(4)


def _show(console: "Console", runs: list["Run"]) -> None:
    """Tables of what was run just now."""
    from codecl.report import formats
    from codecl.report.tables import forgetting, in_words, results
    from codecl.runs.reader import read_tasks

    metrics = [run.metrics for run in runs]
    if len({(run.seed, run.agents, run.topology) for run in metrics}) == 1 and len(runs) <= 4:
        console.print()
        console.print(forgetting(metrics, [task.name for task in read_tasks(runs[0].folder)]))
    console.print()
    formats.show(results(runs), console)
    words = in_words(metrics)
    if words:
        console.print(words, highlight=False)
    folders = ", ".join(str(run.folder) for run in runs[:2]) + (", …" if len(runs) > 2 else "")
    console.print(f"recorded in {folders}", style="dim", highlight=False, soft_wrap=True)
