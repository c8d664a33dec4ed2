"""Names, answers and questions that hold tags, in a browser: they are shown, and nothing in them runs or loads."""

import subprocess
import sys

import pytest
from PIL import Image

from eval.report.finished_run import FinishedRun
from eval.report.page import measurements
from eval.report.page.report import report
from tests import REPOSITORY
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


@pytest.fixture
def address(tmp_path):
    """Where a demo answers whose model, image and question have tags in their names."""
    pytest.importorskip("gradio", reason="gradio is not installed (extra `demo`)")
    write_llava(tmp_path / "model")
    (tmp_path / NAME).mkdir()
    Image.new("RGB", (96, 96), "red").save(tmp_path / NAME / f"{NAME}.png")
    command = [sys.executable, "-m", "tests.browser.hostile_demo", str(tmp_path)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)  # noqa: S603
    line = process.stdout.readline()
    assert "http" in line, "the demo did not start"
    yield line.split()[4]
    process.terminate()
    process.wait(30)


def test_the_demo(address, page):
    page.goto(address)
    page.locator("#examples .thumbnail-item").first.click(timeout=60_000)
    playwright.expect(page.locator("#question textarea")).to_have_value(ANSWER)
    page.locator("#ask").click()
    playwright.expect(page.locator("#answer-0 textarea")).to_have_value(ANSWER, timeout=60_000)
    playwright.expect(page.locator("#overlay-0 figcaption")).to_contain_text(NAME, timeout=60_000)
    playwright.expect(page.locator("#norms table")).to_contain_text(NAME, timeout=60_000)
    playwright.expect(page.get_by_role("heading", name=NAME)).to_be_visible()
    words = page.locator("#words-0 input[type=radio]")
    words.nth(words.count() - 1).check()
    playwright.expect(page.locator("#overlay-0 img")).to_be_visible()
    assert_harmless(page)
