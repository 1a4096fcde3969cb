"""The command line. Heavy imports wait until a command needs them, so that --help is immediate."""

import json
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codecl.errors import CodeclError, RunFailed

if TYPE_CHECKING:
    from rich.console import Console

    from codecl.api import Result
    from codecl.config import RunConfig

app = typer.Typer(
    name="codecl",
    help="Communication-efficient decentralized continual learning.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
INTERRUPTED = 130

Settings = Annotated[list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Any field of the config.")]
Out = Annotated[Path, typer.Option("--out", help="Where run folders go.")]
AsJson = Annotated[bool, typer.Option("--json", help="Metrics as JSON on standard output, nothing else there.")]
PresetName = Annotated[str, typer.Argument(metavar="PRESET", help="See `codecl presets`.")]


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
    again: Annotated[bool, typer.Option("--again", help="Repeat runs that are complete already.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train, then show what was learned, what was forgotten and what was sent. Comma lists make a grid."""
    from codecl import assemble, grid, record
    from codecl import topology as topologies

    configs = list(grid.configs(preset, method, agents, topology, seeds, settings or []))
    assemble.device_of(device)
    if len(configs) > 1:  # what can be refused is refused before anything runs
        for config in configs:
            topologies.build(config.topology, config.agents, config.seed)
            record.recorded(record.folder_of(config, out), config)
        for config in {config.digest(): config for config in configs}.values():
            assemble.check(config)
    console, notes = _console(as_json), _console(True)
    done: list[Result] = []
    failed: RunFailed | None = None
    for number, config in enumerate(configs, 1):
        if not quiet:
            _announce(notes if as_json else console, config, number, len(configs))
        try:
            done.append(_one(config, out, device, again, quiet, notes if as_json else console))
        except RunFailed as error:  # the rest of the grid can still succeed
            print(f"codecl: {error}; what was recorded is in {_folder(config, out)}", file=sys.stderr)
            failed = error
    if as_json:
        print(json.dumps([{"folder": str(result.folder), **result.metrics} for result in done], indent=1))
    else:
        _show(console, done)
    if failed:
        raise typer.Exit(failed.exit_code)
    if any(result.metrics["status"] == "degraded" for result in done):
        raise typer.Exit(4)


@app.command()
def presets() -> None:
    """The presets and what they are."""
    from codecl.config import presets

    _list(presets())


@app.command()
def show(
    preset: PresetName = "quickstart",
    method: Annotated[str | None, typer.Option(help="A method.")] = None,
    settings: Settings = None,
) -> None:
    """The resolved config of a preset, every field."""
    from codecl import grid

    (config, *_) = grid.configs(preset, method, None, None, None, settings or [])
    typer.echo(config.dump(), nl=False)


@app.command()
def methods() -> None:
    """The methods and what they do."""
    from codecl.methods import METHODS

    _list({name: _first_line(kind) for name, kind in METHODS.items()})


@app.command()
def topologies() -> None:
    """The topologies and who hears whom in them."""
    from codecl.topology import TOPOLOGIES

    _list({name: _first_line(builder) for name, builder in TOPOLOGIES.items()})


@app.command()
def models() -> None:
    """The models."""
    from codecl.models import MODELS

    _list({name: _first_line(sys.modules[builder.__module__]) for name, builder in MODELS.items()})


@app.command()
def table(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS…", help="Run folders, or folders that hold some.")],
    as_json: AsJson = False,
) -> None:
    """Results of recorded runs: mean ± std over seeds, a row a configuration."""
    from codecl import record
    from codecl.report.table import results

    found = [(folder, record.read_metrics(folder)) for folder in record.find_runs(runs)]
    if as_json:
        print(json.dumps([{"folder": str(folder), **run} for folder, run in found], indent=1))
    else:
        _console(False).print(results(found))


@app.command()
def bench(
    models: Annotated[
        str | None, typer.Option(help="convnet, mlp, alexnet, resnet18, resnet18-84; a comma list.")
    ] = None,
    agents: Annotated[str | None, typer.Option(help="Numbers of agents, a comma list.")] = None,
    method: Annotated[str, typer.Option(help="Methods, a comma list; plain-loop: dpsgd written plainly.")] = (
        "codec,codec-full,dpsgd,plain-loop"
    ),
    precision: Annotated[str, typer.Option(help="highest, tf32 or bf16.")] = "tf32",
    running: Annotated[str, typer.Option(help="auto, stacked, streams or loop.")] = "auto",
    rounds: Annotated[int, typer.Option(min=1, help="Turns that each case is timed.")] = 9,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    compare: Annotated[Path | None, typer.Option(help="An earlier result, to set beside this one.")] = None,
    save: Annotated[Path | None, typer.Option(help="A folder for a dated file with the result.")] = None,
    as_json: AsJson = False,
) -> None:
    """What a step costs: time and memory by model, agents and method, and ratios, measured in one run."""
    from codecl import assemble, grid
    from codecl import bench as benches
    from codecl.report.speed import speed

    before = benches.read(compare) if compare else None
    if save:
        benches.room(save)
    place = assemble.device_of(device)
    usual_models, usual_agents = benches.DEFAULTS[place.type]
    counts = [grid.number("--agents", word) for word in grid.words(agents)] or usual_agents
    named = grid.words(models) or usual_models
    fields = {"precision": precision, "running": running}
    found = benches.measure(named, counts, grid.words(method), fields, rounds, place)
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        _console(False).print(speed(found, before))
    if save:
        print(f"saved in {benches.save(found, save)}", file=sys.stderr)


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        from codecl import __version__

        typer.echo(f"codecl {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _one(config: "RunConfig", out: Path, device: str, again: bool, quiet: bool, console: "Console") -> "Result":
    from codecl import api
    from codecl.assemble import tasks_of
    from codecl.display import watching

    tasks = tasks_of(config)
    try:
        with watching(console, config, len(tasks), quiet) as watch:
            result = api.run(config, out=out, device=device, again=again, on_event=watch, tasks=tasks)
    except KeyboardInterrupt:
        folder = _folder(config, out)
        kept = (
            f"events, metrics and model of the finished tasks are in {folder}" if folder.exists() else "nothing to keep"
        )
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


def _console(to_stderr: bool) -> "Console":
    from rich.console import Console

    console = Console(stderr=to_stderr)
    if not console.is_terminal:  # a file or a pipe has no width that a table would have to fit in
        console.width = max(console.width, 160)
    return console


def _list(entries: dict[str, str]) -> None:
    width = max(map(len, entries))
    for name, about in entries.items():
        typer.echo(f"{name:<{width}}  {about}")


def _first_line(thing: Any) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]


def main() -> None:
    """The entry point: a user's mistake is one line and an exit code, never a traceback."""
    warnings.formatwarning = lambda message, *_, **__: f"codecl: {message}\n"
    try:
        code = app(standalone_mode=False)
    except CodeclError as error:
        print(f"codecl: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        print("codecl: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except Exception as error:
        said = getattr(error, "format_message", None)  # a usage error of typer's
        if said is None:
            raise
        print(f"codecl: {said()} (codecl --help shows what there is)", file=sys.stderr)
        sys.exit(2)
    if code == INTERRUPTED:  # typer turns Ctrl-C into an exit code
        print("codecl: interrupted", file=sys.stderr)
    sys.exit(code or 0)


if __name__ == "__main__":
    main()
