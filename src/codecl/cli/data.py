"""`codecl data`: list, fetch, add, verify."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from codecl.cli.common import console_for, group
from codecl.errors import ConfigError, DataError

if TYPE_CHECKING:
    from rich.progress import Progress

    from codecl.data.add import Kept
    from codecl.data.fetch import Bar

data = group("data", "Data sets: what there is, download, take in, check.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="See `codecl data list`.")]
Again = Annotated[bool, typer.Option("--again", help="Replace what is there.")]


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
    from codecl.data.verify import by, plus

    there = store.path_of(name).exists()
    shapes = store.shapes(name) if there else None
    held = (shapes["train_labels"][0], shapes["test_labels"][0]) if shapes else (0, 0)
    if name not in CATALOGUE:
        facts = [by(tuple(shapes["train_images"][1:])), "", f"{held[0]:,}", f"{held[1]:,}", ""] if shapes else [""] * 5
        return [name, *facts, "your own" if shapes else "broken"]
    entry = CATALOGUE[name]
    other = "" if held in entry.counts else f", {plus(held)} images"
    state = f"there{other}" if shapes else "broken" if there else "-"
    train, test = entry.counts[0]
    size = sum(file.size or 0 for file in entry.files)
    download = f"{size / 1e6:.0f} MB" if size else "yes" if entry.files else "by hand"
    return [name, by(entry.shape), str(entry.classes), f"{train:,}", f"{test:,}", download, state]


@data.command()
def fetch(
    name: Name,
    mirror: Annotated[str | None, typer.Option("--from", metavar="URL", help="Another place with these files.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Fetch anew and replace what is there.")] = False,
) -> None:
    """Download a data set, check it, and make its data set file."""
    from codecl.data import fetch as fetching
    from codecl.data import store
    from codecl.data.catalogue import CATALOGUE
    from codecl.data.verify import standing
    from codecl.registry import near

    if name not in CATALOGUE:
        raise ConfigError(f"NAME: {name!r} is unknown{near(name, CATALOGUE)}; there are {', '.join(CATALOGUE)}")
    if mirror is not None and not mirror.startswith(("http://", "https://")):
        raise ConfigError(f"--from: {mirror!r} is not allowed; it starts with http:// or https://")
    path = store.path_of(name)
    if path.exists() and not again:
        verdict = standing(name)
        if verdict.word == "wrong":
            raise DataError(f"data set {name!r}: {path} is there, but {verdict.why}; `--again` replaces it")
        typer.echo(f"{name}: there already, {verdict.word}: {verdict.why}; `--again` fetches it anew")
        return
    with _progress() as bar:
        kept = fetching.fetch(CATALOGUE[name], mirror=mirror, again=again, bar=bar)
    _tell(name, kept)


@contextmanager
def _progress() -> "Iterator[Bar]":
    """Bars on standard error where that is a terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    console = console_for(True)
    quiet = not console.is_terminal
    with Progress("{task.description}", *columns, console=console, transient=True, disable=quiet) as progress:
        yield lambda file: _Bar(progress, file)


class _Bar:
    """A bar of rich's as pooch wants one: `total` is set, then `update`, `reset` and `close` are called."""

    def __init__(self, progress: "Progress", file: str) -> None:
        self.progress = progress
        self.task = progress.add_task(file, total=None)

    @property
    def total(self) -> float | None:
        return self.progress.tasks[self.task].total

    @total.setter
    def total(self, size: int) -> None:
        self.progress.update(self.task, total=size or None)

    def update(self, size: int) -> None:
        self.progress.update(self.task, advance=size)

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
    again: Again = False,
) -> None:
    """Take in what you have, under a known NAME or one of your own; see docs/data.md for the formats."""
    from codecl.data import add as adding
    from codecl.data import readers

    if test_part is not None and not 0 < test_part < 1:
        raise ConfigError(f"--test-part: {test_part:g} is not allowed; it is between 0 and 1")
    kept = adding.add(name, path, readers.Ask(test_part, size, seed=seed), as_it_is=as_it_is, again=again)
    _tell(name, kept)


def _tell(name: str, kept: "Kept") -> None:
    from codecl.data.verify import by, plus

    images, verdict = kept.images, kept.verdict
    as_it_is = verdict.word == "wrong"
    notes = (*images.notes, *([f"kept as it is, though {verdict.why}"] if as_it_is else []))
    for note in notes:
        print(f"codecl: {name}: {note}", file=sys.stderr)
    counts = plus((len(images.train_labels), len(images.test_labels)))
    what = f"{counts} images of {by(images.train_images.shape[1:])}"
    done = "in" if kept.written else "there already, in"
    typer.echo(f"{name}: {what}, {done} {kept.path} ({'as it is' if as_it_is else verdict.word})")


@data.command()
def verify(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Default: all that are there.")] = None,
) -> None:
    """Check data set files: counts, shapes, labels, a class without images, and the content digest."""
    from codecl.data import store
    from codecl.data.add import check_name
    from codecl.data.verify import standing

    found = [check_name(name)] if name else store.names()
    if not found:
        typer.echo(f"no data sets in {store.folder()}")
    if name and not store.path_of(name).is_file():
        raise store.missing(name)
    bad = False
    for each in found:
        verdict = standing(each)
        bad = bad or verdict.word == "wrong"
        typer.echo(f"{each}: {verdict.word}: {verdict.why}")
    if bad:
        raise typer.Exit(DataError.exit_code)
