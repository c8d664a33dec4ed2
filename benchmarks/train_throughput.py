"""Samples per second of both training stages, ours against TRL's stock `SFTTrainer`: same model, rows, global batch.

    python -m benchmarks.train_throughput --out benchmarks/results/train_throughput.json
    python -m benchmarks.train_throughput --device cuda --shape 3b --rounds 2 --trace traces

Every measurement runs in its own process, so that peak memory is its own; the first of stock tries several rows in a
micro-batch (on a GPU, with peaks of their own), and the others have the fastest. Stock and ours take turns, and each
pair gives a ratio. Stock is `SFTTrainer` with its own vision collator and LLaVA's whole vision tower. With
`--processor` ours then runs again as it trains other families, through the model's own processor. `tflops` counts what
training needs (`train.cost.flops`): no padding, no unused layers, nothing computed again.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.record import environment, write
from benchmarks.training_run import WHO, Side, measure
from benchmarks.training_worlds import LENGTHS, SHAPES, make_rows


TARGETS = {"stage1": 2.0, "stage2": 1.5}  # on the CPU, at the 40 M-parameter shape
STOCK_ROWS = (4, 8, 16)


def child(
    who: str, stage: int, args: argparse.Namespace, folder: Path, rows: list[int] | None = None, trace: bool = False
) -> list[dict[str, Any]]:
    """Run `measure` in its own process.

    Args:
        rows: of stock's micro-batches.
        trace: profile one step instead.

    Raises:
        SystemExit: it fails.
    """
    command = [sys.executable, "-m", "benchmarks.train_throughput", "--child", who, "--stages", str(stage)]
    command += ["--shape", args.shape, "--device", args.device, "--folder", str(folder)]
    command += ["--stock-rows", *map(str, rows or [])]
    command += ["--stock-checkpointing", *map(str, args.stock_checkpointing)]
    if trace:
        command += ["--trace", str(args.trace)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **_quiet()})  # noqa: S603
    if done.returncode:
        raise SystemExit(f"error: stage {stage}, {who}: {(done.stderr.strip() or 'no output').splitlines()[-1]}")
    runs = json.loads(done.stdout.strip().splitlines()[-1])
    for taken in runs:
        sys.stderr.write(f"stage {stage}, {who}: {_line(taken)}\n")
    return runs


def _quiet() -> dict[str, str]:
    return {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "PYTHONWARNINGS": "ignore"}


def _line(taken: dict[str, Any]) -> str:
    rows = f"{taken['micro_batch']} rows a micro-batch: " if taken["micro_batch"] else ""
    if "tables" in taken:
        return "\n".join(
            [
                f"{rows}profiled step of {taken['seconds']:.3f} s: {taken['kernel_seconds']:.3f} s of kernels, "
                f"{taken['launches']} launches, {taken['synchronisations']} synchronisations, "
                f"{taken['operators']} operators",
                *taken["tables"],
            ]
        )
    if "tflops" not in taken:
        return f"{rows}out of memory"
    share = taken["tflops"] / taken["matrix_product_tflops"]
    return (
        f"{rows}{taken['samples_per_second']:.3f} samples/s, {taken['tflops']:.3g} TFLOP/s ({share:.1%} of a matrix "
        f"product), {taken['padding']:.1%} padding, {taken['peak_memory_bytes'] / 1e9:.1f} GB"
    )


def compare(stage: int, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run `rounds` pairs of stock and ours, then ours through the processor and profiled steps if asked for.

    Raises:
        SystemExit: stock runs out of memory, whatever its micro-batch.
    """
    pairs: list[dict[str, Any]] = []
    rows, tried = args.stock_rows, dict[int, Any]()
    for _ in range(args.rounds):
        runs = child("stock", stage, args, folder, rows)
        trained = [taken for taken in runs if "tflops" in taken]
        if not trained:
            raise SystemExit(f"error: stage {stage}: stock runs out of memory with {rows} rows a micro-batch")
        tried = tried or {taken["micro_batch"]: taken.get("samples_per_second", "out of memory") for taken in runs}
        stock = max(trained, key=lambda taken: taken["samples_per_second"])
        rows = [stock["micro_batch"]]
        pairs.append({"stock": stock, "ours": child("ours", stage, args, folder)[0]})
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
        run = child("processor", stage, args, folder)[0]
        ours = statistics.median(pair["ours"]["samples_per_second"] for pair in pairs)
        summary["processor"] = {**run, "over_ours": run["samples_per_second"] / ours}
    if args.trace:
        steps = {who: child(who, stage, args, folder, rows, trace=True)[0] for who in ("stock", "ours")}
        summary["profiled_step"] = {
            who: {name: value for name, value in step.items() if name != "tables"} for who, step in steps.items()
        }
    return summary


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.train_throughput",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="40m")
    parser.add_argument("--stages", type=int, nargs="+", choices=[1, 2], default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3, help="pairs of stock and ours")
    parser.add_argument(
        "--stock-rows",
        type=int,
        nargs="*",
        help=f"rows of stock's micro-batches to try (default: those of the shape, or {STOCK_ROWS})",
    )
    parser.add_argument(
        "--stock-checkpointing",
        type=int,
        nargs="*",
        metavar="STAGE",
        help="stages in which stock computes all layers again (default: on a GPU, 2)",
    )
    parser.add_argument("--processor", action="store_true", help="ours through the model's processor too")
    parser.add_argument("--trace", type=Path, metavar="FOLDER", help="write a Chrome trace of a step of each side")
    parser.add_argument("--child", choices=WHO, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    if args.stock_checkpointing is None:
        args.stock_checkpointing = [2] if args.device == "cuda" else []
    if not args.stock_rows:
        args.stock_rows = [rows for rows in STOCK_ROWS if rows <= shape.global_batch]
        if shape.micro_batch is not None:
            args.stock_rows = [shape.micro_batch]
    if odd := [rows for rows in args.stock_rows if shape.global_batch % rows]:
        parser.error(f"--stock-rows: a step of {shape.global_batch} rows is not a multiple of {odd[0]}")
    return args


def main() -> None:
    args = read_arguments()
    shape = SHAPES[args.shape]
    if args.child:
        (stage,) = args.stages
        trace = args.trace / f"stage{stage}-{args.child}.json.gz" if args.trace else None
        checkpointing = stage in args.stock_checkpointing
        side = Side(args.child, stage, shape, args.folder, args.device, checkpointing, trace)
        print(json.dumps(measure(side, args.stock_rows if args.child == "stock" else [shape.micro_batch])))  # noqa: T201
        return
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
            "text": shape.text,
            "vision": shape.vision,
            "global_batch": shape.global_batch,
            "micro_batch": shape.micro_batch,
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
