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
    from codecl.exchange.cluster.ranks import Ranks
    from codecl.runs.config import RunConfig
    from codecl.runs.reader import Run

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
    tensorboard: Boards = False,
    tensorboard_to: BoardsTo = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train, then show what was learned, what was forgotten and what was sent. Comma lists make a grid.

    A run that was stopped goes on from its last checkpoint."""
    from codecl.exchange.cluster.ranks import joined
    from codecl.runs import build as assemble
    from codecl.runs import grid

    boards = _boards(tensorboard, tensorboard_to)
    with joined(exchange, assemble.device_of(device)) as here:
        configs = list(grid.configs(preset, method, agents, topology, seeds, settings or []))
        refuse(configs, out, here, resume, again)
        console = quietly(console_for(as_json), here)
        how = How(out, device, here.name, quiet, quietly(console_for(True), here) if as_json else console, again)
        how = how._replace(board=boards if here.is_main else None)
        done, failed = every(configs, how, here)
    if here.is_main:
        finish(console, done, as_json)
    if failed:
        raise typer.Exit(failed.exit_code)


def quietly(console: "Console", here: "Ranks") -> "Console":
    """A console that is silent where another rank prints."""
    if not here.is_main:
        console.quiet = True
        warnings.simplefilter("ignore")
    return console


def finish(console: "Console", done: list["Result"], as_json: bool) -> None:
    """What came out of runs, and the exit code that tells of degraded ones."""
    from codecl.report.gather import scores_of

    runs = [scores_of(result.folder) for result in done]
    if as_json:
        print(json.dumps([{"folder": str(run.folder), **run.metrics.dump()} for run in runs], indent=1))
    elif runs:
        _show(console, runs)
    if any(run.metrics.status == "degraded" for run in runs):
        raise typer.Exit(4)


def refuse(configs: list["RunConfig"], out: Path, here: "Ranks", resume: bool = False, again: bool = False) -> None:
    """What can be refused is refused before anything runs."""
    from codecl.exchange import topology as topologies
    from codecl.runs import build as assemble
    from codecl.runs.folder import folder_of
    from codecl.runs.reader import recorded

    for config in configs:
        here.check(config.agents)
        if resume and here.is_main:
            _check_begun(folder_of(config, out), again)
    if len(configs) == 1:
        return
    for config in configs:
        topologies.build(config.topology, config.agents, config.seed)
        recorded(folder_of(config, out), config)
    for config in {config.digest(): config for config in configs}.values():
        assemble.check(config)


def _check_begun(folder: Path, again: bool) -> None:
    if again:
        raise ConfigError("--resume and --again: one goes on, the other starts anew; choose one")
    if not _begun(folder):
        raise ConfigError(f"--resume: {folder} holds no checkpoint to go on from; leave --resume out to start this run")


def _begun(folder: Path) -> bool:
    return any((folder / "checkpoint").glob("[0-9]*"))


class How(NamedTuple):
    """What does not change a run's numbers."""

    out: Path
    device: str
    exchange: str
    quiet: bool
    console: "Console"
    again: bool = False
    after: Path | None = None  # a finished run to go on from
    board: Callable[[Path], Path] | None = None  # where the TensorBoard of a run folder goes


def _boards(wanted: bool, to: Path | None) -> Callable[[Path], Path] | None:
    if not wanted and to is None:
        return None
    from functools import partial

    from codecl.report import tensorboard as board

    board.check()
    return partial(board.folder_of, boards=to)


def every(configs: list["RunConfig"], how: How, here: "Ranks") -> tuple[list["Result"], RunFailed | None]:
    """Run them one after another, and give the last failure."""
    done: list[Result] = []
    failed: RunFailed | None = None
    for number, config in enumerate(configs, 1):
        if not how.quiet:
            _announce(how.console, config, number, len(configs))
        try:
            done.append(one(config, how))
        except RunFailed as error:
            folder = _folder(config, how.out)
            failed = type(error)(f"{error}; what was recorded is in {folder}" if folder.exists() else str(error))
            if here.size > 1:  # the ranks end together
                raise failed from error
            print(f"codecl: {failed}", file=sys.stderr)  # the rest of the grid can still succeed
    return done, failed


def one(config: "RunConfig", how: How) -> "Result":
    """Run, and show how it goes."""
    from codecl import api
    from codecl.cli.live import boarding, training
    from codecl.runs.build import tasks_of

    tasks, folder = tasks_of(config), _folder(config, how.out)
    board = how.board(folder) if how.board else None
    options: dict[str, Any] = {"device": how.device, "exchange": how.exchange, "again": how.again, "after": how.after}
    try:
        with training(how.console, config, folder, how.quiet) as shown, boarding(board, folder, shown) as both:
            result = api.run(config, out=how.out, on_event=both, tasks=tasks, **options)
    except KeyboardInterrupt:
        kept = (
            f"events, metrics and model of the finished tasks are in {folder}" if folder.exists() else "nothing to keep"
        )
        then = "goes on from the last checkpoint" if _begun(folder) else "starts it again"
        if not how.console.quiet:
            print(f"codecl: interrupted; {kept}; the same command {then}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    if not result.trained and board is not None:
        from codecl.report.tensorboard import write

        write(result.folder, board)
    if not result.trained and not how.quiet:
        how.console.print(f"  complete already, not repeated (--again repeats): {result.folder}", highlight=False)
    return result


def _folder(config: "RunConfig", out: Path) -> Path:
    from codecl.runs.folder import folder_of

    return folder_of(config, out)


def _announce(console: "Console", config: "RunConfig", number: int, count: int) -> None:
    many = f"[{number}/{count}] " if count > 1 else ""
    text = (
        f"{many}{config.preset}: {config.method.name}, {config.agents} agents on {config.topology.name},"
        f" seed {config.seed}"
    )
    console.print(text, markup=False, highlight=False)


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
