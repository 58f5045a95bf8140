"""A real browser for the tests of pages: Debian's Chromium, driven by Playwright."""

import os
import shutil
from contextlib import contextmanager

import pytest

HOW = "needs a browser: apt-get install chromium (or set LONGFIRE_BROWSER), and pip install playwright"
OPEN = []
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@contextmanager
def a_browser():
    """Started, and ended afterwards, or the one that is open: a process has one at a time. Where none is, a skip."""
    if OPEN:
        yield OPEN[0]
        return
    program = os.environ.get("LONGFIRE_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        pytest.skip(HOW)
    if program is None:
        pytest.skip(HOW)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        OPEN.append(browser)
        try:
            yield browser
        finally:
            OPEN.remove(browser)
            browser.close()


@contextmanager
def looking_at(browser, path, width=1200, height=900, scheme="light"):
    """The page in a file, opened; nothing may complain, and nothing but the file may be asked for."""
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    try:
        page.goto(path.as_uri())
        settle(page)
        yield page
        settle(page)
        assert said == []
        assert asked == [path.as_uri()]
    finally:
        page.close()


def settle(page):
    """Wait until what was asked for is drawn."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def curves(page, where):
    """The paths of the curves in a part of the page, by label."""
    found = page.eval_on_selector_all(
        f"{where} path.curve", "nodes => nodes.map(node => [node.dataset.label, node.getAttribute('d')])"
    )
    return dict(found)


def overflow(page):
    """By how many pixels the page is wider than its window."""
    return page.evaluate("() => document.documentElement.scrollWidth - window.innerWidth")
