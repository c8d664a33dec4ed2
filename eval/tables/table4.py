"""Table 4 of a finished run as files, as a figure and on the terminal: a pure function of scores.json and run.json.

A cell is a score with its n, 95 % interval and paired difference from the baseline, or `not run`, or `failed: reason`.
A method with several seeds is one line, the mean over them.
"""

import re
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from rich import box
from rich.console import Console
from rich.table import Table

from eval.data.benchmarks import BENCHMARKS, BY_KEY, EXTRA_BENCHMARKS
from modeling_aligned_llava.diagnostics.instruments.svg import svg_axes
from modeling_aligned_llava.loading.files import write_text


ScoreEntry = dict[str, Any]  # a row of scores.json
Lines = list[tuple[str, dict[str, ScoreEntry]]]  # label and benchmark -> its row
PAPER_SUFFIX = " (paper)"
HEADINGS = {benchmark.key: benchmark.title for benchmark in BENCHMARKS} | {"avg": "Avg"}
CAPTION = (
    "Scores in percent with 95 % intervals and n. Below each: paired difference from the baseline with its 95 % "
    "interval; in lines of several seeds * marks p < 0.05 after Holm's correction over the nine columns (Avg and the "
    "columns after it: one test each)."
)
ONE_SEED = (
    "Lines of one seed: intervals cover the questions alone. Another training may differ by more than the interval, "
    "so no difference is marked."
)
SEVERAL_SEEDS = "Lines of several seeds: means over the seeds; intervals and tests cover seeds and questions."
TWO_SEEDS = (
    "With two seeds, intervals rest on what columns and methods share: where a column varies more, and in Avg, they "
    "cover the truth less often than in 95 %. Train three."
)
TITLE_WIDTH, CELL_WIDTH = 16, 21  # of the table on a terminal, with the space beside them
LINE = 100  # columns of a terminal


@dataclass(frozen=True)
class Table4:
    """The table before it is written in a format.

    Attributes:
        rows: those of scores.json.
        columns: benchmark -> heading: the nine, their average, and the extra ones in the run.
        measured, paper: a line per model or mean over seeds, in the order of scores.json.
        seeds: what the intervals of the measured lines cover.
        notes: the paragraphs below the table: that, the metric of every column, and what is not as lmms-eval does it.
    """

    rows: list[ScoreEntry]
    columns: dict[str, str]
    measured: Lines
    paper: Lines
    seeds: str
    notes: list[str]

    @classmethod
    def of(cls, rows: list[ScoreEntry], record: dict[str, Any] | None = None) -> "Table4":
        """The table of scores.json and, if there is one, run.json."""
        asked = {row["benchmark"] for row in rows}
        extra = {benchmark.key: benchmark.title for benchmark in EXTRA_BENCHMARKS if benchmark.key in asked}
        measured, paper = (
            table_lines([row for row in rows if row["source"] == source]) for source in ("measured", "paper")
        )
        seeds = " ".join(_about_seeds(measured))
        metrics = [f"{b.title}: {b.measures} ({b.task} {b.metric})" for b in BY_KEY.values() if b.key in asked]
        metrics = ["Metrics. " + "; ".join([*metrics, "Avg: mean of the nine columns."])]
        notes = [*([seeds] if seeds else []), *metrics, *departures(record or {})]
        return cls(rows, HEADINGS | extra, measured, paper, seeds, notes)

    @cached_property
    def texts(self) -> pd.DataFrame:
        """One line per model, one column per benchmark. Lines of a cell are separated by a newline."""
        lines = [
            {"model": label}
            | {title: missing(cells.get(key)) or "\n".join(parts(cells[key])) for key, title in self.columns.items()}
            for label, cells in [*self.measured, *self.paper]
        ]
        return pd.DataFrame(lines, columns=["model", *self.columns.values()])


