"""The smallest difference that each benchmark can detect: `python -m eval.power --run results/tinyworld`.

For every benchmark of an evaluated run: the standard error of the paired difference between the baseline and another
method (by bootstrap), the smallest difference detected in 80 % of repetitions at p < 0.05, and the number of items
that the paper's difference would need. Without a run, `--assume 0.1` assumes the share of items on which two models
disagree. If the run has several seeds, their spread determines how many a difference needs.
"""

import argparse
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from eval.data.benchmarks import BENCHMARKS, BY_KEY, Benchmark
from eval.run.files import read_json
from eval.scoring import scores, statistics
from eval.scoring.items import Items
from eval.scoring.power import detectable, seeds_needed, times_the_items
from modeling_aligned_llava.errors import UserError, run_main


def assumed_error(benchmark: Benchmark, disagree: float) -> float:
    """Standard error in points of a paired difference near zero on the official questions: sqrt(share / n)."""
    return 100 * math.sqrt(disagree / benchmark.num_questions)


def paper_claims(backbone: str, method: str) -> dict[str, float]:
    """The paper's differences from its baseline, in points, for the benchmarks it has.

    Raises:
        UserError: the paper has no such backbone and method.
    """
    table = {(row.backbone, row.method, row.benchmark): row.score or 0.0 for row in scores.paper_rows()}
    if (backbone, method, "pope") not in table:
        raise UserError(f"the paper has no {backbone} {method}; it has {sorted({key[:2] for key in table})}")
    known = [key for key in BY_KEY if (backbone, method, key) in table]
    return {key: table[backbone, method, key] - table[backbone, "baseline", key] for key in known}


def measured(run: Path, baseline: str, method: str) -> dict[str, tuple[float, int, list[float]]]:
    """Benchmark -> (standard error of the difference, items, the difference at each seed) in an evaluated run.

    Raises:
        UserError: the run has no results of the two on the same benchmarks.
    """
    found: dict[str, tuple[float, int, list[float]]] = {}
    seeds = defaultdict(list)
    for folder in sorted((run / "harness").glob(f"{method}*")):
        suffix = folder.name.removeprefix(method)
        if suffix and not suffix.startswith("-seed"):
            continue
        for benchmark in BENCHMARKS:
            pair = [
                read_json(run / "harness" / (name + suffix) / benchmark.key / "result.json")
                for name in (baseline, method)
            ]
            if any(result is None or result["status"] != "ok" for result in pair):
                continue
            first, second = (Items(**result["items"]) for result in pair if result)
            gap = statistics.difference(first, second, benchmark.macro, benchmark.key)
            seeds[benchmark.key].append(gap.value)
            found[benchmark.key] = (float(gap.draws.std()), len(first.id), seeds[benchmark.key])
    if not found:
        raise UserError(f"{run} has no results of {baseline} and {method} on the same benchmarks")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m eval.power", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--run", type=Path, help="folder of an evaluated run")
    source.add_argument("--assume", type=float, metavar="SHARE", help="share of items on which two models disagree")
    parser.add_argument("--baseline", default="baseline", help="method to compare with")
    parser.add_argument("--method", default="norm-gwc", help="method to compare, in run and paper")
    parser.add_argument("--backbone", default="Llama-3.2-3B", help="backbone of the paper's claims")
    args = parser.parse_args()
    if args.assume is not None and not 0 < args.assume <= 1:
        raise UserError(f"--assume {args.assume}: expected a share between 0 and 1")
    claims = paper_claims(args.backbone, args.method)
    found: dict[str, tuple[float, int, list[float]]] = (
        measured(args.run, args.baseline, args.method)
        if args.run
        else {b.key: (assumed_error(b, args.assume), b.num_questions, []) for b in BENCHMARKS}
    )
    table = Table(title=f"{args.method} against {args.baseline}: detectable at p < 0.05 with power 80 %")
    for column in (
        "benchmark",
        "items",
        "standard error",
        "smallest difference",
        "the paper's",
        "items for it",
        "seeds for it",
    ):
        table.add_column(column, justify="left" if column == "benchmark" else "right")
    for key, (error, items, differences) in found.items():
        table.add_row(*_line(key, error, items, differences, claims.get(key)))
    Console().print(table)


def _line(key: str, error: float, items: int, differences: list[float], claim: float | None) -> list[Any]:
    needed = times_the_items(error, claim or 0.0) * items
    seeds = seeds_needed(differences, claim or 0.0)
    return [
        BY_KEY[key].title,
        str(items),
        f"{error:.2f}",
        f"{detectable(error):.2f}",
        "-" if claim is None else f"{claim:+.2f}",
        f"{math.ceil(needed):,}" if math.isfinite(needed) else "never",
        "not measured" if seeds is None else str(seeds),
    ]


if __name__ == "__main__":
    run_main(main)
