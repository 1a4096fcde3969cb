"""Gathered runs -> a report: one HTML file that needs no network and no other files, and each figure as files."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from importlib import resources
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from codecl import __version__
from codecl.errors import ConfigError
from codecl.files import write_text
from codecl.report import frontier
from codecl.report.configurations import Configuration, Gathered, Refused, group
from codecl.report.figures import Bars, Figure, Lines, Points, Section, epochs, held, learned, numbers, sending
from codecl.report.headline import Headline, headline
from codecl.report.score_words import ScoreWords
from codecl.report.scores import Scores, scores
from codecl.report.tables import in_paper
from codecl.runs.reader import Run

DIGITS = 6  # of a number on the page; the CSV files have all of them
MAX_NAME = 60  # letters of a configuration in a file's name
SCRIPTS = ("echarts.min.js", "common.js", "curves.js", "maps.js", "page.js")
Draw = Callable[[Sequence[Configuration]], Mapping[str, Figure | None]]


class RecordedSeeds(NamedTuple):
    """Where runs are that differ in their seed alone."""

    folder: str
    status: str
    seeds: str


class Page(NamedTuple):
    """All that the page shows."""

    title: str
    headline: Headline
    context: str  # what the runs are
    made: str  # when, and by which version
    scores: Scores
    sections: Sequence[Section]
    refused: Sequence[Refused] = ()
    runs: Sequence[RecordedSeeds] = ()


def write(gathered: Gathered, out: Path, beside_paper: bool | None, with_figures: bool) -> int:
    """report.html and so many figures in `out`, whose other files stay. `beside_paper` None: where the paper has a
    preset."""
    made = page_of(gathered, beside_paper, datetime.now())
    figures = dict(named(made.sections)) if with_figures else {}
    try:
        write_text(out / "report.html", render(made))
        if figures:
            from codecl.report import pictures  # matplotlib: a second that the page alone does not need

            (out / "figures").mkdir(exist_ok=True)
            for name, figure in figures.items():
                pictures.write(figure, out / "figures" / name)
    except OSError as error:
        raise ConfigError(f"--out: {out} cannot be written ({error.strerror or error})") from error
    return len(figures)


def page_of(gathered: Gathered, beside_paper: bool | None, now: datetime) -> Page:
    presets = list(dict.fromkeys(run.metrics.benchmark for run in gathered.runs))
    if beside_paper is None:
        beside_paper = any(map(in_paper, presets))
    runs = sorted(gathered.runs, key=lambda run: run.metrics.status == "partial")  # those after all others
    seeds: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        seeds.setdefault((str(run.folder.parent), run.metrics.status), []).append(str(run.metrics.seed))
    return Page(
        f"codecl: {', '.join(presets)}",
        headline(group(runs)),
        context(runs),
        f"{now:%Y-%m-%d %H:%M}, codecl {__version__}",
        scores(runs, beside_paper),
        sections(runs),
        gathered.refused,
        [RecordedSeeds(*place, ", ".join(of_place)) for place, of_place in seeds.items()],
    )


def each(draw: Callable[[Configuration], Figure | None]) -> Draw:
    """A figure a configuration, of which a reader chooses."""
    return lambda configurations: {configuration.name: draw(configuration) for configuration in configurations}


def together(draw: Callable[[Sequence[Configuration]], Figure | None]) -> Draw:
    return lambda configurations: {"": draw(configurations)}


def trade_off(draw: Callable[[Sequence[frontier.Choice]], Figure | None]) -> Draw:
    """A figure a benchmark."""
    return lambda configurations: {name: draw(rows) for name, rows in frontier.on_page(configurations).items()}


SECTIONS: Mapping[str, Draw] = {  # in the order in which a reader meets them
    "Forgetting": each(learned.forgetting),
    "Mean accuracy": together(learned.mean),
    "Accuracy matrix": each(learned.matrix),
    "Who holds which classes": held.held,
    "Accuracy and bytes": trade_off(frontier.by_bytes),
    "Accuracy and what is kept": trade_off(frontier.by_kept),
    "Compression": together(sending.compression),
    "Consensus error": together(epochs.consensus),
    "Training loss": together(epochs.loss),
    "Free space": each(learned.free),
    "Network": each(sending.network),
    "Traffic": together(sending.amount),
    "Time": together(sending.time),
    "How much of the gradient is left": together(epochs.mu),
}
CHOICES = {"held": "task"}  # what a reader chooses in a section, where it is not a configuration


def sections(runs: Sequence[Run]) -> list[Section]:
    """Those that have something to show."""
    configurations = group(runs)
    words = ScoreWords.of(run.metrics for run in runs)
    out = []
    for title, draw in SECTIONS.items():
        drawn = draw(configurations).items()
        figures = {name: figure for name, figure in drawn if figure and numbers(figure).rows}
        if figures:
            key = next(iter(figures.values())).key
            out.append(Section(key, words.put(title), figures, CHOICES.get(key, "configuration")))
    return out


def named(sections: Iterable[Section]) -> Iterable[tuple[str, Figure]]:
    """Each figure with the name of its files: <key>, or <key>--<configuration> where there is a choice. Law: no two
    have the same."""
    taken: set[str] = set()
    for section in sections:
        for of, figure in section.figures.items():
            slug = re.sub(r"[^a-z0-9]+", "-", of.lower())[:MAX_NAME].strip("-")
            first = f"{figure.key}--{slug}" if len(section.figures) > 1 else figure.key
            names = chain([first], (f"{first}-{number}" for number in count(2)))
            name = next(name for name in names if name not in taken)
            taken.add(name)
            yield name, figure


def render(page: Page) -> str:
    """The page as HTML; equal pages give equal text."""
    shown = [section for section in page.sections if section.figures]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(asset("page.html")).render(
        page=page,
        sections=shown,
        data=Markup(embed({"sections": _data(shown)})),
        style=Markup(asset("page.css")),
        scripts=[Markup(asset(name)) for name in SCRIPTS],
    )


def context(runs: Sequence[Run]) -> str:
    """What the runs are, in a sentence."""
    presets = list(dict.fromkeys(run.metrics.benchmark for run in runs))
    firsts = [(one.metrics, one.variant) for one in group(runs)]  # those that ended otherwise are no others
    distinct = {(run.benchmark, run.method, run.topology, run.agents, variant) for run, variant in firsts}
    said = f"{_counted(len(runs), 'run')} of {_counted(len(distinct), 'configuration')}"
    return f"{said}; {'preset' if len(presets) == 1 else 'presets'}: {', '.join(presets)}."


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def embed(value: Any) -> str:
    """JSON that can stand in a script element: nothing in it ends the element, and what is no number is null."""
    text = json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plain(value: Any) -> Any:
    match value:
        case bool() | str() | int() | None:
            return value
        case float():
            if not math.isfinite(value):
                return None
            rounded = float(f"{value:.{DIGITS}g}")
            return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case tuple() if hasattr(value, "_asdict"):
            return _plain(value._asdict())
        case Iterable():
            return [_plain(item) for item in value]
    return _plain(value.item())  # a number of numpy's or torch's


def _data(sections: Sequence[Section]) -> list[dict[str, Any]]:
    slots = colours(sections)
    return [
        {
            "key": section.key,
            "slots": slots[section.key],
            "figures": [
                {"of": name, "kind": type(figure).__name__.lower(), **figure._asdict()}
                for name, figure in section.figures.items()
            ],
        }
        for section in sections
    ]


def colours(sections: Sequence[Section]) -> dict[str, dict[str, int]]:
    """For each section, the colour of each series by its place in the palette. A name that several sections use (that
    of a configuration) has the same in all of them; others take what is left in their own section."""
    sections_with: Counter[str] = Counter()
    for section in sections:
        choices = [name for name in section.figures if name]
        sections_with.update(dict.fromkeys([*choices, *_series(section)], 1))
    shared = {name: slot for slot, name in enumerate(name for name, times in sections_with.items() if times > 1)}
    return {section.key: _slots(_series(section), shared) for section in sections}


def _slots(names: Sequence[str], shared: Mapping[str, int]) -> dict[str, int]:
    """Where some of the names are shared, others do not take a colour that stands for a shared name elsewhere."""
    free = count(len(shared) if shared.keys() & set(names) else 0)
    return {name: shared[name] if name in shared else next(free) for name in names}


def _series(section: Section) -> list[str]:
    figures = [figure for figure in section.figures.values() if isinstance(figure, Lines | Bars | Points)]
    return list(dict.fromkeys(series.name for figure in figures for series in figure.series))


@cache
def asset(name: str) -> str:
    return (resources.files("codecl") / "report" / "assets" / name).read_text(encoding="utf-8")
