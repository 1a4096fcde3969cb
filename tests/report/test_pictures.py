"""Picture files: what they hold, that they are the same each time, and that every kind of figure can be drawn."""

import csv
import re
import xml.etree.ElementTree as ElementTree

import pytest
from PIL import Image

from codecl.errors import ConfigError
from codecl.report.configurations import gather
from codecl.report.figures import Bars, Heat, Lines, Network, Series, numbers
from codecl.report.figures.sending import circle, grid
from codecl.report.page import sections
from codecl.report.pictures import draw, write

SVG = "{http://www.w3.org/2000/svg}"


def texts(path):
    found = ElementTree.parse(path).iter(f"{SVG}text")
    return ["".join(element.itertext()).strip() for element in found]


def back(path):
    """A CSV file with its numbers as numbers."""
    with path.open(newline="") as file:
        return [[_number(cell) for cell in row] for row in csv.reader(file)]


def _number(cell):
    try:
        return float(cell)
    except ValueError:
        return cell or None


def test_every_figure_of_real_runs(recorded, tmp_path):
    for section in sections(gather([recorded]).runs):
        figure = next(iter(section.figures.values()))
        svg, png, table = write(figure, tmp_path / section.key)
        assert [path.suffix for path in (svg, png, table)] == [".svg", ".png", ".csv"]
        assert figure.title in texts(svg)
        assert len(ElementTree.parse(svg).findall(f".//{SVG}path")) > 5
        with Image.open(png) as image:
            assert image.width > 500
            assert len(image.getcolors(1 << 20)) > 20
        behind = numbers(figure)
        assert back(table) == [list(behind.columns), *map(list, behind.rows)]


def test_the_same_figure_gives_the_same_files(tmp_path):
    figure = Lines("a", "A", ".", "x", "y", [Series("s", [0, 1], [1 / 3, 2.0], [0.1, None])], marks=[(0, "t")])
    once = [path.read_bytes() for path in write(figure, tmp_path / "one")]
    assert once == [path.read_bytes() for path in write(figure, tmp_path / "two")]
    assert b"0.3333333333333333" in once[2]


def test_marks_and_names_are_in_the_picture(tmp_path):
    lines = [Series("over", [1, 2, 3], [1, 2, 3]), Series("under", [1, 2, 3], [3, None, 1])]
    svg, *_ = write(Lines("a", "A", ".", "epoch", "loss", lines, marks=[(0, "digits"), (2, "clothes")]), tmp_path / "a")
    assert {"epoch", "loss", "digits", "clothes", "over", "under"} <= set(texts(svg))
    many = [(number, f"a long name {number}") for number in range(20)]
    svg, *_ = write(Lines("a", "A", ".", "epoch", "loss", lines, marks=many), tmp_path / "b")
    assert "20" in texts(svg)
    assert not any("long" in text for text in texts(svg))


def test_lines_can_be_told_apart():
    twenty = [Series(f"s{number}", [0, 1], [number, number + 1]) for number in range(20)]
    drawn = draw(Lines("a", "A", ".", "x", "y", twenty)).axes[0].get_lines()
    assert len({(line.get_color(), str(line._dash_pattern)) for line in drawn}) == 20
    same = [Series("a", [0, 1], [1, 2]), Series("b", [0, 1], [1, 2.001])]
    under, over = draw(Lines("a", "A", ".", "x", "y", same)).axes[0].get_lines()
    assert under.get_linestyle() == "-"
    assert over.get_linestyle() == "--", "the line under it can be seen"


def test_a_log_axis_has_no_band_below_zero():
    line = Series("s", [1, 2], [1e-3, 1e-6], [1e-4, 1e-3])
    axes = draw(Lines("a", "A", ".", "x", "y", [line], log=True)).axes[0]
    (band,) = axes.collections
    assert band.get_paths()[0].vertices[:, 1].min() > 0


def test_heat_is_readable_on_dark_and_on_light(tmp_path):
    figure = Heat("a", "A", ".", "x", "y", ["p", "q"], ["r", "s"], [[10.0, None], [99.0, 50.25]])
    written = {text.get_text(): text.get_color() for text in draw(figure).axes[0].texts}
    assert set(written) == {"10.0", "99.0", "50.2"}
    assert written["10.0"] != written["99.0"] == "white"
    write(figure._replace(rows=["r"], values=[[1.0, 1.0]]), tmp_path / "one-colour")


def test_bars_without_a_value_and_long_names(tmp_path):
    names = [f"a rather long name {number}" for number in range(6)]
    figure = Bars("a", "A", ".", "MB", names, [Series("s", range(6), [1, None, 3, 4, 5, 6], [None] * 5 + [0.5])])
    svg, _, table = write(figure, tmp_path / "bars")
    assert set(names) <= set(texts(svg))
    assert back(table)[2] == ["s", names[1], None, None]
    assert re.search(r"rotate\(-30", svg.read_text())


def arrows(figure):
    return [patch.get_arrowstyle().__class__.__name__ for patch in draw(figure).axes[0].patches]


def test_one_way_links_are_arrows_two_way_links_are_lines():
    ring = Network("a", "A", ".", circle(3), [(0, 1, 10), (1, 2, 20_000), (2, 0, None)])
    assert arrows(ring) == ["CurveFilledB"] * 3
    assert {"10 B", "20 kB"} <= {text.get_text() for text in draw(ring).axes[0].texts}
    pair = Network("a", "A", ".", circle(2), [(0, 1, 10), (1, 0, 10)])
    assert arrows(pair) == ["Curve"]
    assert "20 B" in {text.get_text() for text in draw(pair).axes[0].texts}, "what goes both ways together"


def test_a_link_bends_around_an_agent_in_its_way():
    row = Network("a", "A", ".", [(-1, 0.5), (0, 0.5), (1, 0.5), (0, -0.5)], [(0, 1, 1), (0, 2, 1), (3, 0, 1)])
    bends = [patch.get_connectionstyle().rad for patch in draw(row).axes[0].patches]
    assert (bends[0], bends[2]) == (0, 0)
    assert bends[1] < 0, "away from the others"


@pytest.mark.parametrize("agents", [4, 16, 64])
def test_large_networks(tmp_path, agents):
    edges = [(i, (i + hop) % agents, 1000) for i in range(agents) for hop in (1, 2)]
    figure = Network("a", "A", ".", grid(agents), edges)
    write(figure, tmp_path / "grid")
    (axes,) = draw(figure).axes
    assert {str(agent) for agent in range(agents)} <= {text.get_text() for text in axes.texts}
    assert len(axes.patches) == len({frozenset(edge[:2]) for edge in edges}), "what goes both ways is one line"


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"^out: .*file cannot be written"):
        write(Bars("a", "A", ".", "MB", ["c"], [Series("s", [0], [1])]), tmp_path / "file" / "a")
