"""A real browser, offline: Debian's chromium, driven by playwright."""

import shutil
from contextlib import contextmanager
from typing import NamedTuple

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class Opened(NamedTuple):
    """A page in the browser, and all that it should never have done."""

    page: object
    complaints: list[str]  # errors on the console or thrown
    requests: list[str]  # anything but the file itself


@pytest.fixture(scope="module")  # not longer: while it is open, playwright runs a loop that other tests would meet
def browser():
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("needs chromium (Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def open_page(browser, tmp_path_factory):
    """Opens HTML from a file, as a reader does; afterwards, nothing may have gone wrong."""
    folder = tmp_path_factory.mktemp("pages")

    @contextmanager
    def opened(html, width=1280, scheme="light"):
        path = folder / "report.html"
        path.write_text(html, encoding="utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, permissions=["clipboard-read"]
        )
        context.set_offline(True)
        page = context.new_page()
        out = Opened(page, [], [])
        page.on("console", lambda message: out.complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: out.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (out.complaints.append(dialog.message), dialog.dismiss()))

        def asked(route):
            if route.request.url == path.as_uri():
                route.continue_()
            else:
                out.requests.append(route.request.url)
                route.abort()

        page.route("**/*", asked)
        try:
            page.goto(path.as_uri())
            yield page
            assert out.complaints == []
            assert out.requests == []
        finally:
            context.close()

    return opened
