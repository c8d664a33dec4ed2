"""Tables, figure and report page of a finished run: `python -m eval.report RUN`."""

import argparse
from pathlib import Path

from eval.report.finished_run import FinishedRun
from eval.report.page import write_report
from eval.tables.table4 import write_tables
from modeling_aligned_llava.errors import run_main


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m eval.report", description=__doc__.split(":")[0])
    parser.add_argument("run", type=Path, help="folder of the run, e.g. results/tinyworld")
    run = FinishedRun.read(parser.parse_args().run)
    write_tables(run.table, run.folder)
    write_report(run)


if __name__ == "__main__":
    run_main(main)
