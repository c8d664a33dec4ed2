"""Table 4 as Markdown, LaTeX and CSV, and on the terminal: a pure function of the run's scores.json.

A cell is a score with its n, 95 % interval and paired difference from the baseline, or `not run`, or `failed: reason`.
A method with several seeds is one line, the mean over them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from eval.data.benchmarks import BENCHMARKS, EXTRA_BENCHMARKS
from eval.report.tables import writers
from eval.report.tables.footnotes import CAPTION, about_seeds, footnotes
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.files import read_json


ScoreEntry = dict[str, Any]  # a row of scores.json
PAPER_SUFFIX = " (paper)"
TITLE_WIDTH, CELL_WIDTH = 16, 21  # of the table on a terminal, with the space beside them
HEADINGS = {benchmark.key: benchmark.title for benchmark in BENCHMARKS} | {"avg": "Avg"}


def columns(rows: list[ScoreEntry]) -> dict[str, str]:
    """Benchmark -> heading: the nine, their average, and the extra ones in the run."""
    asked = {row["benchmark"] for row in rows}
    extra = {benchmark.key: benchmark.title for benchmark in EXTRA_BENCHMARKS if benchmark.key in asked}
    return HEADINGS | extra


def table_lines(rows: list[ScoreEntry]) -> list[tuple[str, dict[str, ScoreEntry]]]:
    """One line per model or mean over seeds, in the order of scores.json: (label, benchmark -> its row).

    The single seeds of such a mean are left out.
    """
    table: dict[tuple, dict[str, ScoreEntry]] = {}
    for row in rows:
        table.setdefault(line_key(row), {})[row["benchmark"]] = row
    means = {key[:3] for key in table if key[4]}
    table = {key: cells for key, cells in table.items() if key[4] or key[3] is None or key[:3] not in means}
    distinct = {key[3] for key in table if key[0] == "measured" and not key[4]}
    labels = []
    for (source, backbone, method, seed, seeds), cells in table.items():
        label = f"{backbone} {method}"
        if seeds:
            label += f", {len(seeds)} seeds"
        elif seed is not None and len(distinct) > 1:
            label += f" seed {seed}"
        labels.append((label + PAPER_SUFFIX if source == "paper" else label, cells))
    return labels


def line_key(row: ScoreEntry) -> tuple:
    """Source, backbone, method, seed and seeds: what the rows of a line share. Only a mean over seeds has `seeds`."""
    return row["source"], row["backbone"], row["method"], row["seed"], tuple(row.get("seeds", ()))


def notes(rows: list[ScoreEntry]) -> list[str]:
    """The footnotes of the table."""
    measured = [row for row in rows if row["source"] == "measured"]
    return footnotes(table_lines(measured), {row["benchmark"] for row in rows})


def is_significant(cell: ScoreEntry) -> bool:
    """Whether several trainings agree on a difference; one training says nothing of another."""
    if not cell.get("seeds"):
        return False
    p = cell["p_value"] if cell["p_holm"] is None else cell["p_holm"]
    return p is not None and p < 0.05


def missing(cell: ScoreEntry | None) -> str | None:
    """The text of a cell without a score; None if there is a score."""
    if cell is None or cell["status"] == "not run":
        return "not run"
    return f"failed: {cell['reason']}" if cell["status"] == "failed" else None


def parts(cell: ScoreEntry) -> list[str]:
    """The lines of a cell with a score: score, interval and n, difference."""
    lines = [f"{cell['score']:.2f}"]
    if cell["source"] == "measured":
        lines.append(f"{interval(cell['ci95'])} n={cell['n']}")
    if cell["delta"] is not None:
        mark = "*" if is_significant(cell) else ""
        lines.append(f"{cell['delta']:+.2f}{mark} {interval(cell['delta_ci95'], '+')}")
    return lines


def interval(ends: list[float] | None, sign: str = "") -> str:
    """An interval in brackets."""
    return f"[{ends[0]:{sign}.1f}, {ends[1]:{sign}.1f}]" if ends else "[needs more seeds]"


def score_table(rows: list[ScoreEntry]) -> pd.DataFrame:
    """Table 4 as texts: one line per model, one column per benchmark."""
    titles = columns(rows)
    lines = [
        {"model": label}
        | {title: missing(cells.get(key)) or "\n".join(parts(cells[key])) for key, title in titles.items()}
        for label, cells in table_lines(rows)
    ]
    return pd.DataFrame(lines, columns=["model", *titles.values()])


def markdown(rows: list[ScoreEntry], further: Sequence[str] = ()) -> str:
    """The table with its notes, and `further` ones."""
    return writers.markdown(score_table(rows), [CAPTION, *notes(rows), *further])


def latex(rows: list[ScoreEntry], further: Sequence[str] = ()) -> str:
    """The same. Needs the packages booktabs and makecell."""
    table = score_table(rows)
    paper = table.index[table["model"].str.endswith(PAPER_SUFFIX)]
    return writers.latex(table, CAPTION, paper[0] if len(paper) else None, [*notes(rows), *further])


def comma_separated(rows: list[ScoreEntry]) -> str:
    """One line per row of scores.json, with every field; a row without a score gives the reason in `score`."""
    fields = ["source", "backbone", "method", "seed", "seeds", "benchmark", "score", "n", "ci95_low", "ci95_high"]
    fields += ["delta", "delta_ci95_low", "delta_ci95_high", "p_value", "p_holm", "unparseable", "status", "reason"]
    flat = []
    for row in rows:
        ends = {f"{name}_{end}": value for name in ("ci95", "delta_ci95") for end, value in _ends(row[name])}
        seeds = " ".join(map(str, row.get("seeds", ())))
        flat.append(row | ends | {"score": missing(row) or row["score"], "seeds": seeds})
    return writers.comma_separated(pd.DataFrame(flat, columns=fields, dtype=object))


def _ends(interval: list[float] | None) -> list[tuple[str, float | None]]:
    return list(zip(("low", "high"), interval or (None, None), strict=True))


def show(rows: list[ScoreEntry], console: Console) -> None:
    """Print the measured scores with half their interval and their difference: as many models abreast as fit."""
    titles = columns(rows)
    lines = table_lines([row for row in rows if row["source"] == "measured"])
    abreast = max(1, (console.width - TITLE_WIDTH) // CELL_WIDTH)
    for start in range(0, len(lines), abreast):
        models = lines[start : start + abreast]
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column("Table 4")
        for label, _ in models:
            table.add_column(label, justify="right")
        for key, title in titles.items():
            table.add_row(title, *(missing(cells.get(key)) or _brief(cells[key]) for _, cells in models))
        console.print(table)
    console.print(
        "± half a 95 % interval, then the difference from the baseline, * p < 0.05 (Holm over nine columns)."
    )
    console.print(" ".join(about_seeds(lines)))


def _brief(cell: ScoreEntry) -> str:
    half = "" if cell["ci95"] is None else f"±{(cell['ci95'][1] - cell['ci95'][0]) / 2:.1f}"
    delta = "" if cell["delta"] is None else f"{cell['delta']:+.1f}{'*' if is_significant(cell) else ' '}"
    return f"{cell['score']:.1f} {half:<5}{delta:>7}"


def read_scores(run: Path) -> list[ScoreEntry]:
    """The rows of the run's scores.json.

    Raises:
        UserError: there is no scores.json, or it comes from a trial with --limit.
    """
    rows = read_json(run / "scores.json")
    if rows is None:
        raise UserError(f"no {run / 'scores.json'}; evaluate the run first (python -m eval.suite)")
    limits = {row["limit"] for row in rows if "limit" in row}
    if limits:
        raise UserError(f"{run} holds a trial with --limit {limits.pop()}, not scores; evaluate it without --limit")
    return rows
