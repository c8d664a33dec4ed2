"""Table 4 as Markdown, LaTeX, CSV and JSON, a figure of the differences, and the table on the terminal.

`python -m eval.report.tables results/RUN` is a pure function of the run's scores.json. A cell is a number with its n,
95 % interval and paired difference from the baseline arm, or `not run`, or `failed: reason`; never a zero in between.
"""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from eval.data.benchmarks import BENCHMARKS, EXTRA_BENCHMARKS
from eval.run.files import read_json
from modeling_aligned_llava.errors import UserError


Row = dict[str, Any]
CAPTION = (
    "Scores in percent with 95 % bootstrap intervals and n. Below each: paired difference from the baseline arm with "
    "its 95 % interval; * marks p < 0.05 after Holm's correction over the nine columns (Avg, and what stands behind "
    "it: one test each)."
)


def columns(rows: list[Row]) -> dict[str, str]:
    """Benchmark -> heading: the nine, their average, and further ones that the run was asked for."""
    asked = {row["benchmark"] for row in rows}
    further = {benchmark.key: benchmark.title for benchmark in EXTRA_BENCHMARKS if benchmark.key in asked}
    return {benchmark.key: benchmark.title for benchmark in BENCHMARKS} | {"avg": "Avg"} | further


def arms(rows: list[Row]) -> list[tuple[str, dict[str, Row]]]:
    """Rows of the table in the order of the file: (label, benchmark -> cell)."""
    table: dict[tuple, dict[str, Row]] = {}
    for row in rows:
        table.setdefault((row["source"], row["backbone"], row["method"], row["seed"]), {})[row["benchmark"]] = row
    seeds = {key[3] for key in table if key[0] == "measured"}
    labels = []
    for (source, backbone, method, seed), cells in table.items():
        label = f"{backbone} {method}" + (f" seed {seed}" if seed is not None and len(seeds) > 1 else "")
        labels.append((f"{label} (paper)" if source == "paper" else label, cells))
    return labels


def is_significant(cell: Row) -> bool:
    p = cell["p_value"] if cell["p_holm"] is None else cell["p_holm"]
    return p is not None and p < 0.05


def missing(cell: Row | None) -> str | None:
    """What stands in a cell without a number."""
    if cell is None or cell["status"] == "not run":
        return "not run"
    return f"failed: {cell['reason']}" if cell["status"] == "failed" else None


def parts(cell: Row) -> list[str]:
    """The lines of a cell with a number: score, interval and n, difference."""
    lines = [f"{cell['score']:.2f}"]
    if cell["ci95"] is not None:
        lines.append(f"[{cell['ci95'][0]:.1f}, {cell['ci95'][1]:.1f}] n={cell['n']}")
    if cell["delta"] is not None:
        low, high = cell["delta_ci95"]
        lines.append(f"{cell['delta']:+.2f}{'*' if is_significant(cell) else ''} [{low:+.1f}, {high:+.1f}]")
    return lines


def markdown(rows: list[Row]) -> str:
    titles = columns(rows)
    lines = ["| arm | " + " | ".join(titles.values()) + " |", "|---" * (len(titles) + 1) + "|"]
    for label, cells in arms(rows):
        line = []
        for key in titles:
            text = missing(cells.get(key)) or "<br>".join(parts(cells[key]))
            line.append(text.replace("|", "\\|").replace("*", "\\*"))
        lines.append(f"| {label} | " + " | ".join(line) + " |")
    return "\n".join([*lines, "", CAPTION.replace("*", "\\*"), ""])


def escape_latex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {character: f"\\{character}" for character in "&%$#_{}"}
    return "".join(special.get(character, character) for character in text)


def latex(rows: list[Row]) -> str:
    r"""A booktabs table; needs `\usepackage{booktabs,makecell}`."""

    def cell(text: list[str]) -> str:
        return r"\makecell{" + r" \\ ".join(escape_latex(line).replace("[", "{[}") for line in text) + "}"

    titles = columns(rows)
    lines = [
        r"\begin{table}",
        r"\centering\scriptsize",
        rf"\caption{{{escape_latex(CAPTION)}}}",
        rf"\begin{{tabular}}{{l{'c' * len(titles)}}}",
        r"\toprule",
        " & ".join(["arm", *titles.values()]) + r" \\",
        r"\midrule",
    ]
    paper = False
    for label, cells in arms(rows):
        if not paper and label.endswith("(paper)"):
            paper = True
            lines.append(r"\midrule")
        texts = [[text] if (text := missing(cells.get(key))) else parts(cells[key]) for key in titles]
        lines.append(" & ".join([escape_latex(label), *map(cell, texts)]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def comma_separated(rows: list[Row]) -> str:
    """One line a cell, every field of scores.json; a cell without a number says so in the column `score`."""
    fields = ["source", "backbone", "method", "seed", "benchmark", "score", "n", "ci95_low", "ci95_high"]
    fields += ["delta", "delta_ci95_low", "delta_ci95_high", "p_value", "p_holm", "unparseable", "status", "reason"]
    text = io.StringIO()
    writer = csv.DictWriter(text, fields, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        flat = dict(row)
        for name in ("ci95", "delta_ci95"):
            flat[f"{name}_low"], flat[f"{name}_high"] = row[name] or (None, None)
        writer.writerow(flat | {"score": missing(row) or row["score"]})
    return text.getvalue()


def show(rows: list[Row], console: Console) -> None:
    """The table for people: scores with the half-width of their interval, differences below."""
    table = Table(title="Table 4", show_lines=True)
    table.add_column("arm", max_width=24)
    titles = columns(rows)
    for title in titles.values():
        table.add_column(title, justify="right")
    for label, cells in arms(rows):
        line = []
        for key in titles:
            text = missing(cells.get(key))
            if text is None:
                cell = cells[key]
                text = f"{cell['score']:.1f}"
                if cell["ci95"] is not None:
                    text += f" ±{(cell['ci95'][1] - cell['ci95'][0]) / 2:.1f}"
                if cell["delta"] is not None:
                    text += f"\n{cell['delta']:+.1f}{'*' if is_significant(cell) else ''}"
            line.append(text)
        table.add_row(label, *line)
    console.print(table)
    console.print(
        "± half a 95 % interval; below: difference from the baseline arm, * p < 0.05 (Holm over nine columns)"
    )


def as_json(rows: list[Row]) -> str:
    """Arms in the order of the table, each with its cells by column: a row of scores.json, or why there is none."""
    titles = columns(rows)
    table = [
        {"arm": label, "cells": {title: missing(cells.get(key)) or cells[key] for key, title in titles.items()}}
        for label, cells in arms(rows)
    ]
    return json.dumps(table, indent=1) + "\n"


WRITERS: dict[str, Callable[[list[Row]], str]] = {
    "md": markdown,
    "tex": latex,
    "csv": comma_separated,
    "json": as_json,
}


def read_scores(run: Path) -> list[Row]:
    """The rows of the run's scores.json.

    Raises:
        UserError: there are none, or they come from a trial with --limit.
    """
    rows = read_json(run / "scores.json")
    if rows is None:
        raise UserError(f"no {run / 'scores.json'}; evaluate the run first (python -m eval.suite)")
    limits = {row["limit"] for row in rows if "limit" in row}
    if limits:
        raise UserError(f"{run} holds a trial with --limit {limits.pop()}, no scores; evaluate it without --limit")
    return rows
