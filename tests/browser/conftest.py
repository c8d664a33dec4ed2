"""Headless Chromium for the tests of pages: a `page` that fails a test on console errors, and axe-core's verdict."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest


# Chromium would fetch updates and lists of its own; what a test sees must be the page's requests alone.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DESKTOP = {"width": 1280, "height": 900}
SEVERE = ("serious", "critical")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's Chromium, started once; the tests are skipped where it or Playwright is absent."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra `dev`)")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no chromium on this machine (Debian: apt install chromium)")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page of its own, wide as a desktop's. `page.requested` lists the URLs asked for, in order.

    A console error or an uncaught exception in the page fails the test when it ends.
    """
    context = browser.new_context(viewport=DESKTOP)
    opened = context.new_page()
    errors: list[str] = []
    opened.requested = []
    opened.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("request", lambda request: opened.requested.append(request.url))
    yield opened
    context.close()
    assert not errors, f"the page reported errors: {errors}"


def serious_violations(page: Any) -> list[str]:
    """What axe-core finds serious or critical on the page as it is now: `rule: where`, one a place."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        f"{violation['id']}: {node['target']} {node.get('failureSummary', '')}"
        for violation in found
        if violation["impact"] in SEVERE
        for node in violation["nodes"]
    ]
