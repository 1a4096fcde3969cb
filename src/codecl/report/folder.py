"""Gathered runs -> a folder for readers: the page, and each figure as files."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from codecl import __version__
from codecl.errors import ConfigError
from codecl.files import write_text
from codecl.report import figures, page, paper
from codecl.report.figures.figure import Figure, Section
from codecl.report.gather import Gathered
from codecl.report.page import Page, RecordedSeeds
from codecl.report.tables import results
from codecl.runs.reader import Run

MAX_NAME = 60  # letters of a configuration in a file's name


class Written(NamedTuple):
    page: Path
    figures: int


def write(gathered: Gathered, out: Path, beside_paper: bool | None, with_figures: bool) -> Written:
    """report.html and figures/ in `out`; other files there stay. `beside_paper` None: where the paper has a preset."""
    made = page_of(gathered, beside_paper, datetime.now())
    pictures = dict(named(made.sections)) if with_figures else {}
    try:
        write_text(out / "report.html", page.render(made))
        if pictures:
            _draw(pictures, out / "figures")
    except OSError as error:
        raise ConfigError(f"--out: {out} cannot be written ({error.strerror or error})") from error
    return Written(out / "report.html", len(pictures))


def _draw(named_figures: Mapping[str, Figure], folder: Path) -> None:
    from codecl.report import pictures  # matplotlib: a second that the page alone does not need

    folder.mkdir(exist_ok=True)
    for name, figure in named_figures.items():
        pictures.write(figure, folder / name)


def page_of(gathered: Gathered, beside_paper: bool | None, now: datetime) -> Page:
    presets = list(dict.fromkeys(run.metrics.benchmark for run in gathered.runs))
    if beside_paper is None:
        beside_paper = any(map(paper.has, presets))
    return Page(
        f"codecl: {', '.join(presets)}",
        f"{now:%Y-%m-%d %H:%M}, codecl {__version__}",
        results(gathered.runs, beside_paper),
        figures.sections(gathered.runs),
        gathered.refused,
        _seeds(gathered.runs),
    )


def _seeds(runs: Sequence[Run]) -> list[RecordedSeeds]:
    groups: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        groups.setdefault((str(run.folder.parent), run.metrics.status), []).append(str(run.metrics.seed))
    return [RecordedSeeds(*place, ", ".join(seeds)) for place, seeds in groups.items()]


def named(sections: Iterable[Section]) -> Iterable[tuple[str, Figure]]:
    """Each figure with the name of its files: <key>, or <key>--<configuration> where there is a choice. Law: no two
    have the same."""
    taken: set[str] = set()
    for section in sections:
        for of, figure in section.figures.items():
            first = name = f"{figure.key}--{_slug(of)}" if len(section.figures) > 1 else figure.key
            count = 1
            while name in taken:
                count += 1
                name = f"{first}-{count}"
            taken.add(name)
            yield name, figure


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:MAX_NAME].strip("-")
