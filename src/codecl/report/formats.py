"""Results for people: a sheet as text, Markdown, LaTeX or CSV; bytes and seconds in words."""

import csv
import io
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from codecl.errors import ConfigError

MAX_WIDTH = 1000  # more than any table's
UNKNOWN = "–"  # in a table
UNITS = ("B", "kB", "MB", "GB", "TB")
GLUE = "\N{NO-BREAK SPACE}"  # holds words together while lines are broken


class Column(NamedTuple):
    title: str
    cells: Sequence[str]
    words: bool = False  # to the left; numbers are to the right
    fold: bool = False  # where there is little room, words may stand under each other
    optional: bool = False  # where there is still too little room, left out

    def folded(self) -> "Column":
        """A field's name breaks at its dots, a score before its spread."""
        return self._replace(
            title=self.title.replace(".", ".\n"), cells=[cell.replace(" ± ", "\n± ") for cell in self.cells]
        )

    def narrowest(self) -> int:
        """Room for its longest word, and for numbers as they are."""
        words = re.findall(r"\S+", " ".join([self.title, *(self.cells if self.words else ())]))
        numbers = [] if self.words else [line for cell in self.cells for line in cell.split("\n")]
        return max(map(len, [*words, *numbers]), default=0)

    def widest(self) -> int:
        """Room for its longest line."""
        return max(len(line) for text in (self.title, *self.cells) for line in text.split("\n"))


class Sheet(NamedTuple):
    """Columns for people, and the same rows as records for machines."""

    title: str
    columns: Sequence[Column]
    note: str  # a paragraph a line
    records: Sequence[Mapping[str, Any]]

    def lines(self) -> Iterable[tuple[str, ...]]:
        return zip(*(column.cells for column in self.columns), strict=True)


def blank(title: str) -> Table:
    """A table without columns yet, in the style of all of them."""
    return Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False
    )


def table(sheet: Sheet, widths: Sequence[int | None] | None = None) -> Table:
    """For a terminal, without the note. `widths`: of columns that fold; None: as wide as it is."""
    out = blank(sheet.title)
    out.collapse_padding = widths is not None
    for column, width in zip(sheet.columns, widths or [None] * len(sheet.columns), strict=True):
        side: Literal["left", "right"] = "left" if column.words else "right"
        out.add_column(column.title, justify=side, no_wrap=width is None, width=width)
    for cells in sheet.lines():
        out.add_row(*map(Text, cells))
    return out


def folded(sheet: Sheet, console: Console) -> Table | None:
    """The table with words under each other where it has to be; None: even so it does not fit."""
    columns = [column.folded() if column.fold else column for column in sheet.columns]
    widths = [column.narrowest() if column.fold else None for column in columns]
    sheet = sheet._replace(columns=columns)
    spare = console.width - _natural_width(table(sheet, widths), console)
    if spare < 0:
        return None
    for place, column in sorted(enumerate(columns), key=lambda one: not one[1].words):  # words first
        least = widths[place]
        if least is not None:
            more = min(spare, column.widest() - least)
            widths[place], spare = least + more, spare - more
    return table(sheet, widths)


def _natural_width(table: Table, console: Console) -> int:
    """What it takes where there is room."""
    return console.measure(table, options=console.options.update(max_width=MAX_WIDTH)).maximum


def show(sheet: Sheet, console: Console) -> None:
    """The table and its note, and nothing of it cut: where the console is too narrow, folded, then without what is
    optional, then a paragraph for each row."""
    needed = sheet._replace(columns=[column for column in sheet.columns if not column.optional])
    if _natural_width(table(sheet), console) <= console.width:
        console.print(table(sheet))
    elif narrow := folded(sheet, console) or folded(needed, console):
        console.print(narrow)
    else:
        lines = map(Text, paragraphs(sheet, console.width))
        console.print(Text(sheet.title, "bold"), *lines, sep="\n", end="\n\n")
    if sheet.note:
        console.print(sheet.note, style="dim", highlight=False, markup=False)


