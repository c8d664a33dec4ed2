"""Every table and the figure of a finished run, as files and on the terminal."""

import sys
from pathlib import Path

from rich.console import Console

from eval.report.tables.differences import draw_differences
from eval.report.tables.footnotes import departures
from eval.report.tables.table4 import comma_separated, latex, markdown, read_scores, show
from modeling_aligned_llava.loading.files import read_json, write_text


LINE = 100  # columns of a terminal


def write_tables(run: Path) -> None:
    """Write the tables and the figure of a finished run, and show Table 4.

    Raises:
        UserError: the run has no scores.
    """
    rows = read_scores(run)
    further = departures(read_json(run / "run.json") or {})
    written = {
        "md": markdown(rows, further),
        "tex": latex(rows, further),
        "csv": comma_separated(rows),
    }
    for suffix, text in written.items():
        write_text(run / "tables" / f"table4.{suffix}", text)
    draw_differences(rows, run / "figures" / "table4.svg")
    show(rows, Console(width=min(Console().width, LINE) if sys.stdout.isatty() else LINE))
    print(f"tables, with the paper's: {run / 'tables'}, figure: {run / 'figures' / 'table4.svg'}")  # noqa: T201
