"""`codecl run`."""

import json
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from codecl.cli.common import INTERRUPTED, AsJson, Out, PresetName, Settings, app, console_for
from codecl.errors import RunFailed

if TYPE_CHECKING:
    from rich.console import Console

    from codecl.api import Result
    from codecl.config import RunConfig
    from codecl.exchange.ranks import Ranks


@app.command()
def run(
    preset: PresetName = "quickstart",
    method: Annotated[str | None, typer.Option(help="Methods, a comma list. Default: those of the preset.")] = None,
    agents: Annotated[str | None, typer.Option(help="Numbers of agents, a comma list.")] = None,
    topology: Annotated[str | None, typer.Option(help="Topologies or edge-list files, a comma list.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, a comma list of values.")] = None,
    settings: Settings = None,
    out: Out = Path("runs"),
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    exchange: Annotated[str, typer.Option(help="simulated, cluster or auto: cluster under torchrun.")] = "auto",
    again: Annotated[bool, typer.Option("--again", help="Repeat runs that are complete already.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train, then show what was learned, what was forgotten and what was sent. Comma lists make a grid."""
    from codecl import api, assemble, grid
    from codecl.exchange.ranks import joined

    with joined(exchange, assemble.device_of(device)) as here:
        configs = list(grid.configs(preset, method, agents, topology, seeds, settings or []))
        _refuse(configs, out, here)
        console, notes = console_for(as_json), console_for(True)
        if not here.leads:  # the leading rank prints
            console.quiet = notes.quiet = quiet = True
            warnings.simplefilter("ignore")
        go = partial(api.run, out=out, device=device, exchange=here.name, again=again)
        done: list[Result] = []
        failed: RunFailed | None = None
        for number, config in enumerate(configs, 1):
            if not quiet:
                _announce(notes if as_json else console, config, number, len(configs))
            try:
                done.append(_one(config, go, out, quiet, notes if as_json else console))
            except RunFailed as error:
                folder = _folder(config, out)
                failed = type(error)(f"{error}; what was recorded is in {folder}" if folder.exists() else str(error))
                if here.size > 1:  # the ranks end together
                    raise failed from error
                print(f"codecl: {failed}", file=sys.stderr)  # the rest of the grid can still succeed
    if as_json and here.leads:
        print(json.dumps([{"folder": str(result.folder), **result.metrics} for result in done], indent=1))
    elif here.leads:
        _show(console, done)
    if failed:
        raise typer.Exit(failed.exit_code)
    if any(result.metrics["status"] == "degraded" for result in done):
        raise typer.Exit(4)


def _refuse(configs: list["RunConfig"], out: Path, here: "Ranks") -> None:
    """What can be refused is refused before anything runs."""
    from codecl import assemble, record
    from codecl import topology as topologies

    for config in configs:
        here.check(config.agents)
    if len(configs) == 1:
        return
    for config in configs:
        topologies.build(config.topology, config.agents, config.seed)
        record.recorded(record.folder_of(config, out), config)
    for config in {config.digest(): config for config in configs}.values():
        assemble.check(config)


def _one(config: "RunConfig", go: Callable[..., "Result"], out: Path, quiet: bool, console: "Console") -> "Result":
    from codecl.assemble import tasks_of
    from codecl.display import watching

    tasks = tasks_of(config)
    try:
        with watching(console, config, len(tasks), quiet) as watch:
            result = go(config, on_event=watch, tasks=tasks)
    except KeyboardInterrupt:
        folder = _folder(config, out)
        kept = (
            f"events, metrics and model of the finished tasks are in {folder}" if folder.exists() else "nothing to keep"
        )
        if not console.quiet:
            print(f"codecl: interrupted; {kept}; the same command starts this run again", file=sys.stderr)
        sys.exit(INTERRUPTED)
    if not result.trained and not quiet:
        console.print(f"  complete already, not repeated (--again repeats): {result.folder}", highlight=False)
    return result


def _folder(config: "RunConfig", out: Path) -> Path:
    from codecl.record import folder_of

    return folder_of(config, out)


def _announce(console: "Console", config: "RunConfig", number: int, count: int) -> None:
    many = f"[{number}/{count}] " if count > 1 else ""
    text = (
        f"{many}{config.preset}: {config.method.name}, {config.agents} agents on {config.topology.name},"
        f" seed {config.seed}"
    )
    console.print(text, markup=False, highlight=False)


def _show(console: "Console", done: list["Result"]) -> None:
    """Tables of what was run just now."""
    from codecl import record
    from codecl.report.table import forgetting, in_words, results

    if not done:
        return
    seeds = {result.metrics["seed"] for result in done}
    alike = {(result.metrics["agents"], result.metrics["topology"]) for result in done}
    if len(seeds) == 1 and len(alike) == 1 and len(done) <= 4:
        names = record.task_names(done[0].folder)
        console.print()
        console.print(forgetting([(result.metrics["method"], result.metrics) for result in done], names))
    console.print()
    console.print(results([(result.folder, result.metrics) for result in done]))
    words = in_words([result.metrics for result in done])
    if words:
        console.print(words, highlight=False)
    folders = ", ".join(str(result.folder) for result in done[:2]) + (", …" if len(done) > 2 else "")
    console.print(f"recorded in {folders}", style="dim", highlight=False, soft_wrap=True)
