"""Samples per second of both training stages, ours against TRL's stock `SFTTrainer`: same model, rows, global batch.

    python -m benchmarks.train_throughput --out benchmarks/results/train_throughput.json
    python -m benchmarks.train_throughput --device cuda --shape 3b --rounds 2

Every measurement runs in its own process, so that peak memory is its own; the first of stock tries several rows in a
micro-batch (on a GPU, with peaks of their own), and the others have the fastest. Stock and ours take turns, and each
pair gives a ratio. Stock is `SFTTrainer` with its own vision collator and LLaVA's whole vision tower; on a GPU it
computes all layers of stage 2 again. With `--processor` ours then runs again as it trains other families, through the
model's own processor. `tflops` counts what training needs (`train.cost.flops`): no padding, no unused layers, nothing
computed again.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.record import environment, options, write
from benchmarks.training_run import Side, measure
from benchmarks.training_worlds import LENGTHS, SHAPES, make_rows


TARGETS = {"stage1": 2.0, "stage2": 1.5}  # on the CPU, at the 40 M-parameter shape
STOCK_ROWS = (4, 8, 16)  # of a micro-batch, where the shape does not fix them
# Read when a measurement's process imports its libraries.
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "PYTHONWARNINGS": "ignore",
}


def measure_alone(side: Side, rows: list[int | None]) -> list[dict[str, Any]]:
    """Run `measure` in its own process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        runs = process.submit(measure, side, rows).result()
    for taken in runs:
        sys.stderr.write(f"stage {side.stage}, {side.who}: {_line(taken)}\n")
    return runs


def _line(taken: dict[str, Any]) -> str:
    rows = f"{taken['micro_batch']} rows a micro-batch: " if taken["micro_batch"] else ""
    if "tflops" not in taken:
        return f"{rows}out of memory"
    share = taken["tflops"] / taken["matrix_product_tflops"]
    return (
        f"{rows}{taken['samples_per_second']:.3f} samples/s, {taken['tflops']:.3g} TFLOP/s ({share:.1%} of a matrix "
        f"product), {taken['padding']:.1%} padding, {taken['peak_memory_bytes'] / 1e9:.1f} GB"
    )


def compare(stage: int, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run `rounds` pairs of stock and ours, then ours through the processor if asked for.

    Raises:
        SystemExit: stock runs out of memory, whatever its micro-batch.
    """
    shape = SHAPES[args.shape]
    stock_side, our_side, processor_side = (
        Side(who, stage, shape, folder, args.device) for who in ("stock", "ours", "processor")
    )
    ours: list[int | None] = [shape.micro_batch]
    rows = ours
    if shape.micro_batch is None:
        rows = [rows for rows in STOCK_ROWS if rows <= shape.global_batch]
    pairs: list[dict[str, Any]] = []
    tried: dict[int, Any] = {}
    for _ in range(args.rounds):
        runs = measure_alone(stock_side, rows)
        trained = [taken for taken in runs if "tflops" in taken]
        if not trained:
            raise SystemExit(f"error: stage {stage}: stock runs out of memory with {rows} rows a micro-batch")
        tried = tried or {taken["micro_batch"]: taken.get("samples_per_second", "out of memory") for taken in runs}
        stock = max(trained, key=lambda taken: taken["samples_per_second"])
        rows = [stock["micro_batch"]]
        pairs.append({"stock": stock, "ours": measure_alone(our_side, ours)[0]})
        assert stock["labels"] == pairs[-1]["ours"]["labels"], "stock and ours must learn from the same tokens"
    summary = {
        "ratio": statistics.median(p["ours"]["samples_per_second"] / p["stock"]["samples_per_second"] for p in pairs),
        "memory_ratio": statistics.median(
            p["ours"]["peak_memory_bytes"] / p["stock"]["peak_memory_bytes"] for p in pairs
        ),
        "stock_samples_per_second_by_rows": tried,
        "pairs": pairs,
    }
    if args.processor:
        run = measure_alone(processor_side, ours)[0]
        rate = statistics.median(pair["ours"]["samples_per_second"] for pair in pairs)
        summary["processor"] = {**run, "over_ours": run["samples_per_second"] / rate}
    return summary


def main() -> None:
    parser = options("benchmarks.train_throughput", __doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="40m")
    parser.add_argument("--stages", type=int, nargs="+", choices=[1, 2], default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3, help="pairs of stock and ours")
    parser.add_argument("--processor", action="store_true", help="ours through the model's processor too")
    args = parser.parse_args()
    os.environ.update(QUIET)
    shape = SHAPES[args.shape]
    stages: dict[str, Any] = {}
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        for stage in args.stages:
            make_rows(shape, stage, Path(name) / str(stage))
            stages[f"stage{stage}"] = compare(stage, args, Path(name) / str(stage))
    result = {
        "benchmark": "train_throughput",
        "ratios": {name: stage["ratio"] for name, stage in stages.items()},
        "memory_ratios": {name: stage["memory_ratio"] for name, stage in stages.items()},
        **({"targets": TARGETS} if args.shape == "40m" else {}),
        "shape": {
            "name": args.shape,
            "device": args.device,
            **asdict(shape),
            "rows": shape.global_batch * shape.steps,
            "lognormal_words": LENGTHS,
        },
        "stages": stages,
        "total_seconds": time.perf_counter() - start,
        **environment(),
    }
    write(result, args.out)


if __name__ == "__main__":
    main()
