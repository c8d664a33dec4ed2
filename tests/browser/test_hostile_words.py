"""Names, answers and questions that hold tags, in a browser: they are shown, and nothing in them runs or loads."""

import json

import pytest

from eval.report import measurements
from eval.report.finished_run import FinishedRun
from eval.report.page import report
from tests.benchmark_stand_in import write_llava
from tests.eval.report.stand_in import write_run


pytestmark = pytest.mark.slow

NAME = '"><img src=x onerror=document.title=1337>'
ANSWER = f"<script>document.title=1337</script>{NAME}"


def hostile_run(folder, checkpoint):
    """A finished run whose folder, models, answers and reasons hold tags."""
    run = write_run(folder / NAME, checkpoint, names=("baseline", "norm"), norm=f"ValueError: {ANSWER}")
    for name in ("scores.json", "run.json"):
        text = (run / name).read_text().replace('"norm"', json.dumps(NAME))
        (run / name).write_text(text.replace('"toy"', json.dumps(f"toy {NAME}")))
    (run / "checkpoints" / "norm").rename(run / "checkpoints" / NAME)
    return run


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
    assert page.evaluate("document.title") != "1337"
    assert page.locator("img[onerror], img[src=x]").count() == 0
    assert not [url for url in page.requested if url.endswith("/x")]
