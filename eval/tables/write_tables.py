"""Every table of a finished run and their figure, as files and on the terminal: pure functions of scores.json."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from rich import box
from rich.console import Console
from rich.table import Table

from eval.tables.table4 import (
    CAPTION,
    HEADINGS,
    PAPER_SUFFIX,
    ScoreEntry,
    about_seeds,
    columns,
    departures,
    is_significant,
    missing,
    notes,
    parts,
    read_scores,
    table_lines,
)
from modeling_aligned_llava.diagnostics.instruments.svg import svg_axes
from modeling_aligned_llava.loading.files import read_json, write_text


TITLE_WIDTH, CELL_WIDTH = 16, 21  # of the table on a terminal, with the space beside them
LINE = 100  # columns of a terminal


def write_tables(run: Path) -> None:
    """Write the tables and the figure of a finished run, and show Table 4.

    Raises:
        UserError: the run has no scores.
    """
    rows = read_scores(run)
    further = departures(read_json(run / "run.json") or {})
    write_text(run / "tables" / "table4.md", markdown(rows, further))
    write_text(run / "tables" / "table4.tex", latex(rows, further))
    write_text(run / "tables" / "table4.csv", comma_separated(rows))
    draw_differences(rows, run / "figures" / "table4.svg")
    show(rows, Console(width=min(Console().width, LINE) if sys.stdout.isatty() else LINE))
    print(f"tables, with the paper's: {run / 'tables'}, figure: {run / 'figures' / 'table4.svg'}")  # noqa: T201


def score_table(rows: list[ScoreEntry]) -> pd.DataFrame:
    """Table 4 as texts: one line per model, one column per benchmark. Lines of a cell are separated by a newline."""
    titles = columns(rows)
    lines = [
        {"model": label}
        | {title: missing(cells.get(key)) or "\n".join(parts(cells[key])) for key, title in titles.items()}
        for label, cells in table_lines(rows)
    ]
    return pd.DataFrame(lines, columns=["model", *titles.values()])


def markdown(rows: list[ScoreEntry], further: Sequence[str] = ()) -> str:
    """The table, with a paragraph per note below it, and `further` ones."""
    frame = score_table(rows)
    table = [[_markdown_cell(cell) for cell in row] for row in ([*frame.columns], *frame.to_numpy().tolist())]
    lines = ["| " + " | ".join(row) + " |" for row in table]
    lines.insert(1, "|---" * frame.shape[1] + "|")
    for note in (CAPTION, *notes(rows), *further):
        lines += ["", re.sub(r"([*_])", r"\\\1", plain(note))]
    return "\n".join([*lines, ""])


def _markdown_cell(text: str) -> str:
    return re.sub(r"([|*])", r"\\\1", plain(text)).replace("\n", "<br>")


def plain(text: str) -> str:
    """Text for Markdown, in which a tag or a link of somebody else's stays text."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text).replace("](", r"]\(")


def latex(rows: list[ScoreEntry], further: Sequence[str] = ()) -> str:
    """The same as a booktabs table; it needs the package makecell too."""
    frame = score_table(rows)
    style = frame.style.hide(axis="index").format(escape="latex")
    style = style.format(_latex_cell, escape="latex", subset=frame.columns[1:])
    paper = frame.index[frame["model"].str.endswith(PAPER_SUFFIX)]
    if len(paper):
        first = pd.IndexSlice[paper[0], frame.columns[0]]
        style = style.format(lambda label: f"\\midrule\n{label}", escape="latex", subset=first)
    text = style.to_latex(
        hrules=True,
        column_format="l" + "c" * (frame.shape[1] - 1),
        caption=_escaped(CAPTION),
        position_float="centering",
    )
    below = [f"\\par\\smallskip\\parbox{{\\linewidth}}{{{_escaped(note)}}}\n" for note in (*notes(rows), *further)]
    text = text.replace("\\centering\n", "\\centering\\scriptsize\n", 1)
    return text.replace("\\end{table}", "".join(below) + "\\end{table}")


def _escaped(text: str) -> str:
    return re.sub(r"([%_&#])", r"\\\1", text)


def _latex_cell(text: str) -> str:
    return r"\makecell{" + text.replace("[", "{[}").replace("\n", r" \\ ") + "}"


def comma_separated(rows: list[ScoreEntry]) -> str:
    """One line per row of scores.json, with every field; a row without a score gives the reason in `score`."""
    fields = ["source", "backbone", "method", "seed", "seeds", "benchmark", "score", "n", "ci95_low", "ci95_high"]
    fields += ["delta", "delta_ci95_low", "delta_ci95_high", "p_value", "p_holm", "unparseable", "status", "reason"]
    flat = []
    for row in rows:
        ends = {f"{name}_{end}": value for name in ("ci95", "delta_ci95") for end, value in _ends(row[name])}
        seeds = " ".join(map(str, row.get("seeds", ())))
        flat.append(row | ends | {"score": missing(row) or row["score"], "seeds": seeds})
    return pd.DataFrame(flat, columns=fields, dtype=object).to_csv(index=False, lineterminator="\n")


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


def draw_differences(rows: list[dict[str, Any]], path: Path) -> None:
    """Write an SVG, the same bytes for the same rows. Models without any difference are left out."""
    compared = {
        label: [row for row in cells.values() if row["delta"] is not None and row["benchmark"] in HEADINGS]
        for label, cells in table_lines(rows)
    }
    models = {label: cells for label, cells in compared.items() if cells}
    with svg_axes("table4", (6, 5)) as (axes, svg):
        plot_differences(axes[0, 0], models, {})
    write_text(path, svg.getvalue())


def plot_differences(axes: Axes, models: dict[str, list[dict[str, Any]]], colours: dict[str, str]) -> None:
    """Every difference of each model and its interval, a row a benchmark. Without a colour, matplotlib chooses one."""
    keys = list(HEADINGS)
    for index, (label, cells) in enumerate(models.items()):
        shift = 0.6 * ((index + 0.5) / len(models) - 0.5)
        positions = [keys.index(cell["benchmark"]) + shift for cell in cells]
        values = [cell["delta"] for cell in cells]
        # An interval of no width can lie beside the difference by the last bit.
        ends = [cell["delta_ci95"] or [cell["delta"]] * 2 for cell in cells]
        below = [max(0.0, value - low) for value, (low, _) in zip(values, ends, strict=True)]
        above = [max(0.0, high - value) for value, (_, high) in zip(values, ends, strict=True)]
        axes.errorbar(
            values, positions, xerr=[below, above], fmt="o", capsize=3, label=label, color=colours.get(label)
        )
    axes.axvline(0, color=matplotlib.rcParams["axes.edgecolor"], linewidth=0.8)
    axes.set_yticks(range(len(keys)), list(HEADINGS.values()))
    axes.invert_yaxis()
    axes.set_xlabel("points over the baseline, 95 % interval")
    if models:
        axes.legend(loc="upper left", bbox_to_anchor=(-0.1, -0.12), ncols=2)
