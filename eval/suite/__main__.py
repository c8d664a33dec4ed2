"""Evaluate checkpoints on the benchmarks of Table 4: `python -m eval.suite --run DIR --data ROOT --models A=PATH`.

Writes harness output, answer logs, run.json and scores.json under the run's folder. Run again, it continues.
"""

import sys

from rich.console import Console

from eval.engine.pool import open_pool
from eval.suite.options import Options
from eval.suite.plan import baseline_of, describe_run, parser, plan, read_models, write_scores
from eval.suite.run import only_writer, train_and_evaluate
from modeling_aligned_llava.errors import run_main
from modeling_aligned_llava.loading.files import write_json


def main() -> None:
    args = parser().parse_args()
    options = Options.of(args)
    folder = options.folder
    models = read_models(args.models, args.backbone, args.seed)
    jobs = plan(options, models)
    baseline = baseline_of(models, args.baseline)
    console = Console(stderr=True)
    with only_writer(options.run):
        ok = train_and_evaluate(jobs, [], folder / "logs", open_pool(options.jobs, options.device), console)
        write_json(folder / "run.json", describe_run(options, models, jobs))
        write_scores(options, models, jobs, baseline)
    console.print(f"scores: {folder / 'scores.json'}")
    if options.limit is not None:
        console.print(f"--limit {options.limit}: a trial, no result; tables refuse these scores")
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    run_main(main)
