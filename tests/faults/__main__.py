"""Run fault campaigns and record what they found.

    python -m tests.faults --all --out benchmarks/results/faults.json

Every input is drawn from `--seed`. Finished cases are kept in `--folder`: the same command continues, and runs
failed cases again. The exit status is 1 if a case failed.
"""

import argparse
import sys
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.record import environment, write
from modeling_aligned_llava.errors import run_main
from tests.faults import (
    damaged_images,
    damaged_rows,
    determinism,
    disk,
    hub_trouble,
    kills,
    mutated_files,
    numbers,
    security,
    soak,
    two_at_once,
)
from tests.faults.campaign import run_campaign


MODULES = (
    *(numbers, security, hub_trouble, disk, damaged_images, damaged_rows, mutated_files),
    *(kills, two_at_once, soak, determinism),
)
BY_NAME = {module.CAMPAIGN.name: module.CAMPAIGN for module in MODULES}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--all", action="store_true", help="every campaign")
    chosen.add_argument("--only", nargs="+", choices=sorted(BY_NAME), help="these campaigns")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("results/faults"), help="records and failed cases")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, TimeRemainingColumn()) as progress:
        found = {
            name: run_campaign(BY_NAME[name], args.seed, args.folder, progress)
            for name in ([*BY_NAME] if args.all else args.only)
        }
    write({"benchmark": "faults", **environment(), "seed": args.seed, "campaigns": found}, args.out)
    sys.exit(any(each["failures"] for each in found.values()))


if __name__ == "__main__":
    run_main(main)
