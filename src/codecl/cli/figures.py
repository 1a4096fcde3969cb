"""`codecl figures`."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from codecl.cli import common
from codecl.cli.run import RunOptions, run_all
from codecl.errors import ConfigError

if TYPE_CHECKING:
    from codecl.runs.config import RunConfig

COSINE = "train.schedule=cosine"  # only the paper's consensus figure has it
NOTHING = "there is nothing to show: one agent alone sends nothing, and runs without events.jsonl have no curves"
FIGURES = ("consensus", "compression", "loss")


@common.app.command()
def figures(
    preset: common.PresetName = "quickstart",
    agents: common.Numbers = None,
    topology: common.Graphs = None,
    seeds: common.Seeds = None,
    settings: common.Settings = None,
    only: Annotated[str | None, typer.Option("--only", help=f"Of {', '.join(FIGURES)}, a comma list.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Where figures go.")] = Path("figures"),
    runs: Annotated[Path, typer.Option("--runs", help="Where run folders are or go.")] = Path("runs"),
    device: common.Device = "auto",
    again: common.Again = False,
    jobs: common.Jobs = 1,
    quiet: common.Quiet = False,
) -> None:
    """The paper's figures as SVG, PNG and CSV: consensus error, compression of each task, loss with and without it.

    Runs what is missing: codec, and for the consensus error (cosine schedule) and the loss also dpsgd and codec-full,
    on the first of the topologies and numbers of agents. Compression is shown for all of them. `--only` draws some of
    the three, and runs what those need."""
    from codecl.exchange.cluster.ranks import joined
    from codecl.runs.grid import grid, words
    from codecl.runs.machine import device_of

    chosen = words(only) or FIGURES
    for name in chosen:
        if name not in FIGURES:
            raise ConfigError(f"--only: {name!r} is not one of {', '.join(FIGURES)}")
    given = settings or []
    first = (",".join(words(agents)[:1]), ",".join(words(topology)[:1]))
    runs_of = {
        "consensus": lambda: grid(preset, "codec,dpsgd", *first, seeds, [COSINE, *given]),
        "compression": lambda: grid(preset, "codec", agents, topology, seeds, given),
        "loss": lambda: grid(preset, "codec,codec-full", *first, seeds, given),
    }
    wanted = {name: list(runs_of[name]()) for name in FIGURES if name in chosen}
    configs = list({(config.digest(), config.seed): config for group in wanted.values() for config in group}.values())
    with joined("simulated", device_of(device)) as ranks:
        options = RunOptions(runs, device, ranks, quiet, common.console_for(False), again=again, jobs=jobs)
        outcome = run_all(configs, options)
    if outcome.failure:
        raise typer.Exit(outcome.failure.exit_code)
    for path in _draw(preset, wanted, runs, out):
        typer.echo(path)


def _draw(preset: str, wanted: Mapping[str, list["RunConfig"]], runs: Path, out: Path) -> list[Path]:
    """The files that were written; a figure with nothing to show is left out."""
    from codecl.report.configurations import group
    from codecl.report.figures.paper import paper_figures
    from codecl.report.pictures import write
    from codecl.runs.grid import preset as known
    from codecl.runs.reader import read_run
    from codecl.runs.writer import folder_of

    written: list[Path] = []
    for name, (file, draw) in paper_figures(known(preset).paper).items():
        if name not in wanted:
            continue
        figure = draw(group([read_run(folder_of(config, runs)) for config in wanted[name]]))
        if figure.series:
            written += write(figure, out / file)
        else:
            print(f"codecl: {file}: left out, {NOTHING}", file=sys.stderr)
    return written
