"""Run fault campaigns and record what they found.

    python -m tests.faults --all --out benchmarks/results/faults/all.json

Every input is drawn from `--seed`. Finished cases are kept in `--folder`: the same command continues, and runs
failed cases again. `--jobs` campaigns run side by side. The exit status is 1 if a case failed.
"""

import argparse
import multiprocessing
import sys
from concurrent.futures import Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import psutil
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.record import environment, write
from modeling_aligned_llava.errors import Stopped, run_main
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
from tests.faults.campaign import recorded, run_campaign
from tests.together import kill_each


MODULES = (  # the longest first
    *(determinism, kills, two_at_once, soak, damaged_images, damaged_rows),
    *(mutated_files, hub_trouble, numbers, disk, security),
)
BY_NAME = {module.CAMPAIGN.name: module.CAMPAIGN for module in MODULES}


def show(futures: dict[str, "Future[dict[str, Any]]"], seed: int, folder: Path) -> None:
    """A bar for each campaign until all have ended, and each failure once."""
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    told = set()
    with Progress(*columns, TimeRemainingColumn()) as progress:
        bars = {name: progress.add_task(name, total=len(list(BY_NAME[name].cases(seed)))) for name in futures}
        running = True
        while running:
            running = bool(wait(futures.values(), timeout=1).not_done)
            for name, bar in bars.items():
                entries = recorded(BY_NAME[name], seed, folder)
                progress.update(bar, completed=len(entries))
                for line in [f"{name}/{entry['case']}: {entry['failure']}" for entry in entries if entry["failure"]]:
                    if line not in told:
                        progress.console.print(line, markup=False)
                        told.add(line)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--all", action="store_true", help="every campaign")
    chosen.add_argument("--only", nargs="+", choices=sorted(BY_NAME), help="these campaigns")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("results/faults"), help="records and failed cases")
    parser.add_argument("--jobs", type=int, default=2, help="campaigns side by side")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(args.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        names = [*BY_NAME] if args.all else args.only
        futures = {name: pool.submit(run_campaign, BY_NAME[name], args.seed, args.folder) for name in names}
        try:
            show(futures, args.seed, args.folder)
        except Stopped:  # else the pool waits for the running campaigns
            kill_each(psutil.Process().children(recursive=True))
            raise
    found = {name: future.result() for name, future in futures.items()}
    write({"benchmark": "faults", **environment(), "seed": args.seed, "campaigns": found}, args.out)
    sys.exit(any(each["failures"] for each in found.values()))


if __name__ == "__main__":
    run_main(main)
