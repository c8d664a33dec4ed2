"""Run and analyse studies: `python -m research.study research/studies/e_targets.yaml`.

Each is a grid of method, seed and settings (docs/contributing.md). Records, tables and figures are written under
--folder, in a folder named after the file; --analyse makes tables and figures again from the records. Run again, it
continues.
"""

import argparse
import os
from pathlib import Path

from rich.console import Console

from eval.run.schedule import find_devices
from modeling_aligned_llava.errors import run_main
from research.study.analysis import analyse
from research.study.cells import StudyRun
from research.study.figures import draw_figures
from research.study.grid import Study, read_study
from research.study.records import Records


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m research.study", description=__doc__.split("\n\n")[0])
    parser.add_argument("studies", nargs="+", type=Path, metavar="CONFIG.yaml", help="files of research/studies")
    parser.add_argument(
        "--folder", type=Path, default=Path("benchmarks/results/study"), help="records (default %(default)s)"
    )
    parser.add_argument("--work", type=Path, default=Path("results/study"), help="training (default %(default)s)")
    parser.add_argument("--jobs", type=int, help="cells side by side (default: one a GPU, or 2 without)")
    parser.add_argument("--device", default="auto", help="auto (a GPU if there is one), cpu, cuda")
    parser.add_argument("--analyse", action="store_true", help="only make tables and figures, from the records")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the cells: one core each
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    studies = sorted(
        (read_study(path, not args.analyse) for path in args.studies), key=lambda study: study.rates_from is not None
    )
    for study in studies:
        if not args.analyse:
            devices = find_devices(args.jobs, args.device)
            StudyRun(study, args.folder, args.work, args.device).run(devices, Console(stderr=True))
        write_analysis(study, args.folder)


def write_analysis(study: Study, folder: Path) -> None:
    """Tables and figures of a study, from its records."""
    records = Records(folder, study.name)
    draw_figures(study, records, analyse(study, records))


if __name__ == "__main__":
    run_main(main)
