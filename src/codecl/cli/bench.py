"""`codecl bench`."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from codecl.cli.common import AsJson, app, console_for
from codecl.cli.run import OnWhich


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
    execution: Annotated[str, typer.Option(help="auto, stacked, streams or loop.")] = "auto",
    rounds: Annotated[int, typer.Option(min=1, help="Turns that each case is timed.")] = 9,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    exchange: OnWhich = "auto",
    compare: Annotated[Path | None, typer.Option(help="An earlier result, to set beside this one.")] = None,
    save: Annotated[Path | None, typer.Option(help="A folder for a dated file with the result.")] = None,
    as_json: AsJson = False,
) -> None:
    """What a step costs: time and memory by model, agents and method, and ratios, measured in one run."""
    from codecl import bench as benches
    from codecl.exchange.cluster.ranks import joined
    from codecl.report import formats
    from codecl.report.speed import speed
    from codecl.runs import build as assemble
    from codecl.runs.config import number, words

    before = benches.read(compare) if compare else None
    if save:
        benches.make_folder(save)
    place = assemble.device_of(device)
    usual_models, usual_agents = benches.DEFAULTS[place.type]
    counts = [number("--agents", word) for word in words(agents)] or usual_agents
    named = words(models) or usual_models
    fields = {"precision": precision, "execution": execution}
    with joined(exchange, place) as ranks:
        measured = benches.measure(named, counts, words(method), fields, rounds, ranks)
    if not ranks.is_main:
        return
    if as_json:
        print(json.dumps(measured, indent=1))
    else:
        console_for(False).print(formats.table(speed(measured, before)))
    if save:
        print(f"saved in {benches.save(measured, save)}", file=sys.stderr)
