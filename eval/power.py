"""The smallest difference that each benchmark can detect: `python -m eval.power --run results/tinyworld`.

For every benchmark of an evaluated run: the standard error of the paired difference between the baseline and another
method, the smallest difference detected in 80 % of repetitions at p < 0.05, and the number of items that the paper's
difference would need. With one seed the error is that of the items; with several it covers both, and the spread of the
seeds determines how many of them a difference needs. Without a run, `--assume 0.1` assumes the share of items on which
two models disagree.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from eval.data.benchmarks import BENCHMARKS, BY_KEY, Benchmark
from eval.scoring import scores, seeds, statistics
from eval.scoring.items import Items
from eval.scoring.power import detectable, seeds_needed, times_the_items
from modeling_aligned_llava.errors import UserError, run_main
from modeling_aligned_llava.loading.files import read_json


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


@dataclass(frozen=True)
class Precision:
    """How precise the difference between two methods is on a benchmark, in points.

    Attributes:
        items: number of them.
        item_error: standard error that comes from the choice of items.
        error, degrees_of_freedom: of the whole standard error, with several seeds theirs too.
        differences: of each seed.
    """

    items: int
    item_error: float
    error: float
    degrees_of_freedom: float = math.inf
    differences: tuple[float, ...] = ()


def measured(run: Path, baseline: str, method: str) -> dict[str, Precision]:
    """Benchmark -> precision of the difference between the two methods in an evaluated run.

    Raises:
        UserError: the run has no results of the two on the same benchmarks.
    """
    found = {}
    suffixes = [folder.name.removeprefix(method) for folder in sorted((run / "harness").glob(f"{method}*"))]
    for benchmark in BENCHMARKS:
        pairs = []
        for suffix in suffixes:
            names = (baseline + suffix, method + suffix)
            pair = [read_json(run / "harness" / name / benchmark.key / "result.json") for name in names]
            own_seed = not suffix or suffix.startswith("-seed")
            if own_seed and all(result is not None and result["status"] == "ok" for result in pair):
                pairs.append([Items(**result["items"]) for result in pair])
        if pairs:
            found[benchmark.key] = _precision(benchmark, *zip(*pairs, strict=True))
    if not found:
        raise UserError(f"{run} has no results of {baseline} and {method} on the same benchmarks")
    return found


def _precision(benchmark: Benchmark, baselines: Sequence[Items], models: Sequence[Items]) -> Precision:
    items = len(models[0].id)
    if len(models) == 1:
        gap = statistics.difference(baselines[0], models[0], benchmark.macro, benchmark.key)
        error = float(gap.draws.std())
        return Precision(items, error, error, differences=(gap.value,))
    mean = seeds.difference(list(baselines), list(models), benchmark.macro)
    return Precision(items, mean.items**0.5, mean.standard_error, mean.degrees_of_freedom, tuple(mean.values))


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
    if args.run:
        found = measured(args.run, args.baseline, args.method)
    else:
        errors = {benchmark: assumed_error(benchmark, args.assume) for benchmark in BENCHMARKS}
        found = {b.key: Precision(b.num_questions, error, error) for b, error in errors.items()}
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
    for key, precision in found.items():
        table.add_row(*_line(key, precision, claims.get(key)))
    Console().print(table)


def _line(key: str, precision: Precision, claim: float | None) -> list[str]:
    needed = times_the_items(precision.item_error, claim or 0.0) * precision.items
    of_seeds = seeds_needed(list(precision.differences), claim or 0.0)
    return [
        BY_KEY[key].title,
        str(precision.items),
        f"{precision.error:.2f}",
        f"{detectable(precision.error, precision.degrees_of_freedom):.2f}",
        "-" if claim is None else f"{claim:+.2f}",
        f"{math.ceil(needed):,}" if math.isfinite(needed) else "never",
        "not measured" if of_seeds is None else str(of_seeds),
    ]


if __name__ == "__main__":
    run_main(main)
