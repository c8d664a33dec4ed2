"""Tables and the figure of a finished run: `python -m eval.report.tables RUN`."""

import argparse
from pathlib import Path

from rich.console import Console

from eval.report.tables import subtasks
from eval.report.tables.differences import draw_differences
from eval.report.tables.table4 import WRITERS, read_scores, show, table_lines
from eval.run.files import write_text
from modeling_aligned_llava.errors import run_main


def write(run: Path) -> None:
    """Write the tables and the figure of a finished run, and show the table.

    Raises:
        UserError: the run has no scores.
    """
    rows = read_scores(run)
    for suffix, writer in WRITERS.items():
        write_text(run / "tables" / f"table4.{suffix}", writer(rows))
    parts = subtasks.breakdown(table_lines(rows))
    for suffix, write in subtasks.WRITERS.items() if len(parts) else ():
        write_text(run / "tables" / f"subtasks.{suffix}", write(parts))
    draw_differences(rows, run / "figures" / "table4.svg")
    console = Console()
    show(rows, console if console.width >= 120 else Console(width=150))
    console.print(f"tables: {run / 'tables'}, figure: {run / 'figures' / 'table4.svg'}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m eval.report.tables", description=__doc__.split("\n\n")[0])
    parser.add_argument("run", type=Path, help="folder of the run, e.g. results/tinyworld")
    write(parser.parse_args().run)


if __name__ == "__main__":
    run_main(main)
