"""The report in headless Chromium: sorting, details; no request, no serious accessibility violation."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from eval.report import measurements
from eval.report import page as report_page
from eval.report.finished_run import FinishedRun
from tests import benchmark_stand_in as stand_in
from tests.eval.report.stand_in import write_run


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
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 900}
SEVERE = ("serious", "critical")

pytestmark = pytest.mark.slow


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


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The page of a run with two measured models, a bare language model and a failed task."""
    root = tmp_path_factory.mktemp("report")
    checkpoint = stand_in.write_llava(root / "tiny")
    folder = write_run(root / "run", checkpoint, names=("baseline", "norm", "lm"), lm="ValueError: no answer")
    run = FinishedRun.read(folder)
    measured = measurements.measure(run)
    measured["lm"] = {"error": "a text-only model"}
    path = folder / "report.html"
    path.write_text(report_page.report(run, measured), encoding="utf-8")
    return path.as_uri()


def unfolded(page, report):
    page.goto(report)
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")


def column(page, table, number):
    """The first lines of a column's cells; the table is named by the id of its caption."""
    cells = page.locator(f"table:has(#{table}-caption) tbody tr > :nth-child({number})")
    return [text.split("\n")[0] for text in cells.all_inner_texts()]


def test_tables_sort_by_number_and_by_name_and_say_so(page, report):
    unfolded(page, report)
    head = page.locator("table:has(#measured-caption) th", has=page.get_by_role("button", name="MMLU"))
    by_file = column(page, "measured", 1)
    assert by_file == ["baseline", "norm", "lm"] and head.get_attribute("aria-sort") == "none"
    head.get_by_role("button").click()
    numbers = [float(text.split()[0]) for text in column(page, "measured", 10)]
    assert numbers == sorted(numbers, reverse=True) and head.get_attribute("aria-sort") == "descending"
    head.get_by_role("button").press("Enter")
    assert column(page, "measured", 1)[-1] == "baseline" and head.get_attribute("aria-sort") == "ascending"
    pope = page.locator("table:has(#measured-caption) th").get_by_role("button", name="POPE")
    for _ in range(2):
        pope.click()
        assert column(page, "measured", 1)[-1] == "lm"  # it has no number
    assert head.get_attribute("aria-sort") == "none"
    page.locator("table:has(#measured-caption) th").get_by_role("button", name="model").click()
    assert column(page, "measured", 1) == ["baseline", "lm", "norm"]


def test_what_is_behind_a_number_comes_by_pointer_keyboard_and_touch_and_goes_with_escape(page, report):
    unfolded(page, report)
    cell = page.get_by_role("button", name="difference").first
    tip = page.locator("#tip")
    assert not tip.is_visible() and "95 % interval" in cell.text_content()
    cell.hover()
    words = tip.inner_text()
    assert "n = 12" in words and "difference " in words and "p = " not in words  # one seed
    page.mouse.move(0, 0)
    tip.wait_for(state="hidden")
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    cell.focus()  # which scrolls it into view
    assert tip.is_visible()
    assert 0 <= tip.bounding_box()["y"] < DESKTOP["height"]
    page.keyboard.press("Escape")
    assert not tip.is_visible()
    cell.click()
    assert tip.is_visible()
    box = tip.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= DESKTOP["width"]


def test_the_keyboard_reaches_the_content_and_scrolls_tables(page, report):
    unfolded(page, report)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.set_viewport_size(PHONE)
    region = page.get_by_role("group", name="Every number of this run")
    region.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(500)  # scrolling is animated
    assert region.evaluate("(region) => region.scrollLeft") > 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_no_serious_violation_no_request_and_no_sideways_scrolling(page, report, size, scheme):
    page.set_viewport_size(size)
    page.emulate_media(color_scheme=scheme)
    unfolded(page, report)
    assert serious_violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    stacked = page.get_by_role("group", name="Measured in this run")
    assert size == DESKTOP or stacked.evaluate("(table) => table.scrollWidth <= table.clientWidth")
    assert [url for url in page.requested if not url.startswith("data:")] == [report]
