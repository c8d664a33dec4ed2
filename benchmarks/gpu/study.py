"""The study's grids at the full speed of this machine: seconds of every cell. Finished cells are not repeated.

    python -m benchmarks.gpu.study d_smollm2 a_smollm2 --minutes 8.5

After `--minutes` it ends with what is left to do; the same command continues, within a cell too.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.record import environment, write
from eval.study.analysis import interval
from eval.study.grid import Study, read_study
from eval.study.records import Records, final_loss
from modeling_aligned_llava.errors import UserError, run_main


STUDIES = Path(__file__).parents[2] / "configuration" / "study"
TOY = Path(__file__).parent / "toy_study.yaml"


def run_study(files: list[Path], folder: Path, work: Path, minutes: float) -> None:
    """Run `eval.study` for at most `minutes`.

    Raises:
        UserError: it failed.
    """
    command = [sys.executable, "-m", "eval.study", *map(str, files), "--folder", str(folder), "--work", str(work)]
    process = subprocess.Popen(command)  # noqa: S603
    try:
        code = process.wait(minutes * 60)
    except subprocess.TimeoutExpired:
        process.terminate()  # it ends its cells, which have checkpoints
        process.wait()
        return
    if code:
        raise UserError(f"eval.study ended with exit status {code}")


def cells(study: Study, folder: Path) -> dict[str, Any]:
    """Seconds and held-out losses of the finished cells.

    Raises:
        UserError: some are not finished.
    """
    found = Records(folder, study.name).read()
    if len(found) < len(study.cells):
        raise UserError(f"{study.name}: {len(found)} of {len(study.cells)} cells; the same command continues")
    losses: dict[str, list[float]] = {}
    for record in found:
        losses.setdefault(record["arm"], []).append(final_loss(record))
    return {
        "cells": len(found),
        "seconds": {f"{record['arm']}, seed {record['seed']}": record["seconds"] for record in found},
        "losses": {arm: interval(each) for arm, each in losses.items()},
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", help="files of configuration/study, without .yaml")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--folder", type=Path, default=Path("benchmarks/results/study"), help="of the records")
    parser.add_argument("--work", type=Path, default=Path("results/study"), help="of training")
    parser.add_argument("--toy", action="store_true", help="two cells of a few steps in a temporary folder")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder, work = (Path(temporary), Path(temporary)) if args.toy else (args.folder, args.work)
        files = [TOY] if args.toy else [STUDIES / f"{name}.yaml" for name in args.studies]
        run_study(files, folder, work, args.minutes)
        studies = {study.name: cells(study, folder) for study in map(read_study, files)}
    write({"benchmark": "study", **environment(), "studies": studies}, args.out)


if __name__ == "__main__":
    run_main(main)
