"""Names, answers and questions that hold tags, in a browser: they are shown, and nothing in them runs or loads."""

import pytest

from eval.report.finished_run import FinishedRun
from eval.report.page import measurements
from eval.report.page.report import report
from tests.benchmark_stand_in import write_llava
from tests.faults.hostile_words import ANSWER, NAME, hostile_run


playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra `dev`)")
pytestmark = pytest.mark.slow


def assert_harmless(page) -> None:
    assert page.evaluate("document.title") != "1337"
    assert page.locator("img[onerror], img[src=x]").count() == 0
    assert not [url for url in page.requested if url.endswith("/x")]


def test_the_report(page, tmp_path):
    run = FinishedRun.read(hostile_run(tmp_path, write_llava(tmp_path / "model")))
    path = run.folder / "report.html"
    path.write_text(report(run, measurements.measure(run)), encoding="utf-8")
    page.goto(path.as_uri())
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    for button in page.get_by_role("button").all():
        if button.is_visible():
            button.click()
    text = page.locator("body").inner_text()
    assert NAME in text and ANSWER in text
    assert_harmless(page)
