"""A page by hand, with every kind of figure, and names that nobody should have."""

import math

from codecl.report.configurations import Refused
from codecl.report.figures import Bars, Heat, Lines, Network, Points, Section, Series
from codecl.report.headline import Headline
from codecl.report.page import Page, RecordedSeeds
from codecl.report.scores import Row, Rows, Scores, Title, terms

HOSTILE = "</script><img src=x onerror=alert(1)>"
LONG = "a-name-without-end-" * 20
CONFIGURATIONS = ["codec, ring 4", "codec-full, ring 4", "dpsgd, ring 4"]
TASKS = ["apple", "bridge", "crab", "dolphin", "elm"]
ZERO, UNKNOWN = 3, 7  # epochs with a consensus error of nothing, and one that is not known


def curves():
    """Consensus error by epoch, on a log axis, from 1e-8 to 1e2; two points of the first line cannot be drawn."""
    x = list(range(1, 26))
    series = []
    for place, name in enumerate(CONFIGURATIONS):
        y = [10 ** (-8 + 5 * place) * (1 + epoch % 5) for epoch in x]
        series.append(Series(name, x, y, [0.3 * value for value in y]))
    broken = list(series[0].y)
    broken[ZERO], broken[UNKNOWN] = 0.0, math.nan
    series[0] = series[0]._replace(y=[None if value != value else value for value in broken])
    marks = [(1.0 + 5 * place, name) for place, name in enumerate(TASKS)]
    return Lines("consensus", "consensus error", "How far agents are apart.", "epoch", "error", series, True, (), marks)


def learned():
    series = [
        Series(name, range(5), [90 - 7 * place - t for t in range(5)], [1.5] * 5)
        for place, name in enumerate(CONFIGURATIONS)
    ]
    return Lines("acc", "accuracy", "Of each task at the end.", "task", "accuracy in %", series, ticks=TASKS)


def sent(categories=CONFIGURATIONS):
    count = len(categories)
    series = [
        Series("training", range(count), [1.2e9 * (place + 1) for place in range(count)], [5e7] * count),
        Series("between tasks", range(count), [3.4e7] * count),
    ]
    return Bars("sent", "traffic", "What all agents sent.", "bytes", categories, series)


def trade_off():
    """The second is neither as good nor as cheap as the first."""
    series = [Series(f"own {n}", [10.0 + n], [acc], [0.5]) for n, acc in ((1, 70.0), (2, 69.0), (8, 75.0))]
    joined = [(11.0, 70.0), (18.0, 75.0)]
    return Points(
        "trade", "trade-off", "Which are best.", "MB sent", "ACC %", series, [True, False, True], joined, True
    )


def matrix(best, names=TASKS):
    size = len(names)
    values = [[best - 3 * (row - column) if column <= row else None for column in range(size)] for row in range(size)]
    return Heat("matrix", "accuracy matrix", "A row is after a task.", "tested on", "after", names, names, values)


def ring(count, one_way=False):
    places = [(math.sin(2 * math.pi * i / count), math.cos(2 * math.pi * i / count)) for i in range(count)]
    edges = [(i, (i + 1) % count, 1_000_000 * (i + 1)) for i in range(count)]
    back = [] if one_way else [(hearer, sender, size) for sender, hearer, size in edges]
    return Network("network", "network", "Who talks to whom.", places, [*edges, *back])


def sections(names=TASKS):
    rows = [[90, 80], [70, 60], [50, 40]]
    by_layer = {
        name: Lines("free", f"free space of {name}", "Falls.", "task", "directions", [
            Series("conv1", range(2), rows[place]), Series("fc", range(2), rows[-1 - place]),
        ], ticks=["one", "two"])
        for place, name in enumerate(CONFIGURATIONS)
    }  # fmt: skip
    return [
        Section("acc", "Accuracy of each task", {"": learned()}),
        Section("consensus", "Consensus error", {"": curves()}),
        Section("sent", "Traffic", {"": sent()}),
        Section("trade", "Trade-off", {"": trade_off()}),
        Section("matrix", "Accuracy matrix", {n: matrix(95 - 10 * i, names) for i, n in enumerate(CONFIGURATIONS)}),
        Section("free", "Free space", by_layer),
        Section("network", "Network", {"ring 4": ring(4), "ring 6, one way": ring(6, one_way=True)}),
    ]


def scores(names=CONFIGURATIONS):
    columns = [Title("ACC %", False), Title("seeds", False)]
    rows = [Row(name, "lr=0.1", "complete", [f"{80 - place:.2f} ± 0.31", "2"]) for place, name in enumerate(names)]
    stopped = Row(names[0], names[0], "partial: 1 of 5 tasks", ["96.00", "1"])
    return Scores(columns, [Rows("", rows), Rows("Not finished", [stopped])], terms(columns), [])


def page():
    return Page(
        "codecl: quickstart",
        Headline(["codec ends at 80.0 %."], ["One seed."]),
        "6 runs of 3 configurations; preset: quickstart.",
        "2026-01-02 03:04, codecl 0",
        scores(),
        sections(),
        [Refused("runs/broken/seed-1", "events.jsonl is missing")],
        [RecordedSeeds("runs/quickstart-codec-ring4", "complete", "1, 2")],
    )


def hostile():
    """The same page with names that are markup, that are long, and that are of other scripts."""
    names = [HOSTILE, LONG, "日本語 العربية 🦀", "{b} ${x} {{ 7 * 7 }}", "<b>bold</b> & \"quoted\" 'too' \u2028"]
    swap = dict(zip(CONFIGURATIONS, names, strict=False))
    acc = learned()._replace(ticks=names, title=HOSTILE, about=HOSTILE)
    acc = acc._replace(series=[series._replace(name=swap[series.name]) for series in acc.series])
    parts = [
        Section("acc", HOSTILE, {"": acc}),
        Section("sent", LONG, {"": sent(names)._replace(y=HOSTILE)}),
        Section("matrix", "Accuracy matrix", {name: matrix(90, names) for name in names}),
    ]
    left = [Refused(HOSTILE, LONG)]
    told = Headline([HOSTILE, LONG], [HOSTILE])
    return Page(HOSTILE, told, HOSTILE, LONG, scores(names), parts, left, [RecordedSeeds(LONG, HOSTILE, "1")])
