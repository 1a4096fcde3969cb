"""What there is: presets, methods, topologies, models."""

import sys
from typing import Annotated

import typer

from codecl.cli.common import PresetName, Settings, app, first_line, listed


@app.command()
def presets() -> None:
    """The presets and what they are."""
    from codecl.runs.config import presets

    listed(presets())


@app.command()
def show(
    preset: PresetName = "quickstart",
    method: Annotated[str | None, typer.Option(help="A method.")] = None,
    settings: Settings = None,
) -> None:
    """The resolved config of a preset, every field."""
    from codecl.runs import grid

    (config, *_) = grid.configs(preset, method, None, None, None, settings or [])
    typer.echo(config.dump(), nl=False)


@app.command()
def methods() -> None:
    """The methods and what they do."""
    from codecl.methods import METHODS

    listed({name: first_line(kind) for name, kind in METHODS.items()})


@app.command()
def topologies() -> None:
    """The topologies and who hears whom in them."""
    from codecl.exchange.topology import TOPOLOGIES

    listed({name: first_line(builder) for name, builder in TOPOLOGIES.items()})


@app.command()
def models() -> None:
    """The models."""
    from codecl.models import MODELS

    listed({name: first_line(sys.modules[builder.__module__]) for name, builder in MODELS.items()})
