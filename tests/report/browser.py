"""A real browser for testing pages: Chromium, driven by Playwright."""

import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

INSTALL = "needs a browser: apt-get install chromium (or set LONGFIRE_BROWSER), and pip install playwright"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPEN = []


def without_browser():
    """Skip the test, or fail it with CI_BROWSER=required."""
    (pytest.fail if os.environ.get("CI_BROWSER") == "required" else pytest.skip)(INSTALL)


@contextmanager
def a_browser():
    """The open browser, or a new one that is closed afterwards; only one per process."""
    if OPEN:
        yield OPEN[0]
        return
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        without_browser()
    with sync_playwright() as playwright:
        installed = filter(None, map(shutil.which, NAMES))
        program = os.environ.get("LONGFIRE_BROWSER") or next(installed, playwright.chromium.executable_path)
        if not Path(program).exists():
            without_browser()
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        OPEN.append(browser)
        try:
            yield browser
        finally:
            OPEN.remove(browser)
            browser.close()


@contextmanager
def looking_at(browser, path, width=1200, height=900, scheme="light"):
    """Open a file. Fails on console output and on requests for anything but the file."""
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    messages, requests = [], []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    try:
        page.goto(path.as_uri())
        settle(page)
        yield page
        settle(page)
        assert messages == []
        assert requests == [path.as_uri()]
    finally:
        page.close()


def settle(page):
    """Wait until pending changes are drawn."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def curves(page, where):
    """The SVG paths of the curves in part of the page, by label."""
    found = page.eval_on_selector_all(
        f"{where} path.curve", "nodes => nodes.map(node => [node.dataset.label, node.getAttribute('d')])"
    )
    return dict(found)


def overflow(page):
    """By how many pixels the page is wider than its window."""
    return page.evaluate("() => document.documentElement.scrollWidth - window.innerWidth")
