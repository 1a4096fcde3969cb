"""Gathered runs -> a folder for readers: the page, and each figure as files."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from codecl import __version__
from codecl.errors import ConfigError
from codecl.report import figures, page, paper
from codecl.report.figure import Figure, Section
from codecl.report.gather import Gathered, Run
from codecl.report.page import LeftOut, Listed, Page
from codecl.report.table import sheet

LONGEST = 60  # of a file's name


class Written(NamedTuple):
    page: Path
    figures: int


def write(found: Gathered, out: Path, beside_paper: bool | None, with_figures: bool) -> Written:
    """report.html and figures/ in `out`; other files there stay. `beside_paper` None: where the paper has a preset."""
    made = page_of(found, beside_paper, datetime.now())
    pieces = dict(named(made.sections)) if with_figures else {}
    try:
        out.mkdir(parents=True, exist_ok=True)
        _replace(out / "report.html", page.render(made))
        if pieces:
            _draw(pieces, out / "figures")
    except OSError as error:
        raise ConfigError(f"--out: {out} cannot be written ({error.strerror or error})") from error
    return Written(out / "report.html", len(pieces))


def _draw(pieces: Mapping[str, Figure], folder: Path) -> None:
    from codecl.report import pictures  # matplotlib: a second that the page alone does not need

    folder.mkdir(exist_ok=True)
    for name, figure in pieces.items():
        pictures.write(figure, folder / name)


def page_of(found: Gathered, beside_paper: bool | None, now: datetime) -> Page:
    presets = list(dict.fromkeys(str(run.metrics["benchmark"]) for run in found.runs))
    if beside_paper is None:
        beside_paper = any(map(paper.has, presets))
    return Page(
        f"codecl: {', '.join(presets)}",
        f"{now:%Y-%m-%d %H:%M}, codecl {__version__}",
        sheet([(run.folder, run.metrics) for run in found.runs], beside_paper),
        figures.sections(found.runs),
        [LeftOut(str(one.folder), one.why) for one in found.refused],
        _listed(found.runs),
    )


def _listed(runs: Sequence[Run]) -> list[Listed]:
    groups: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        key = str(run.folder.parent), str(run.metrics["status"])
        groups.setdefault(key, []).append(str(run.metrics["seed"]))
    return [Listed(folder, status, ", ".join(seeds)) for (folder, status), seeds in groups.items()]


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
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:LONGEST].strip("-")


def _replace(path: Path, text: str) -> None:
    """All or nothing: a reader never sees half a page."""
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
