"""Report and model card show names, answers and reasons as text; `tests/browser` looks at them in a browser."""

import html.parser

from eval.report.finished_run import FinishedRun
from eval.report.page.report import report
from eval.report.tables.table4 import markdown
from tests.faults.hostile_words import hostile_run


class Elements(html.parser.HTMLParser):
    """Counts scripts, and attributes that run something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.scripts = self.handlers = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.handlers += any(name.startswith("on") or (value or "").startswith("javascript:") for name, value in attrs)


def test_nothing_of_a_name_or_an_answer_runs(checkpoint, tmp_path):
    run = FinishedRun.read(hostile_run(tmp_path, checkpoint))
    page, table = Elements(report(run, {})), Elements(markdown(run.rows))
    assert (page.scripts, page.handlers) == (1, 0)  # its own
    assert (table.scripts, table.handlers) == (0, 0)
