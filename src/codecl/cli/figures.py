"""`codecl figures`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from codecl.cli import common
from codecl.cli.run import RunOptions, run_all

if TYPE_CHECKING:
    from codecl.runs.config import RunConfig

COSINE = "train.schedule=cosine"  # only the paper's consensus figure has it


@common.app.command()
def figures(
    preset: common.PresetName = "quickstart",
    agents: common.Numbers = None,
    topology: common.Graphs = None,
    seeds: common.Seeds = None,
    settings: common.Settings = None,
    out: Annotated[Path, typer.Option("--out", help="Where figures go.")] = Path("figures"),
    runs: Annotated[Path, typer.Option("--runs", help="Where run folders are or go.")] = Path("runs"),
    device: common.Device = "auto",
    again: common.Again = False,
    jobs: common.Jobs = 1,
    quiet: common.Quiet = False,
) -> None:
    """The paper's figures as SVG, PNG and CSV: consensus error, compression of each task, loss with and without it.

    Runs what is missing: codec, and for the consensus error (cosine schedule) and the loss also dpsgd and codec-full,
    on the first of the topologies and numbers of agents. Compression is shown for all of them."""
    from codecl.exchange.cluster.ranks import joined
    from codecl.runs.grid import grid, words
    from codecl.runs.machine import device_of

    given = settings or []
    first = (",".join(words(agents)[:1]), ",".join(words(topology)[:1]))
    wanted = [  # in each of the figures
        list(grid(preset, "codec,dpsgd", *first, seeds, [COSINE, *given])),
        list(grid(preset, "codec", agents, topology, seeds, given)),
        list(grid(preset, "codec,codec-full", *first, seeds, given)),
    ]
    configs = list({(config.digest(), config.seed): config for group in wanted for config in group}.values())
    with joined("simulated", device_of(device)) as ranks:
        options = RunOptions(runs, device, ranks, quiet, common.console_for(False), again=again, jobs=jobs)
        outcome = run_all(configs, options)
    if outcome.failure:
        raise typer.Exit(outcome.failure.exit_code)
    for path in _draw(preset, wanted, runs, out):
        typer.echo(path)


def _draw(preset: str, wanted: list[list["RunConfig"]], runs: Path, out: Path) -> list[Path]:
    """The files that were written; a figure with nothing to show is left out."""
    from codecl.report.configurations import group
    from codecl.report.figures.paper import paper_figures
    from codecl.report.pictures import write
    from codecl.runs.grid import preset as known
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
