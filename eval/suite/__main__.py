"""Evaluate checkpoints on the benchmarks of Table 4: `python -m eval.suite --run DIR --data ROOT --models A=PATH`.

Writes harness output, answer logs, run.json and scores.json under the run's folder. Run again, it continues.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from eval.data.benchmarks import BENCHMARKS, BY_KEY, EXTRA_BENCHMARKS
from eval.run.files import write_json
from eval.scoring import scores
from eval.suite.plan import collect, describe_run, plan
from eval.suite.runner import Runner, only_writer, places
from modeling_aligned_llava.errors import UserError, run_main


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m eval.suite", description=__doc__.split("\n\n")[0])
    p.add_argument("--run", required=True, type=Path, help="folder of the run, e.g. results/tinyworld")
    p.add_argument("--data", required=True, type=Path, help="data root with one folder a dataset, ROOT/org/name/")
    p.add_argument(
        "--models", required=True, nargs="+", metavar="NAME=PATH", help="checkpoints; NAME-seedN names a seed"
    )
    p.add_argument("--baseline", metavar="NAME", help="the arm others are compared with (default: the first)")
    p.add_argument("--backbone", help="its name in the tables (default: from the checkpoint's configuration)")
    p.add_argument("--seed", type=int, help="seed of the models whose names do not tell")
    p.add_argument(
        "--tasks",
        nargs="+",
        choices=list(BY_KEY),
        default=[benchmark.key for benchmark in BENCHMARKS],
        metavar="TASK",
        help=f"default: the nine of Table 4; besides them {', '.join(b.key for b in EXTRA_BENCHMARKS)}",
    )
    p.add_argument(
        "--limit", type=int, metavar="N", help="a trial: the first N rows of each task; tables refuse such scores"
    )
    p.add_argument("--jobs", type=int, help="worker processes side by side (default: one a GPU, or 2 without)")
    p.add_argument("--batch-size", type=int, default=64, help="rows a forward pass (default 64)")
    p.add_argument("--max-new-tokens", type=int, help="upper limit on the length of answers (default: the tasks' own)")
    p.add_argument("--dtype", default="auto", help="auto (the checkpoint's), float32, bfloat16")
    p.add_argument("--device", default="auto", help="auto (a GPU if there is one), cpu, cuda")
    p.add_argument(
        "--no-shared-prefix", action="store_true", help="compute every row alone, as the stock harnesses do"
    )
    p.add_argument("--trust-remote-code", action="store_true", help="run model code found in a checkpoint")
    return p


def main() -> None:
    args = parser().parse_args()
    models, jobs = plan(args, args.run / "harness", args.run / "answers")
    methods = [arm.method for arm, _, _ in models.values()]
    baseline = args.baseline or methods[0]
    if baseline not in methods:
        raise UserError(f"--baseline {baseline}: not among the models ({', '.join(methods)})")
    console = Console(stderr=True)
    with only_writer(args.run / "logs"):
        write_json(args.run / "run.json", describe_run(args, models, jobs))
        ok = Runner(args.run / "logs", places(args.jobs, args.device), console).run(jobs)
        arms = [arm for arm, _, _ in models.values()]
        write_json(args.run / "scores.json", scores.score_rows(arms, collect(models, jobs), baseline, args.limit))
    console.print(f"scores: {args.run / 'scores.json'}")
    if args.limit is not None:
        console.print(f"--limit {args.limit}: a trial, no result; tables refuse these scores")
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    run_main(main)
