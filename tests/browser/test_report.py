"""The report of real runs, opened as its reader does: all that was recorded is drawn."""

import pytest

TINY = ("--set", "train.epochs=2", "--set", "data.tasks=2", "--quiet", "--json")
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


@pytest.fixture(scope="module")
def html(cli, tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    for arguments in (("run", *TINY, "--method", "codec,dpsgd"), ("report", "runs", "--no-figures")):
        done = cli(*arguments, cwd=folder, OMP_NUM_THREADS="1")
        assert done.returncode == 0, done.stderr
    return (folder / "report" / "report.html").read_text(encoding="utf-8")


def test_every_figure_of_real_runs_has_its_marks(open_page, html):
    with open_page(html) as page:
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
