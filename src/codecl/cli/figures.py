"""`codecl figures`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from codecl.cli.common import Graphs, Numbers, PresetName, Seeds, Settings, app, console_for
from codecl.cli.run import RunOptions, run_all

if TYPE_CHECKING:
    from codecl.runs.config import RunConfig

COSINE = "train.schedule=cosine"  # only the paper's consensus figure has it


@app.command()
def figures(
    preset: PresetName = "quickstart",
    agents: Numbers = None,
    topology: Graphs = None,
    seeds: Seeds = None,
    settings: Settings = None,
    out: Annotated[Path, typer.Option("--out", help="Where figures go.")] = Path("figures"),
    runs: Annotated[Path, typer.Option("--runs", help="Where run folders are or go.")] = Path("runs"),
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    again: Annotated[bool, typer.Option("--again", help="Start anew, also what is complete or was begun.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """The paper's figures as SVG, PNG and CSV: consensus error, compression of each task, loss with and without it.

    Runs what is missing: codec, and for the consensus error (cosine schedule) and the loss also dpsgd and codec-full,
    on the first of the topologies and numbers of agents. Compression is shown for all of them."""
    from codecl.exchange.cluster.ranks import joined
    from codecl.runs.build import device_of

    wanted = _wanted(preset, agents, topology, seeds, settings or [])
    configs = list({(config.digest(), config.seed): config for group in wanted for config in group}.values())
    with joined("simulated", device_of(device)) as ranks:
        options = RunOptions(runs, device, ranks, quiet, console_for(False), again=again)
        outcome = run_all(configs, options)
    if outcome.failure:
        raise typer.Exit(outcome.failure.exit_code)
    for path in _draw(preset, wanted, runs, out):
        typer.echo(path)


def _wanted(
    preset: str, agents: str | None, topology: str | None, seeds: str | None, settings: list[str]
) -> list[list["RunConfig"]]:
    """The runs in each of the paper's figures."""
    from codecl.runs.config import grid, words

    first = (",".join(words(agents)[:1]), ",".join(words(topology)[:1]))
    asked = [
        ("codec,dpsgd", *first, [COSINE, *settings]),
        ("codec", agents, topology, settings),
        ("codec,codec-full", *first, settings),
    ]
    return [list(grid(preset, method, sizes, graphs, seeds, changes)) for method, sizes, graphs, changes in asked]


def _draw(preset: str, wanted: list[list["RunConfig"]], runs: Path, out: Path) -> list[Path]:
    """The files that were written; a figure with nothing to show is left out."""
    from codecl.report.configurations import group
    from codecl.report.figures.paper import paper_figures
    from codecl.report.pictures import write
    from codecl.runs.config import preset as known
    from codecl.runs.reader import read_run
    from codecl.runs.writer import folder_of

    written: list[Path] = []
    for (name, draw), configs in zip(paper_figures(known(preset).paper).items(), wanted, strict=True):
        figure = draw(group([read_run(folder_of(config, runs)) for config in configs]))
        if figure.series:
            written += write(figure, out / name)
        else:
            print(f"codecl: {name}: left out, one agent alone has nothing to show in it", file=sys.stderr)
    return written
