"""The report page of a finished run: `python -m eval.report.page RUN`."""

import argparse
from pathlib import Path

from eval.report.page.report import write_report
from modeling_aligned_llava.errors import run_main


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m eval.report.page", description=__doc__.split("\n\n")[0])
    parser.add_argument("run", type=Path, help="folder of the run, e.g. results/tinyworld")
    write_report(parser.parse_args().run)


if __name__ == "__main__":
    run_main(main)
