"""The report page as its reader has it: every figure drawn, every number there to be read, nothing from outside."""

import pytest

from codecl.report.figures import Heat, numbers
from codecl.report.page import render
from tests.browser import pages

FORE = {"light": "#1b1f24", "dark": "#e6e9ec"}
BACK = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}
FIGURES = {section.key: section for section in pages.sections()}
MARKS = {  # key: (selector, how many of them)
    "acc": ("g[clip-path] > path[fill=none][stroke-width='2']", 3),
    "consensus": ("g[clip-path] > path[fill=none][stroke-width='2']", 3),
    "sent": ("path[fill='#0072B2']:not([transform]), path[fill='#D55E00']:not([transform])", 6),
    "trade": ("path[transform^='matrix(5']", 3),
    "matrix": ("path[fill^=rgb][stroke='#ffffff']", 15),
    "free": ("path[transform^='matrix(2.5']", 4),
    "network": ("path[transform^='matrix(14']", 4),
}
MORE = {  # what stands beside them
    "acc": ("g[clip-path] > path[fill^='#'][fill-opacity]", 3),  # a band each
    "consensus": ("path[stroke-dasharray]", 5),  # where tasks begin
    "sent": ("path[stroke='#1b1f24'][stroke-width='1.5']", 3),  # whiskers of those that have a std
    "trade": ("path[stroke-width='1.5']", 3),  # a spread each
    "matrix": ("text[fill='#fff'], text[fill='#111']", 15),  # numbers in cells
    "free": ("g[clip-path] > path[fill=none][stroke-width='2']", 2),
    "network": ("path[stroke-opacity='0.85']", 4),  # a line for both ways
}
SAID = {  # at a place in the numbers of its axes
    "acc": ([2, 88], ["crab", "codec, ring 4", "88 ± 1.5", "dpsgd, ring 4", "74 ± 1.5"]),
    "consensus": ([7, -6.9], ["epoch 7 · bridge", "3.000e-8 ± 9.000e-9"]),
    "sent": ([1, 1e9], ["codec-full, ring 4", "training", "2.4 GB ± 50 MB"]),
    "trade": ([11, 70], ["own 1", "ACC %", "70 ± 0.5", "MB sent", "11"]),
    "matrix": ([1, 3], ["89 %", "after", "dolphin", "tested on", "bridge"]),
    "network": ([0, 1], ["agent 0", "sends", "5 MB"]),
}
OVERFLOW = """() => [...document.querySelectorAll('body *')]
    .filter((one) => !one.closest('.scroll, .index ol, svg') && one.getClientRects().length)
    .filter((one) => one.getBoundingClientRect().right > innerWidth + 1 || one.getBoundingClientRect().left < -1)
    .map((one) => one.outerHTML.slice(0, 120))"""
PIXEL = """([key, place]) => {
    const box = document.querySelector(`#figure-${key} .chart`);
    const at = echarts.getInstanceByDom(box).convertToPixel({ seriesIndex: 0 }, place);
    return [at[0] + box.getBoundingClientRect().x, at[1] + box.getBoundingClientRect().y];
}"""


@pytest.fixture(scope="module")
def html():
    return render(pages.page())


def chart(page, key):
    """The drawing of a section, which is made when it comes into view."""
    box = page.locator(f"#figure-{key} .chart")
    box.scroll_into_view_if_needed()
    box.locator("svg").wait_for()
    return box


def hover(page, key, place):
    """What the tooltip says at a place of the figure, given in the numbers of its axes."""
    chart(page, key)
    x, y = page.evaluate(PIXEL, [key, place])
    page.mouse.move(x - 3, y - 3)
    page.mouse.move(x, y)
    tip = page.locator(f"#figure-{key} .tip")
    tip.wait_for()
    return tip.inner_text()


def test_every_figure_is_drawn_with_all_of_its_marks(open_page, html):
    with open_page(html) as page:
        for key in FIGURES:
            box = chart(page, key)
            for selector, count in (MARKS[key], MORE[key]):
                assert box.locator(selector).count() == count, (key, selector)


def test_figures_are_drawn_when_they_come_into_view(open_page, html):
    with open_page(html) as page:
        page.locator("#figure-acc svg").wait_for()
        assert page.locator("#figure-network svg").count() == 0
        chart(page, "network")


def test_a_line_breaks_where_its_value_is_zero_or_not_known_on_a_log_axis(open_page, html):
    with open_page(html) as page:
        box = chart(page, "consensus")
        line = box.locator("g[clip-path] > path[fill=none][stroke='#0072B2']").get_attribute("d")
        assert line.count("M") == 3  # two gaps
        assert "NaN" not in line
        texts = box.locator("text").all_text_contents()
        powers = [text for text in texts if len(text) > 2 and text.startswith("10")]
        assert powers == ["10⁻⁸", "10⁻⁶", "10⁻⁴", "10⁻²", "10⁰", "10²", "10⁴"]


def test_hovering_says_the_number(open_page, html):
    with open_page(html) as page:
        for key, (place, said) in SAID.items():
            shown = hover(page, key, place)
            assert [text for text in said if text not in shown] == [], shown


