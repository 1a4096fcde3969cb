"""`codecl predict`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from codecl.cli.common import app


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGES…", help="Image files.")],
    task: Annotated[str, typer.Option(help="Of which task: its name, or its number from 1.")],
    resize: Annotated[bool, typer.Option("--resize", help="Scale images to the size that the model takes.")] = False,
    top: Annotated[int, typer.Option(min=1, help="So many classes of each image, the most probable first.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Classify images with what a run has learned, each by itself."""
    from codecl.runs.model import predict

    predictions = predict(run, task, images, resize, top)
    if as_json:
        print(json.dumps([{"image": one.image, "classes": dict(one.classes)} for one in predictions], indent=1))
        return
    width = max(len(one.image) for one in predictions)
    for one in predictions:
        named = ", ".join(f"{name} {100 * value:.1f} %" for name, value in one.classes)
        print(f"{one.image:<{width}}  {named}")