def table_lines(rows: list[ScoreEntry]) -> Lines:
    """One line per model or mean over seeds, in the order of scores.json: (label, benchmark -> its row).

    The single seeds of such a mean are left out.
    """
    table: dict[tuple, dict[str, ScoreEntry]] = {}
    for row in rows:
        key = row["source"], row["backbone"], row["method"], row["seed"], tuple(row.get("seeds", ()))
        table.setdefault(key, {})[row["benchmark"]] = row
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


def _about_seeds(measured: Lines) -> list[str]:
    """What the intervals of these lines cover."""
    numbers = {len(row.get("seeds", ())) for _, cells in measured for row in cells.values()}
    several = [SEVERAL_SEEDS] if max(numbers, default=0) > 1 else []
    return several + ([ONE_SEED] if 0 in numbers else []) + ([TWO_SEEDS] if 2 in numbers else [])


def departures(record: dict[str, Any]) -> list[str]:
    """Where answers were not made as lmms-eval makes them, from a run.json: one paragraph, or none."""
    deviations = {
        name: model["deviations"] for name, model in record.get("models", {}).items() if "deviations" in model
    }
    parts = []
    for sentence in dict.fromkeys(sentence for sentences in deviations.values() for sentence in sentences):
        names = [name for name, sentences in deviations.items() if sentence in sentences]
        parts.append(sentence if len(names) == len(deviations) else f"({', '.join(names)}) {sentence}")
    if "engine" in record:
        parts.append(f"Answered by {record['engine']}.")
    if (limit := record.get("settings", {}).get("max_new_tokens")) is not None:
        parts.append(f"Answers end after {limit} tokens.")
    return [" ".join(["Not as lmms-eval does it.", *parts])] if parts else []


def direction(cell: ScoreEntry) -> int:
    """1 or -1 if several trainings agree on a difference from the baseline, else 0; one says nothing of another."""
    p = cell["p_value"] if cell["p_holm"] is None else cell["p_holm"]
    if cell["delta"] is None or not cell.get("seeds") or p is None or p >= 0.05:
        return 0
    return 1 if cell["delta"] > 0 else -1


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
        mark = "*" if direction(cell) else ""
        lines.append(f"{cell['delta']:+.2f}{mark} {interval(cell['delta_ci95'], '+')}")
    return lines


def interval(ends: list[float] | None, sign: str = "") -> str:
    """An interval in brackets."""
    return f"[{ends[0]:{sign}.1f}, {ends[1]:{sign}.1f}]" if ends else "[needs more seeds]"


def write_tables(table: Table4, run: Path) -> None:
    """Write the table and its figure into the folder of the run, and show it."""
    folder, figure = run / "tables", run / "figures" / "table4.svg"
    formats = {"md": markdown(table), "tex": latex(table), "csv": comma_separated(table)}
    files = {folder / f"table4.{suffix}": text for suffix, text in formats.items()} | {figure: draw_differences(table)}
    for path, text in files.items():
        write_text(path, text)
    show(table, Console(width=min(Console().width, LINE) if sys.stdout.isatty() else LINE))
    print(f"tables, with the paper's: {folder}, figure: {figure}")  # noqa: T201


def markdown(table: Table4) -> str:
    """The table, with a paragraph per note below it."""
    frame = table.texts
    cells = [[_markdown_cell(cell) for cell in row] for row in ([*frame.columns], *frame.to_numpy().tolist())]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    lines.insert(1, "|---" * frame.shape[1] + "|")
    for note in (CAPTION, *table.notes):
        lines += ["", re.sub(r"([*_])", r"\\\1", plain(note))]
    return "\n".join([*lines, ""])


def _markdown_cell(text: str) -> str:
    return re.sub(r"([|*])", r"\\\1", plain(text)).replace("\n", "<br>")