def test_hovering_over_a_link_says_what_went_each_way(open_page, html):
    with open_page(html) as page:
        shown = hover(page, "network", [0.5, 0.5])  # between agents 0 and 1
        assert "0 → 1" in shown
        assert "1 → 0" in shown
        assert shown.count("1 MB") == 2


def test_another_configuration_is_drawn_when_it_is_chosen(open_page, html):
    with open_page(html) as page:
        chart(page, "matrix")
        assert "95" in page.locator("#figure-matrix svg").text_content()
        page.locator("#figure-matrix summary").click()
        page.locator("#figure-matrix select").select_option(label="dpsgd, ring 4")
        after = page.locator("#figure-matrix svg").text_content()
        assert "75" in after
        assert "95" not in after
        assert page.locator("#figure-matrix tbody tr").first.inner_text().split() == ["apple", "75"]
        chart(page, "free")
        page.locator("#figure-free select").select_option(label="dpsgd, ring 4")
        assert page.locator("#figure-free h3").inner_text() == "free space of dpsgd, ring 4"


def test_links_one_way_have_arrows(open_page, html):
    with open_page(html) as page:
        box = chart(page, "network")
        lines = "path[stroke='#5c6670'], path[fill='#5c6670']"
        assert box.locator(lines).count() == 4
        page.locator("#figure-network select").select_option(label="ring 6, one way")
        assert box.locator(lines).count() == 12  # a head each


def test_a_configuration_has_one_colour_on_the_whole_page(open_page, html):
    with open_page(html) as page:
        for key in ("acc", "consensus"):
            lines = chart(page, key).locator(MARKS[key][0])
            strokes = [lines.nth(place).get_attribute("stroke") for place in range(3)]
            assert strokes == ["#0072B2", "#D55E00", "#009E73"]


def colours(page):
    style = "getComputedStyle(document.body)"
    return page.evaluate(f"{style}.backgroundColor"), page.evaluate(f"{style}.color")


def test_the_theme_button_changes_page_and_charts_and_is_remembered(open_page, html):
    with open_page(html) as page:
        box = chart(page, "acc")
        legend = f"text[fill='{FORE['light']}']"
        assert colours(page) == (BACK["light"], "rgb(27, 31, 36)")
        assert box.locator(legend).count() == 3
        page.locator("#theme").click()
        assert colours(page) == (BACK["dark"], "rgb(230, 233, 236)")
        assert box.locator(legend).count() == 0
        assert box.locator(f"text[fill='{FORE['dark']}']").count() == 3
        page.reload()
        assert colours(page)[0] == BACK["dark"]


def test_it_starts_dark_where_the_reader_likes_it_dark(open_page, html):
    with open_page(html, scheme="dark") as page:
        assert colours(page)[0] == BACK["dark"]
        assert chart(page, "acc").locator(f"text[fill='{FORE['dark']}']").count() == 3


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("make", [pages.page, pages.hostile])
def test_nothing_is_wider_than_the_window(open_page, make, width):
    with open_page(render(make()), width=width) as page:
        for box in page.locator("section.figure").all():
            box.scroll_into_view_if_needed()
            box.locator(".chart svg").wait_for()
            box.locator("summary").click()
        page.locator("#runs summary").click()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(OVERFLOW) == []


def test_a_narrower_window_draws_figures_anew(open_page, html):
    with open_page(html) as page:
        box = chart(page, "acc")
        page.set_viewport_size({"width": 500, "height": 900})
        page.wait_for_function("document.querySelector('#figure-acc svg').getAttribute('width') <= 500")
        assert box.locator(MARKS["acc"][0]).count() == 3


def as_text(cell):
    return "" if cell is None else f"{cell:.6g}" if isinstance(cell, float) else str(cell)


def near(shown, cell):
    """A number as Python and as JavaScript write it."""
    return shown == as_text(cell) or (shown and float(shown) == pytest.approx(float(cell), rel=1e-5))


def copied(page, key):
    page.locator(f"#figure-{key} summary").click()
    page.locator(f"#figure-{key} .copy").click()
    page.locator(f"#figure-{key} .copy", has_text="copied").wait_for()
    return [line.split("\t") for line in page.evaluate("navigator.clipboard.readText()").splitlines()]


def test_copy_gives_the_numbers_of_the_figure_separated_by_tabs(open_page, html):
    with open_page(html) as page:
        for key, section in FIGURES.items():
            lines, expected = copied(page, key), numbers(next(iter(section.figures.values())))
            assert lines[0] == list(expected.columns)
            for shown, row in zip(lines[1:], expected.rows, strict=True):
                assert all(near(*pair) for pair in zip(shown, row, strict=True)), (shown, row)
            assert page.locator(f"#figure-{key} tbody tr").count() == len(expected.rows)


