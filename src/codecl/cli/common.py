"""What the commands share: the app, options, output."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

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
Format = Annotated[str | None, typer.Option("--format", help="text, markdown, latex, csv or json.")]
Methods = Annotated[str | None, typer.Option("--method", help="Methods, a comma list. Default: those of the preset.")]
Numbers = Annotated[str | None, typer.Option("--agents", help="Numbers of agents, a comma list.")]
Graphs = Annotated[str | None, typer.Option("--topology", help="Topologies or edge-list files, a comma list.")]
Seeds = Annotated[str | None, typer.Option("--seeds", help="Seeds, a comma list of values.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Exchange = Annotated[str, typer.Option("--exchange", help="simulated, cluster or auto: cluster under torchrun.")]
Again = Annotated[bool, typer.Option("--again", help="Start anew, also what is complete or was begun.")]
Jobs = Annotated[int, typer.Option("--jobs", min=1, help="Runs at a time, each in a process of its own.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]
Runs = Annotated[list[Path], typer.Argument(metavar="RUNS…", help="Run folders, or folders that hold some.")]
AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Run the code (file.py:name) that the folder's config names.")
]
PresetName = Annotated[str, typer.Argument(metavar="PRESET", help="See `codecl presets`.")]


def group(name: str, about: str) -> typer.Typer:
    """Commands under one name, which alone shows what there is."""
    commands = typer.Typer(help=about, rich_markup_mode=None)
    app.add_typer(commands, name=name)

    @commands.callback(invoke_without_command=True)
    def start(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    return commands


def console_for(to_stderr: bool, is_main: bool = True) -> "Console":
    """Silent where another rank prints."""
    from codecl.cli.terminal import PlainConsole
    from codecl.report.formats import MAX_WIDTH

    console = PlainConsole(stderr=to_stderr, quiet=not is_main)
    if not is_main:
        warnings.simplefilter("ignore")
    if not console.is_terminal:  # a file or a pipe has no width that a table would have to fit in
        console.width = MAX_WIDTH
    return console
