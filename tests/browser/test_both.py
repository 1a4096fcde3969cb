"""What a reader has to see at once, in Chromium and in Firefox, on a desk and on a phone."""

import shutil
import time

import pytest

from codecl.report.configurations import gather
from codecl.report.page import write
from tests.browser.firefox import NAMES, Firefox
from tests.problems import write_metrics

HEIGHT = 900
WATCHED = "<head><script>window.wrong = []; addEventListener('error', (event) => wrong.push(event.message));</script>"
ROWS = """() => [...document.querySelectorAll('.scores tbody tr:not(.group)')].map((row) => {
    row.scrollIntoView({ block: 'center' });
    const frame = row.closest('.scroll').getBoundingClientRect();
    const seen = (one) => {
      const { left, right, top, bottom } = one.getBoundingClientRect();
      const inside = left >= Math.max(frame.left, 0) && right <= Math.min(frame.right, innerWidth) + 0.5;
      const shown = document.elementFromPoint((left + right) / 2, (top + bottom) / 2);
      return inside && top >= 0 && bottom <= innerHeight && right > left && (one === shown || one.contains(shown));
    };
    const [status, acc] = [row.querySelector('.status'), row.querySelector('td[data-column^=ACC]')];
    return { name: row.querySelector('.name').textContent, status: status.textContent, acc: acc.textContent.trim(),
             seen: seen(status) && [...acc.children].every(seen), unfinished: row.closest('tbody').className };
})"""
DRAWN = """() => [...document.querySelectorAll('section.figure')].every((box) => {
    box.scrollIntoView();
    return box.querySelector('.chart svg path');
})"""

TERMS = "() => Array.from(document.querySelectorAll('dt'), (one) => one.innerText)"


class Chromium:
    """The same few verbs as of Firefox."""

    def __init__(self, browser):
        self._page = browser.new_page()
        self.evaluate = self._page.evaluate
        self.close = self._page.close

    def open(self, path, width, height):
        self._page.set_viewport_size({"width": width, "height": height})
        self._page.goto(path.as_uri())


def start_firefox(tmp_path_factory):
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("needs firefox (Debian: apt-get install firefox-esr)")
    return Firefox(path, tmp_path_factory.mktemp("firefox") / "profile")


@pytest.fixture(scope="module", params=["chromium", "firefox"])
def window(request, tmp_path_factory):
    if request.param == "firefox":
        opened = start_firefox(tmp_path_factory)
    else:
        opened = Chromium(request.getfixturevalue("browser"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Runs of which only scores were kept. The one that was stopped has the best of them."""
    out = tmp_path_factory.mktemp("scores")
    labels = {"benchmark": "split-cifar100", "agents": 8, "topology": "ring", "tasks": 10}
    ended = [("codec", 1, 54.31, "complete"), ("codec", 2, 53.11, "complete"), ("dpsgd", 1, 31.4, "degraded")]
    for method, seed, acc, status in [*ended, ("codec", 3, 96.5, "partial")]:
        rows = [[acc] * (task + 1) + [None] * (9 - task) for task in range(2 if status == "partial" else 10)]
        scores = {"acc": acc, "bwt": -1.2, "accuracy_matrix": rows, "free_by_task": [{"conv1": 27}] * len(rows)}
        folder = out / "runs" / f"split-cifar100-{method}-ring8" / f"seed-{seed}"
        traffic = {"cc_by_task": [1.0] * len(rows)}
        write_metrics(folder, traffic, method=method, seed=seed, status=status, **labels, **scores)
    write(gather([out / "runs"]), out, beside_paper=None, with_figures=False)
    page = out / "report.html"
    page.write_text(page.read_text(encoding="utf-8").replace("<head>", WATCHED, 1), encoding="utf-8")
    return page


WIDTHS = pytest.mark.parametrize("width", [1280, 390])


@WIDTHS
def test_status_and_accuracy_are_on_the_screen(window, report, width):
    window.open(report, width, HEIGHT)
    assert window.evaluate("() => innerWidth") == width
    rows = window.evaluate(ROWS)
    assert [row["status"] for row in rows] == ["complete", "degraded", "partial: 2 of 10 tasks"]
    assert [row["acc"] for row in rows] == ["53.71 ± 0.85", "31.40", "96.50"], "the stopped one is in no mean"
    assert [row["seen"] for row in rows] == [True] * 3, rows
    assert [row["unfinished"] for row in rows] == ["", "", "unfinished"], "below the others"
    assert {"ACC", "BWT", "cc", "kept", "Δ"} <= set(window.evaluate(TERMS))


@WIDTHS
def test_nothing_is_claimed_without_its_runs_and_every_figure_is_drawn(window, report, width):
    window.open(report, width, HEIGHT)
    text = window.evaluate("() => document.querySelector('main').innerText").replace("\xa0", " ")
    headline = text[: text.index("Results")]
    assert "codec ends at 53.7 % on its 10 tasks, with 1.2 points forgotten" in headline
    assert "dpsgd (degraded) 31.4 %" in headline
    assert "96.5" not in headline
    assert "codec-full" not in text
    assert "It grows" not in text, "no task sent less than the first"
    until = time.monotonic() + 20
    while not window.evaluate(DRAWN) and time.monotonic() < until:
        time.sleep(0.1)
    assert window.evaluate(DRAWN)
    assert window.evaluate("() => [wrong.length, document.documentElement.scrollWidth <= innerWidth]") == [0, True]
