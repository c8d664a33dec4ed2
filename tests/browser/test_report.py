"""The report in a browser: sorting, details; no request, no serious accessibility violation."""

import pytest

from eval.report import measurements
from eval.report import page as report_page
from eval.report.finished_run import FinishedRun
from tests import benchmark_stand_in as stand_in
from tests.browser.conftest import DESKTOP, serious_violations
from tests.eval.report.stand_in import write_run


PHONE = {"width": 390, "height": 844}

pytestmark = pytest.mark.slow


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
