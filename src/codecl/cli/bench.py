"""`codecl bench`."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codecl.cli import common

if TYPE_CHECKING:
    from codecl.report.formats import Sheet

RATIOS = ("dpsgd", "codec-full", "plain-loop", "codec")


@common.app.command()
def bench(
    models: Annotated[
        str | None, typer.Option(help="convnet, mlp, alexnet, resnet18, resnet18-84, vit; a comma list.")
    ] = None,
    agents: Annotated[str | None, typer.Option(help="Numbers of agents, a comma list.")] = None,
    method: Annotated[
        str,
        typer.Option(
            help="Methods, a comma list; plain-loop: dpsgd written plainly; codec+32: 32 own directions;"
            " codec@4: messages of 4 bits; codec+32@4: both."
        ),
    ] = "codec,codec-full,dpsgd,plain-loop",
    precision: Annotated[str, typer.Option(help="highest, tf32 or bf16.")] = "tf32",
    optimizer: Annotated[str, typer.Option(help="sgd or adamw; plain-loop is sgd.")] = "sgd",
    execution: Annotated[str, typer.Option(help="auto, stacked, streams or loop.")] = "auto",
    rounds: Annotated[int, typer.Option(min=1, help="Turns that each case is timed.")] = 9,
    device: common.Device = "auto",
    exchange: common.Exchange = "auto",
    compare: Annotated[Path | None, typer.Option(help="An earlier result, to set beside this one.")] = None,
    save: Annotated[Path | None, typer.Option(help="A folder for a dated file with the result.")] = None,
    as_json: common.AsJson = False,
) -> None:
    """What a step costs: time and memory by model, agents and method, and ratios, measured in one run."""
    from codecl import bench as benches
    from codecl.exchange.cluster.ranks import joined
    from codecl.report import formats
    from codecl.runs.grid import number, words
    from codecl.runs.machine import device_of

    before = benches.read(compare) if compare else None
    if save:
        benches.make_folder(save)
    place = device_of(device)
    usual_models, usual_agents = benches.DEFAULTS[place.type]
    counts = [number("--agents", word) for word in words(agents)] or usual_agents
    named = words(models) or usual_models
    fields = {"precision": precision, "optimizer": optimizer, "execution": execution}
    with joined(exchange, place) as ranks:
        measured = benches.measure(named, counts, words(method), fields, rounds, ranks)
    if not ranks.is_main:
        return
    if as_json:
        print(json.dumps(measured, indent=1))
    else:
        common.console_for(False).print(formats.table(speed(measured, before)))
    if save:
        print(f"saved in {benches.save(measured, save)}", file=sys.stderr)


def speed(measured: Mapping[str, Any], before: Mapping[str, Any] | None) -> "Sheet":
    """A row a case; with `before`, how much of the earlier time it takes."""
    from codecl.bench import SAME
    from codecl.report.formats import Column, Sheet

    def case(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row[key] for key in SAME)

    rows = measured["rows"]
    ranks = measured.get("ranks", 1)
    compared = [other for other in RATIOS if other != "codec" or any(other in row["ratio"] for row in rows)]
    memory = ["–" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}" for row in rows]
    columns = [
        Column("model", [row["model"] for row in rows], words=True),
        Column("agents", [str(row["agents"]) for row in rows]),
        Column("method", [row["method"] for row in rows], words=True),
        Column("execution", [row["execution"] for row in rows], words=True),
        Column("ms a step", [_spread(row["ms"]) for row in rows]),
        Column("peak MiB", memory),
        *(Column(f"/ {other}", [_spread(row["ratio"].get(other)) for row in rows]) for other in compared),
    ]
    if ranks > 1:
        columns.append(Column("waiting ms", [_spread(row["wait_ms"]) for row in rows]))
        columns.append(Column("Mbit/s out", [_spread(row["mbit_s"]) for row in rows]))
    if before:
        earlier = {case(row): row["ms"]["median"] for row in before["rows"]}
        shares = [row["ms"]["median"] / earlier[case(row)] if case(row) in earlier else None for row in rows]
        columns.append(Column("/ before", ["–" if share is None else f"{share:.2f}" for share in shares]))
    environment = measured["environment"]
    machine = f"{environment['device_name']}, torch {environment['torch']}" + (f", {ranks} ranks" if ranks > 1 else "")
    title = f"a step on {machine}: median (least-most) of {measured['rounds']} rounds"
    return Sheet(title, columns, "", rows)


def _spread(values: Mapping[str, float] | None) -> str:
    if values is None:
        return "–"
    return f"{values['median']:.2f} ({values['min']:.2f}-{values['max']:.2f})"
