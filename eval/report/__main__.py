"""Tables, figure and report page of a finished run: `python -m eval.report RUN`."""

import argparse
from pathlib import Path

from eval.report.page import write_report
from eval.tables.write_tables import write_tables
from modeling_aligned_llava.errors import run_main


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m eval.report", description=__doc__.split(":")[0])
    parser.add_argument("run", type=Path, help="folder of the run, e.g. results/tinyworld")
    run = parser.parse_args().run
    write_tables(run)
    write_report(run)


if __name__ == "__main__":
    run_main(main)