def test_a_long_table_shows_its_first_rows_until_more_are_asked_for(open_page):
    long = pages.learned()._replace(ticks=(), series=[pages.Series("loss", range(1000), [x / 7 for x in range(1000)])])
    page_ = pages.page()._replace(sections=[pages.Section("acc", "Loss", {"": long})])
    with open_page(render(page_)) as page:
        rows = page.locator("#figure-acc tbody tr")
        assert rows.count() == 0  # not before it is opened
        page.locator("#figure-acc summary").click()
        page.locator("#figure-acc .more").wait_for()
        assert rows.count() == 200
        page.locator("#figure-acc .more").click()
        assert rows.count() == 1000


def test_printing_draws_everything_on_white_and_puts_it_back(open_page, html):
    with open_page(html, scheme="dark") as page:
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.locator(".chart svg").count() == len(FIGURES)
        assert page.locator(f"#figure-acc text[fill='{FORE['light']}']").count() == 3
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.locator(f"#figure-acc text[fill='{FORE['dark']}']").count() == 3
        assert len(page.pdf()) > 20_000


def test_hostile_names_are_text(open_page):
    with open_page(render(pages.hostile())) as page:
        assert page.locator("h1").inner_text() == pages.HOSTILE
        assert page.locator("main img").count() == 0
        assert page.locator("main b").count() == 0
        assert pages.HOSTILE in hover(page, "acc", [0, 90])
        assert page.locator("main img").count() == 0  # nor by a tooltip
        page.locator("#figure-acc summary").click()
        assert page.locator("#figure-acc tbody td").first.inner_text() == pages.HOSTILE
        assert chart(page, "matrix").locator(MARKS["matrix"][0]).count() == 15
        page.locator("#figure-matrix select").select_option(label=pages.LONG)
        assert page.locator("#figure-matrix option").all_inner_texts()[0] == pages.HOSTILE


def test_the_page_works_where_nothing_can_be_remembered(open_page, html):
    broken = "Object.defineProperty(window, 'localStorage', { get() { throw new Error('no storage'); } });"
    with open_page(html.replace("<head>", f"<head><script>{broken}</script>")) as page:
        page.locator("#theme").click()
        assert colours(page)[0] == BACK["dark"]
        chart(page, "acc")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_who_holds_what_is_shown_a_task_at_a_time_with_its_numbers(open_page, scheme):
    values = [[[12, 0, 3], [0, 7, 40]], [[5, 5, None], [1, 9, 0]]]
    about = ("Who holds what", "Images.", "class", "agent", list("abc"), list("01"))
    maps = {
        name: Heat("held", *about, rows, "images") for name, rows in zip(("1: apples", "2: pears"), values, strict=True)
    }
    page_ = pages.page()._replace(sections=[pages.Section("held", "Who holds which classes", maps, "task")])
    with open_page(render(page_), scheme=scheme) as page:
        cells = chart(page, "held").locator("text[fill='#fff'], text[fill='#111']")
        assert cells.all_text_contents() == ["12", "0", "3", "0", "7", "40"]
        assert page.locator("#figure-held .chooser span").inner_text() == "task"
        page.locator("#figure-held select").select_option(label="2: pears")
        assert cells.all_text_contents() == ["5", "5", "1", "9", "0"]
        page.locator("#figure-held summary").click()
        page.locator("#figure-held tbody tr").first.wait_for()
        rows = [row.inner_text().split() for row in page.locator("#figure-held tbody tr").all()]
        assert rows == [["0", "5", "5"], ["1", "1", "9", "0"]]
        shown = hover(page, "held", [1, 1])
        assert [text for text in ("9 images", "agent", "class", "b") if text not in shown] == []


PAINTED = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#1b1f24")
DRAWN = {  # kind: the elements that are its marks
    "lines": "g[clip-path] > path[fill=none]:not([stroke-width='0'])",
    "bars": ", ".join(f"path[fill='{colour}']:not([transform])" for colour in PAINTED),
    "heat": "path[fill^=rgb][stroke='#ffffff']",
    "network": "path[transform^='matrix(14']",
}


def known(values):
    return sum(value is not None for value in values)


EXPECTED = {  # kind: how many there should be
    "lines": lambda figure: sum(known(series["y"]) > 0 for series in figure["series"]),
    "bars": lambda figure: sum(known(series["y"]) for series in figure["series"]),
    "heat": lambda figure: sum(map(known, figure["values"])),
    "network": lambda figure: len(figure["places"]),
}


def test_every_figure_of_real_runs_has_its_marks(open_page, cli, recorded, tmp_path):
    done = cli("report", str(recorded), "--no-figures", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with open_page((tmp_path / "report" / "report.html").read_text(encoding="utf-8")) as page:
        sections = page.evaluate("JSON.parse(document.getElementById('data').textContent).sections")
        assert {figure["kind"] for section in sections for figure in section["figures"]} == set(DRAWN)
        for section in sections:
            box = page.locator(f"#figure-{section['key']}")
            box.scroll_into_view_if_needed()
            box.locator(".chart svg").wait_for()
            for place, figure in enumerate(section["figures"]):
                if place:
                    box.locator("select").select_option(index=place)
                marks = box.locator(".chart").locator(DRAWN[figure["kind"]]).count()
                assert marks == EXPECTED[figure["kind"]](figure) > 0, (section["key"], figure["of"])
