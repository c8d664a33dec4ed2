"""Learning rates by held-out loss: every method gets the same factors on the recipe's rates and the same steps.

    python -m research.rate_sweep --backbone smollm2-135m --stage 1 --folder results/sweep --out sweep.json

Each cell is a short run of `train/run.sh` with its own schedule, on one core (or GPU); no benchmark is used. Stage
2 starts from the method's stage 1 of `--start`, a run's folder. Finished cells are kept: the same command continues.
"""

import argparse
import os
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.record import environment, write
from eval.options import read_recipe
from eval.run.processes import run_logged
from eval.run.schedule import Step, find_devices, run_steps
from modeling_aligned_llava.errors import UserError, run_main
from research.study.grid import HELD_OUT, words
from research.study.records import held_out_loss


def settings(args: argparse.Namespace, factor: float, seed: int) -> dict[str, Any]:
    """What a cell changes in the recipe."""
    recipe = read_recipe(args.backbone, f"stage{args.stage}")
    rates = {pattern: rate * factor for pattern, rate in recipe["learning_rates"].items()}
    return {
        "learning_rates": rates,
        "seed": seed,
        "max_steps": args.steps,
        "save_steps": args.steps,
        "eval_strategy": "steps",
        "eval_steps": args.steps,
        "eval_rows": HELD_OUT,
        "probe_rows": 0,
    }


def command(args: argparse.Namespace, method: str, factor: float, seed: int, folder: Path) -> list[str]:
    chosen = settings(args, factor, seed)
    if args.stage == 2:
        chosen["model_name_or_path"] = args.start / "checkpoints" / method / "stage1"
    base = ["bash", "train/run.sh", "--backbone", args.backbone, "--method", method, "--stage", f"stage{args.stage}"]
    base += ["--output-root", str(folder), "--data", str(args.data), "--"]
    return base + words(chosen)


def sweep(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Method -> factor -> held-out loss, the mean over seeds.

    Raises:
        UserError: a cell failed; its output is in the log.
    """
    folders = {
        (method, factor, seed): args.folder / f"stage{args.stage}" / f"{factor:g}" / f"{method}-seed{seed}"
        for method in args.methods
        for factor in args.factors
        for seed in args.seeds
    }

    def run(method: str, factor: float, seed: int) -> None:
        folder = folders[method, factor, seed]
        folder.mkdir(parents=True, exist_ok=True)
        run_logged(command(args, method, factor, seed, folder), folder / "log.txt")

    steps = [
        Step(f"{method} {factor:g} {seed}", partial(run, method, factor, seed), 1) for method, factor, seed in folders
    ]
    failures: list[str] = []
    devices = find_devices(args.jobs, args.device)
    run_steps(steps, devices, lambda name, reason: failures.append(f"{name}: {reason}"))
    if failures:
        raise UserError(failures[0])

    def loss(method: str, factor: float, seed: int) -> float:
        trained = folders[method, factor, seed] / "checkpoints" / method / f"stage{args.stage}"
        return held_out_loss(trained / "log.jsonl")

    return {
        method: {f"{factor:g}": fmean(loss(method, factor, seed) for seed in args.seeds) for factor in args.factors}
        for method in args.methods
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m research.rate_sweep", description=__doc__)
    parser.add_argument("--backbone", required=True)
    parser.add_argument("--stage", type=int, choices=[1, 2], required=True)
    parser.add_argument("--methods", nargs="+", default=["baseline", "norm", "norm-gwc"])
    parser.add_argument("--factors", nargs="+", type=float, default=[0.3, 1.0, 3.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[42])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--data", type=Path, required=True, help="--data of train/run.sh")
    parser.add_argument("--start", type=Path, help="run whose stage 1 stage 2 starts from")
    parser.add_argument("--folder", type=Path, required=True, help="where the cells are trained")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the cells: one core each
    if args.stage == 2 and args.start is None:
        raise UserError("--stage 2 needs --start, a run with a finished stage 1 of every method")
    losses = sweep(args)
    best = {method: float(min(found, key=lambda factor: found[factor])) for method, found in losses.items()}
    write(
        {
            "benchmark": "rate_sweep",
            **environment(),
            "backbone": args.backbone,
            "stage": args.stage,
            "steps": args.steps,
            "seeds": args.seeds,
            "held_out_rows": HELD_OUT,
            "recipe": read_recipe(args.backbone, f"stage{args.stage}")["learning_rates"],
            "loss": losses,
            "best_factor": best,
        },
        args.out,
    )


if __name__ == "__main__":
    run_main(main)
