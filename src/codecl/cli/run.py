"""`codecl run`."""

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from codecl.cli.common import (
    INTERRUPTED,
    AsJson,
    Graphs,
    Methods,
    Numbers,
    Out,
    PresetName,
    Seeds,
    Settings,
    app,
    console_for,
)
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
OnWhich = Annotated[str, typer.Option("--exchange", help="simulated, cluster or auto: cluster under torchrun.")]


@app.command()
def run(
    preset: PresetName = "quickstart",
    method: Methods = None,
    agents: Numbers = None,
    topology: Graphs = None,
    seeds: Seeds = None,
    settings: Settings = None,
    out: Out = Path("runs"),
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    exchange: OnWhich = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Only go on with runs that were begun; start none.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Start anew, also what is complete or was begun.")] = False,
    mu: Annotated[bool, typer.Option("--mu", help="Measure how much of the gradient the free space keeps.")] = False,
    tensorboard: Boards = False,
    tensorboard_to: BoardsTo = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train, then show what was learned, what was forgotten and what was sent. Comma lists make a grid.

    A run that was stopped goes on from its last checkpoint."""
    from codecl.exchange.cluster.ranks import joined
    from codecl.runs.build import device_of
    from codecl.runs.config import grid

    board = _board_folders(tensorboard, tensorboard_to)
    with joined(exchange, device_of(device)) as ranks:
        wanted = list(grid(preset, method, agents, topology, seeds, settings or []))
        console = main_console(as_json, ranks)
        progress = main_console(True, ranks) if as_json else console
        options = RunOptions(out, device, ranks, quiet, progress, resume, again, mu)
        outcome = run_all(wanted, options._replace(board=board if ranks.is_main else None))
    if ranks.is_main:
        show_results(console, outcome.results, as_json)
    if outcome.failure:
        raise typer.Exit(outcome.failure.exit_code)


def main_console(to_stderr: bool, ranks: "Ranks") -> "Console":
    """A console that is silent where another rank prints."""
    console = console_for(to_stderr)
    if not ranks.is_main:
        console.quiet = True
        warnings.simplefilter("ignore")
    return console


def _board_folders(wanted: bool, to: Path | None) -> Callable[[Path], Path] | None:
    if not wanted and to is None:
        return None
    from functools import partial

    from codecl.report import tensorboard

    tensorboard.check()
    return partial(tensorboard.folder_of, boards=to)


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
    after: Path | None = None  # a finished run to go on from
    board: Callable[[Path], Path] | None = None  # where the TensorBoard of a run folder goes


class Outcome(NamedTuple):
    """How a grid ended."""

    results: list["Result"]
    failure: RunFailed | None  # the last


def run_all(configs: list["RunConfig"], options: RunOptions) -> Outcome:
    """Check all, then run one after another; each stream is read once, and only if a run needs it."""
    from functools import cache, partial

    from codecl.runs.build import load_tasks, read_stream

    load = partial(load_tasks, read=cache(read_stream))
    check_all(configs, options, load)
    results: list[Result] = []
    failure: RunFailed | None = None
    for number, config in enumerate(configs, 1):
        if not options.quiet:
            _announce(options.console, config, number, len(configs))
        try:
            results.append(run_one(config, options, load))
        except RunFailed as error:
            folder = _folder(config, options.out)
            failure = type(error)(f"{error}; what was recorded is in {folder}" if folder.exists() else str(error))
            if options.ranks.size > 1:  # the ranks end together
                raise failure from error
            print(f"codecl: {failure}", file=sys.stderr)  # the rest of the grid can still succeed
    return Outcome(results, failure)


def check_all(configs: list["RunConfig"], options: RunOptions, load: "LoadTasks") -> None:
    """What can be refused is refused before anything runs; a run alone refuses by itself."""
    from codecl import api
    from codecl.exchange import topology
    from codecl.runs import build

    for config in configs:
        options.ranks.check(config.agents)
        if options.resume and options.ranks.is_main:
            folder, way = _folder(config, options.out), "leave --resume out to start this run"
            if options.again:
                raise ConfigError("--resume and --again: one goes on, the other starts anew; choose one")
            if not _begun(folder):
                raise ConfigError(f"--resume: {folder} holds no checkpoint to go on from; {way}")
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

    board = options.board(_folder(config, options.out)) if options.board else None
    done = None if options.again else api.recorded(config, options.out, options.ranks)
    if done is None:
        return _train(config, options, load(config), board)
    if board is not None:
        from codecl.report.tensorboard import write

        write(done.folder, board)
    if not options.quiet:
        options.console.print(f"  complete already, not repeated (--again repeats): {done.folder}", highlight=False)
    return done


def _train(config: "RunConfig", options: RunOptions, tasks: list["Task"], board: Path | None) -> "Result":
    from codecl import api
    from codecl.cli.live import boarding, training

    folder, console = _folder(config, options.out), options.console
    try:
        with training(console, config, folder, options.quiet) as shown, boarding(board, folder, shown) as on_event:
            given: dict[str, Any] = {
                "out": options.out,
                "again": options.again,
                "after": options.after,
                "mu": options.mu,
            }
            given |= {"device": options.device, "exchange": options.ranks.name}
            return api.run(config, on_event=on_event, tasks=tasks, **given)
    except KeyboardInterrupt:
        some = f"events, metrics and model of the finished tasks are in {folder}"
        kept = some if folder.exists() else "nothing to keep"
        then = "goes on from the last checkpoint" if _begun(folder) else "starts it again"
        if not console.quiet:
            print(f"codecl: interrupted; {kept}; the same command {then}", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _folder(config: "RunConfig", out: Path) -> Path:
    from codecl.runs.writer import folder_of

    return folder_of(config, out)


def _announce(console: "Console", config: "RunConfig", number: int, count: int) -> None:
    many = f"[{number}/{count}] " if count > 1 else ""
    where = f"{config.agents} agents on {config.topology.name}, seed {config.seed}"
    console.print(f"{many}{config.preset}: {config.method.name}, {where}", markup=False, highlight=False)


def show_results(console: "Console", results: list["Result"], as_json: bool) -> None:
    """What came out of runs, and the exit code that tells of degraded ones."""
    from codecl.report.gather import scores_of

    runs = [scores_of(result.folder) for result in results]
    if as_json:
        print(json.dumps([{"folder": str(run.folder), **run.metrics.dump()} for run in runs], indent=1))
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
    console.print(formats.table(results(runs)))
    words = in_words(metrics)
    if words:
        console.print(words, highlight=False)
    folders = ", ".join(str(run.folder) for run in runs[:2]) + (", …" if len(runs) > 2 else "")
    console.print(f"recorded in {folders}", style="dim", highlight=False, soft_wrap=True)