def plain(text: str) -> str:
    """Text for Markdown, in which a tag or a link of somebody else's stays text."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text).replace("](", r"]\(")


def latex(table: Table4) -> str:
    """The same as a booktabs table; it needs the package makecell too."""
    frame = table.texts
    style = frame.style.hide(axis="index").format(escape="latex")
    style = style.format(_latex_cell, escape="latex", subset=frame.columns[1:])
    if table.paper:
        first = pd.IndexSlice[len(table.measured), frame.columns[0]]
        style = style.format(lambda label: f"\\midrule\n{label}", escape="latex", subset=first)
    text = style.to_latex(
        hrules=True,
        column_format="l" + "c" * (frame.shape[1] - 1),
        caption=_escaped(CAPTION),
        position_float="centering",
    )
    below = [f"\\par\\smallskip\\parbox{{\\linewidth}}{{{_escaped(note)}}}\n" for note in table.notes]
    text = text.replace("\\centering\n", "\\centering\\scriptsize\n", 1)
    return text.replace("\\end{table}", "".join(below) + "\\end{table}")


def _escaped(text: str) -> str:
    return re.sub(r"([%_&#])", r"\\\1", text)


def _latex_cell(text: str) -> str:
    return r"\makecell{" + text.replace("[", "{[}").replace("\n", r" \\ ") + "}"


def comma_separated(table: Table4) -> str:
    """One line per row of scores.json, with every field; a row without a score gives the reason in `score`."""
    fields = ["source", "backbone", "method", "seed", "seeds", "benchmark", "score", "n", "ci95_low", "ci95_high"]
    fields += ["delta", "delta_ci95_low", "delta_ci95_high", "p_value", "p_holm", "unparseable", "status", "reason"]
    flat = []
    for row in table.rows:
        ends = {}
        for name in ("ci95", "delta_ci95"):
            ends[f"{name}_low"], ends[f"{name}_high"] = row[name] or (None, None)
        seeds = " ".join(map(str, row.get("seeds", ())))
        flat.append(row | ends | {"score": missing(row) or row["score"], "seeds": seeds})
    return pd.DataFrame(flat, columns=fields, dtype=object).to_csv(index=False, lineterminator="\n")


def show(table: Table4, console: Console) -> None:
    """Print the measured scores with half their interval and their difference: as many models abreast as fit."""
    abreast = max(1, (console.width - TITLE_WIDTH) // CELL_WIDTH)
    for start in range(0, len(table.measured), abreast):
        models = table.measured[start : start + abreast]
        shown = Table(box=box.SIMPLE_HEAD)
        shown.add_column("Table 4")
        for label, _ in models:
            shown.add_column(label, justify="right")
        for key, title in table.columns.items():
            shown.add_row(title, *(missing(cells.get(key)) or _brief(cells[key]) for _, cells in models))
        console.print(shown)
    console.print(
        "± half a 95 % interval, then the difference from the baseline, * p < 0.05 (Holm over nine columns)."
    )
    console.print(table.seeds)


def _brief(cell: ScoreEntry) -> str:
    half = "" if cell["ci95"] is None else f"±{(cell['ci95'][1] - cell['ci95'][0]) / 2:.1f}"
    delta = "" if cell["delta"] is None else f"{cell['delta']:+.1f}{'*' if direction(cell) else ' '}"
    return f"{cell['score']:.1f} {half:<5}{delta:>7}"


def draw_differences(table: Table4) -> str:
    """An SVG, the same bytes for the same rows. Models without any difference are left out."""
    with svg_axes("table4", (6, 5)) as (axes, svg):
        plot_differences(axes[0, 0], compared(table.measured), {})
    return svg.getvalue()


def compared(lines: Lines) -> dict[str, list[ScoreEntry]]:
    """Label -> its cells of the nine and their average that have a difference; without lines that have none."""
    cells_of = {
        label: [cell for key, cell in cells.items() if key in HEADINGS and cell["delta"] is not None]
        for label, cells in lines
    }
    return {label: cells for label, cells in cells_of.items() if cells}


def plot_differences(axes: Axes, models: dict[str, list[ScoreEntry]], colours: dict[str, str]) -> None:
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
