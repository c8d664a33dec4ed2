"""Evaluate checkpoints on the benchmarks of Table 4: `python -m eval.suite --run DIR --data ROOT --models A=PATH`.

Writes harness output, answer logs, run.json and scores.json under the run's folder. Run again, it continues.
"""

import sys

from rich.console import Console

from eval.options import Options, parse_suite
from eval.plan.evaluations import plan_evaluations
from eval.plan.models import choose_baseline, read_models
from eval.run.schedule import find_devices, only_writer, train_and_evaluate
from eval.score.results import write_results
from modeling_aligned_llava.errors import run_main


def main() -> None:
    args = parse_suite()
    options = Options.of(args)
    models = read_models(args.models, args.backbone, args.seed)
    jobs = plan_evaluations(options, models)
    baseline = choose_baseline(models, args.baseline)
    console = Console(stderr=True)
    with only_writer(options.run):
        devices = find_devices(options.jobs, options.device)
        ok = train_and_evaluate(jobs, [], options.folder / "logs", devices, console)
        write_results(options, models, jobs, baseline)
    console.print(f"scores: {options.folder / 'scores.json'}")
    if options.limit is not None:
        console.print(f"--limit {options.limit}: a trial, no result; tables refuse these scores")
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    run_main(main)
