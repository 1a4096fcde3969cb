"""`codecl data`: list, fetch, add, verify."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from codecl.cli.common import console_for, group
from codecl.errors import ConfigError, DataError

if TYPE_CHECKING:
    from rich.progress import Progress

    from codecl.data.add import Added

data = group("data", "Data sets: what there is, download, take in, check.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="See `codecl data list`.")]


@data.command("list")
def show() -> None:
    """The data sets that are known, those of your own, and which are there."""
    from rich.table import Table
    from rich.text import Text

    from codecl.data import store
    from codecl.data.catalogue import CATALOGUE

    table = Table(box=None, pad_edge=False)
    for column in ("name", "image", "classes", "training", "test", "download", "file"):
        table.add_column(column, justify="left" if column in ("name", "file") else "right")
    for name in dict.fromkeys((*CATALOGUE, *store.names())):
        table.add_row(*map(Text, _row(name)))  # text, whatever a file is called
    console = console_for(False)
    console.print(table)
    console.print(f"folder: {store.folder()}", highlight=False, markup=False, soft_wrap=True)


def _row(name: str) -> list[str]:
    """A data set as published, or, one's own, as the file's head says."""
    from codecl.data import store
    from codecl.data.catalogue import CATALOGUE
    from codecl.data.verify import counts_text, shape_text

    shapes = store.shapes(name)
    counts = (shapes["train_labels"][0], shapes["test_labels"][0]) if shapes else (0, 0)
    if name not in CATALOGUE:
        if not shapes:
            return [name, "", "", "", "", "", "broken"]
        image = shape_text(tuple(shapes["train_images"][1:]))
        return [name, image, "", f"{counts[0]:,}", f"{counts[1]:,}", "", "your own"]
    entry = CATALOGUE[name]
    if shapes:
        state = "there" if counts in entry.counts else f"there, {counts_text(counts)} images"
    else:
        state = "broken" if store.path_of(name).exists() else "-"
    train, test = entry.counts[0]
    size = sum(file.size or 0 for file in entry.files)
    unknown = "yes" if entry.files else "by hand"
    download = f"{size / 1e6:.0f} MB" if size else unknown
    return [name, shape_text(entry.shape), str(entry.classes), f"{train:,}", f"{test:,}", download, state]


@data.command()
def fetch(
    name: Name,
    mirror: Annotated[str | None, typer.Option("--from", metavar="URL", help="Another place with these files.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Fetch anew and replace what is there.")] = False,
) -> None:
    """Download a data set, check it, and make its data set file."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    from codecl.data import add as adding
    from codecl.data import store
    from codecl.data.catalogue import CATALOGUE
    from codecl.data.verify import verify
    from codecl.registry import near

    if name not in CATALOGUE:
        raise ConfigError(f"NAME: {name!r} is unknown{near(name, CATALOGUE)}; there are {', '.join(CATALOGUE)}")
    if mirror is not None and not mirror.startswith(("http://", "https://")):
        raise ConfigError(f"--from: {mirror!r} is not allowed; it starts with http:// or https://")
    path = store.path_of(name)
    if path.exists() and not again:
        verdict = verify(name)
        if verdict.status == "wrong":
            raise DataError(f"data set {name!r}: {path} is there, but {verdict.reason}; `--again` replaces it")
        typer.echo(f"{name}: there already, {verdict.status}: {verdict.reason}; `--again` fetches it anew")
        return
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    console = console_for(True)
    quiet = not console.is_terminal
    with Progress("{task.description}", *columns, console=console, transient=True, disable=quiet) as progress:
        added = adding.fetch(CATALOGUE[name], mirror=mirror, again=again, bar=partial(_Bar, progress))
    _show_added(name, added)


class _Bar:
    """A bar of rich's as pooch wants one: `total` is set, then `update`, `reset` and `close` are called."""

    def __init__(self, progress: "Progress", file: str) -> None:
        self.progress = progress
        self.task = progress.add_task(file, total=None)
        self.total = 0  # unknown

    def update(self, size: int) -> None:
        self.progress.update(self.task, total=self.total or None, advance=size)

    def reset(self) -> None:
        self.progress.update(self.task, completed=0)

    def close(self) -> None:
        self.progress.stop_task(self.task)


@data.command()
def add(
    name: Name,
    path: Annotated[Path, typer.Argument(metavar="PATH", help="An archive, a folder, an .npz or a .safetensors.")],
    test_part: Annotated[float | None, typer.Option(help="Class folders alone: the part of each to test on.")] = None,
    size: Annotated[int | None, typer.Option(min=1, help="Image files: make all of them N×N.", metavar="N")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Chooses the test part.")] = 0,
    as_it_is: Annotated[bool, typer.Option("--as-it-is", help="Keep it though it is not what NAME says.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Replace what is there.")] = False,
) -> None:
    """Take in what you have, under a known NAME or one of your own; see docs/data.md for the formats."""
    from codecl.data import add as adding
    from codecl.data import readers

    if test_part is not None and not 0 < test_part < 1:
        raise ConfigError(f"--test-part: {test_part:g} is not allowed; it is between 0 and 1")
    options = readers.ImportOptions(test_part, size, seed=seed)
    _show_added(name, adding.add(name, path, options, as_it_is=as_it_is, again=again))


def _show_added(name: str, added: "Added") -> None:
    from codecl.data.verify import counts_text, shape_text

    images, verdict = added.images, added.verdict
    as_it_is = verdict.status == "wrong"
    said = {"wrong": f"kept as it is, though {verdict.reason}", "near": verdict.reason}.get(verdict.status)
    notes = (*images.notes, *([said] if said else []))
    for note in notes:
        print(f"codecl: {name}: {note}", file=sys.stderr)
    counts = counts_text((len(images.train_labels), len(images.test_labels)))
    what = f"{counts} images of {shape_text(images.train_images.shape[1:])}"
    done = "in" if added.written else "there already, in"
    typer.echo(f"{name}: {what}, {done} {added.path} ({'as it is' if as_it_is else verdict.status})")


@data.command()
def verify(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Default: all that are there.")] = None,
) -> None:
    """Check data set files: counts, shapes, labels, a class without images, and the content digest."""
    from codecl.data import store
    from codecl.data.add import check_name
    from codecl.data.verify import verify as judged

    names = [check_name(name)] if name else store.names()
    if not names:
        typer.echo(f"no data sets in {store.folder()}")
    if name and not store.path_of(name).is_file():
        raise store.missing(name)
    verdicts = []
    for each in names:
        verdicts.append(judged(each))
        typer.echo(f"{each}: {verdicts[-1].status}: {verdicts[-1].reason}")
    if any(verdict.status == "wrong" for verdict in verdicts):
        raise typer.Exit(DataError.exit_code)
