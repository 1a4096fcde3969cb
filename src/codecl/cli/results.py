"""What came out of runs: `codecl table`, `codecl predict`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from codecl.cli.common import AsJson, app, console_for
from codecl.errors import ConfigError


@app.command()
def table(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS…", help="Run folders, or folders that hold some.")],
    paper: Annotated[bool, typer.Option("--paper", help="Beside the paper's Table 1.")] = False,
    form: Annotated[str | None, typer.Option("--format", help="text, markdown, latex or csv.")] = None,
    as_json: AsJson = False,
) -> None:
    """Results of recorded runs: mean ± std over seeds, a row a configuration."""
    from codecl.report import formats
    from codecl.report.table import sheet
    from codecl.runs.reader import Run, as_fleets, find_runs, read_metrics

    if as_json and (paper or form is not None):
        raise ConfigError("--json: gives the metrics as they are; leave out --paper and --format, or take --format csv")
    if form is not None and form not in formats.FORMATS:
        raise ConfigError(f"--format: {form!r} is not one of {', '.join(formats.FORMATS)}")
    found = [Run(folder, read_metrics(folder)) for folder in find_runs(runs)]
    if as_json:
        print(json.dumps([{"folder": str(run.folder), **run.metrics.dump()} for run in found], indent=1))
        return
    shown = sheet([(run.folder, run.metrics.dump()) for run in as_fleets(found)], paper)
    if form in formats.PLAIN:
        print(formats.PLAIN[form](shown), end="")
    else:
        formats.show(shown, console_for(False), whole=paper)


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
    from codecl.runs.predict import predict

    found = predict(run, task, images, resize, top)
    if as_json:
        print(json.dumps([{"image": one.image, "classes": dict(one.classes)} for one in found], indent=1))
        return
    width = max(len(one.image) for one in found)
    for one in found:
        named = ", ".join(f"{name} {100 * value:.1f} %" for name, value in one.classes)
        print(f"{one.image:<{width}}  {named}")
