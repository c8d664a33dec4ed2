"""The results of `gpu.sh` as a Markdown table."""

import json
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


Row = tuple[str, str, str, str]  # what, ours, stock, ours over stock


def train_throughput(result: dict[str, Any]) -> Iterator[Row]:
    figures: tuple[tuple[str, str, Callable[[dict[str, Any]], float]], ...] = (
        ("samples/s", ".3g", lambda run: run["samples_per_second"]),
        ("TFLOP/s", ".3g", lambda run: run["tflops"]),
        ("of a matrix product", ".1%", lambda run: run["tflops"] / run["matrix_product_tflops"]),
        ("padding", ".1%", lambda run: run["padding"]),
        ("peak GB", ".1f", lambda run: run["peak_memory_bytes"] / 1e9),
    )
    for stage, measured in result["stages"].items():
        yield f"{stage}, micro-batch", "by tokens", f"{measured['pairs'][0]['stock']['micro_batch']} rows", ""
        for name, style, value in figures:
            ours, stock = (statistics.median(value(p[who]) for p in measured["pairs"]) for who in ("ours", "stock"))
            yield _compared(f"{stage}, {name}", ours, stock, style)


def eval_throughput(result: dict[str, Any]) -> Iterator[Row]:
    for task, measured in result["tasks"].items():
        yield _compared(f"{task}, documents/s", measured["ours_per_s"], measured["stock_per_s"], ".3g")


def recipe_run(result: dict[str, Any]) -> Iterator[Row]:
    for name, seconds in result["seconds"].items():
        yield f"{name}, s", f"{seconds:.0f}", "", ""


def _compared(name: str, ours: float, stock: float, style: str) -> Row:
    return name, f"{ours:{style}}", f"{stock:{style}}", f"{ours / stock:.2f}" if stock else ""


FIGURES = {reader.__name__: reader for reader in (train_throughput, eval_throughput, recipe_run)}


def table(folder: Path, ends: dict[str, str]) -> str:
    """How each part ended, and the figures of those that passed."""
    rows: list[Row] = []
    for part, end in ends.items():
        rows.append((f"**{part}**: {end}", "", "", ""))
        if end.startswith("passed") and (file := folder / f"{part}.json").is_file():
            result = json.loads(file.read_text(encoding="utf-8"))
            rows += FIGURES[result["benchmark"]](result)
    head = ["| | ours | stock | ours / stock |", "|---|--:|--:|--:|"]
    return "\n".join(head + [f"| {' | '.join(row)} |" for row in rows])


if __name__ == "__main__":
    print(table(Path(sys.argv[1]), dict(argument.split("=", 1) for argument in sys.argv[2:])))  # noqa: T201