def paragraphs(sheet: Sheet, width: int) -> list[str]:
    """A paragraph for each row: its words, and under them each number with its title. Law: nothing is left out, and no
    line is longer than `width` unless a single word is."""
    out = []
    for cells in sheet.lines():
        named = list(zip(sheet.columns, cells, strict=True))
        head = " · ".join(cell for column, cell in named if column.words and cell)
        facts = "   ".join(f"{column.title} {cell}".replace(" ", GLUE) for column, cell in named if not column.words)
        lines = textwrap.wrap(head, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        lines += textwrap.wrap(facts, width, initial_indent="  ", subsequent_indent="  ", break_long_words=False)
        out.append("\n".join(lines).replace(GLUE, " "))
    return out


def markdown(sheet: Sheet) -> str:
    """A table as GitHub shows it."""
    titles = [column.title for column in sheet.columns]
    rules = ["---" if column.words else "---:" for column in sheet.columns]
    lines = [" | ".join(cell.replace("|", r"\|") for cell in cells) for cells in (titles, rules, *sheet.lines())]
    paragraphs = [text for line in sheet.note.splitlines() for text in ("", line)]
    return "\n".join([*(f"| {line} |" for line in lines), *paragraphs]) + "\n"


ESCAPES = str.maketrans(
    {character: f"\\{character}" for character in "%_&#${}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "…": r"\ldots{}"}
    | {"±": r"$\pm$", "Δ": r"$\Delta$", "−": "$-$", "–": "--"}
)


def latex(sheet: Sheet) -> str:
    """A tabular, the note under it."""
    spec = "".join("l" if column.words else "r" for column in sheet.columns)
    head = " & ".join(column.title.translate(ESCAPES) for column in sheet.columns)
    lines = [
        "% needs \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{{spec}}}",
        "\\toprule",
        f"{head} \\\\",
        "\\midrule",
        *(f"{' & '.join(map(_latex_cell, sheet.columns, cells))} \\\\" for cells in sheet.lines()),
        "\\bottomrule",
        "\\end{tabular}",
    ]
    paragraphs = sheet.note.translate(ESCAPES).splitlines()
    lines += [f"\\par\\smallskip{{\\footnotesize {paragraph}}}" for paragraph in paragraphs]
    return "\n".join(lines) + "\n"


def _latex_cell(column: Column, cell: str) -> str:
    """With a true minus sign before a number."""
    text = cell.translate(ESCAPES)
    return text if column.words else re.sub(r"([+-])(?=\d)", r"$\1$", text)


def comma_separated(sheet: Sheet) -> str:
    """The records at full precision; empty where there is no value."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(sheet.records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(sheet.records)
    return out.getvalue()


def as_json(sheet: Sheet) -> str:
    """The records at full precision; null where there is no value."""
    return json.dumps(list(sheet.records), indent=1) + "\n"


PLAIN: dict[str, Callable[[Sheet], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": comma_separated,
    "json": as_json,
}


def writer(name: str | None) -> Callable[[Sheet], str] | None:
    """What `--format` names; None: for a terminal."""
    if name is not None and name != "text" and name not in PLAIN:
        raise ConfigError(f"--format: {name!r} is not one of {', '.join(('text', *PLAIN))}")
    return PLAIN.get(name or "")


def size(count: float) -> str:
    """Bytes."""
    for unit in UNITS[:-1]:
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def unit_for(largest: float) -> tuple[str, int]:
    """The unit in which so many bytes are a number below 1000, and its power of 1000."""
    power = 0
    while largest >= 999.5 and power < len(UNITS) - 1:
        largest, power = largest / 1000, power + 1
    return UNITS[power], power


def number(value: float | None, digits: str = ".2f") -> str:
    return UNKNOWN if value is None else format(value, digits)


def with_spread(value: float, spread: float | None, digits: str = ".2f") -> str:
    return format(value, digits) if spread is None else f"{value:{digits}} ± {spread:{digits}}"


def spread_of_bytes(count: float, spread: float | None) -> str:
    """Bytes and their spread in one unit: `842 ± 24.7 MB`."""
    unit, power = unit_for(max(abs(count), spread or 0.0))

    def scaled(value: float) -> str:
        value /= 1000**power
        digits = 2 if abs(value) < 9.995 else 1
        return f"{value:.0f}" if power == 0 or abs(value) >= 99.95 else f"{value:.{digits}f}"

    both = scaled(count) if spread is None else f"{scaled(count)} ± {scaled(spread)}"
    return f"{both} {unit}"


def duration(seconds: float) -> str:
    """Seconds, in one or two units."""
    count = round(seconds)
    for length, unit, smaller, its_unit in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if count >= length:
            rest = count % length // smaller
            return f"{count // length} {unit}" + (f" {rest} {its_unit}" if rest else "")
    return f"{count} s"
