"""What there is: presets, methods, topologies, models."""

from collections.abc import Mapping
from typing import Annotated

import typer

from codecl.cli.common import PresetName, Settings, app


@app.command()
def presets() -> None:
    """The presets and what they are."""
    from codecl.runs.grid import presets

    _print(presets())


@app.command()
def show(
    preset: PresetName = "quickstart",
    method: Annotated[str | None, typer.Option(help="A method.")] = None,
    settings: Settings = None,
) -> None:
    """The resolved config of a preset, every field."""
    from codecl.runs.grid import grid

    (config, *_) = grid(preset, method, None, None, None, settings or [])
    typer.echo(config.dump(), nl=False)


@app.command()
def methods() -> None:
    """The methods and what they do."""
    from codecl.methods import METHODS

    _print({name: kind.__doc__ for name, kind in METHODS.items()})


@app.command()
def topologies() -> None:
    """The topologies and who hears whom in them."""
    from codecl.exchange.topology import TOPOLOGIES

    _print({name: builder.__doc__ for name, builder in TOPOLOGIES.items()})


@app.command()
def models() -> None:
    """The models."""
    from codecl.models import MODELS

    _print({name: builder.__doc__ for name, builder in MODELS.items()})


def _print(entries: Mapping[str, str | None]) -> None:
    """Names, and the first line of what is said of each."""
    width = max(map(len, entries))
    for name, about in entries.items():
        typer.echo(f"{name:<{width}}  {(about or '').strip().splitlines()[0]}")
