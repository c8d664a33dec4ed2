"""Evaluate checkpoints on the benchmarks of Table 4: `python -m eval.suite --run DIR --data ROOT --models A=PATH`.

Writes harness output, answer logs, run.json and scores.json under the run's folder. Run again, it continues.
"""

import sys

from rich.console import Console

from eval.data import mirror
from eval.data.benchmarks import BY_KEY
from eval.engine.pool import open_pool
from eval.suite.estimate import TRIAL, forget_untimed, show_estimate
from eval.suite.options import Options
from eval.suite.plan import baseline_of, collect, describe_run, parser, plan, read_models, write_scores
from eval.suite.run import only_writer, train_and_evaluate
from modeling_aligned_llava.errors import run_main
from modeling_aligned_llava.loading.files import write_json


def main() -> None:
    args = parser().parse_args()
    options = Options.of(args, limit=args.limit or (TRIAL if args.estimate else None))
    folder = options.folder
    models = read_models(args.models, args.backbone, args.seed)
    jobs = plan(options, models)
    baseline = baseline_of(models, args.baseline)
    console = Console(stderr=True)
    with only_writer(options.run), open_pool(options.jobs, options.device) as pool:
        if args.estimate:
            forget_untimed(jobs)
        ok, workers = train_and_evaluate(jobs, [], folder / "logs", pool, console), pool.slots()
        write_json(folder / "run.json", describe_run(options, models, jobs))
        write_scores(options, models, jobs, baseline)
    console.print(f"scores: {folder / 'scores.json'}")
    if args.estimate:
        rows = {key: mirror.count_rows(options.data, BY_KEY[key]) for key in options.tasks}
        show_estimate(collect(models, jobs), rows, workers, console)
    if options.limit is not None:
        console.print(f"--limit {options.limit}: a trial, no result; tables refuse these scores")
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    run_main(main)
