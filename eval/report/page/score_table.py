"""Table 4 for the page: sortable cells with a mark of significance and details for each number."""

from dataclasses import dataclass
from typing import Any

from eval.report.finished_run import TITLES, FinishedRun, Line, direction, probability
from eval.report.tables.table4 import PAPER_SUFFIX, ScoreEntry, columns, missing, table_lines


ALL = [
    "model",
    "benchmark",
    "score",
    "95 % interval",
    "n",
    "difference",
    "its 95 % interval",
    "p",
    "p after Holm",
    "unreadable",
    "state",
]


@dataclass(frozen=True)
class Cell:
    """A cell of the table. `details` are shown on hover and on focus, and read by a screen reader."""

    score: str
    value: float | None = None  # sort key
    difference: str = ""
    direction: int = 0
    details: str = ""


def measured(run: FinishedRun, lines: list[Line]) -> list[tuple[str, list[Cell]]]:
    """Each line's name and the cells of Table 4's columns."""
    return [(line.name, [_cell(line.cells.get(key)) for key in columns(run.rows)]) for line in lines]


def published(run: FinishedRun) -> list[tuple[str, list[Cell]]]:
    """The lines of the paper: scores without intervals."""
    paper, keys = [row for row in run.rows if row["source"] == "paper"], columns(run.rows)
    return [
        (label.removesuffix(PAPER_SUFFIX), [_cell(cells.get(key)) for key in keys])
        for label, cells in table_lines(paper)
    ]


def _cell(row: ScoreEntry | None) -> Cell:
    absent = missing(row)
    if row is None or absent is not None:
        return Cell(absent or "not run")
    seeds = row.get("seeds", ())
    details = [f"n = {row['n']:,}" + (f", mean over seeds {', '.join(map(str, seeds))}" if seeds else "")]
    if row["source"] == "measured":
        details.insert(0, f"95 % interval {_interval(row['ci95'])}")
    if row["delta"] is None:
        return Cell(f"{row['score']:.1f}", row["score"], details="; ".join(details))
    sign = direction(row)
    details.append(f"difference {row['delta']:+.1f}, 95 % interval {_interval(row['delta_ci95'], '+')}")
    if seeds and row["p_value"] is not None:
        details.append(probability(row["p_value"]))
        if row["p_holm"] is not None:
            details.append(f"{probability(row['p_holm'])} after Holm's correction")
        details.append("significant" if sign else "not distinguishable from zero")
    mark = "*" if sign else ""
    return Cell(f"{row['score']:.1f}", row["score"], f"{row['delta']:+.1f}{mark}", sign, "; ".join(details))


def everything(run: FinishedRun) -> list[list[Any]]:
    """Every measured row of scores.json as a line with the columns of `ALL`."""
    lines = []
    for line in [*run.lines, *run.single_seeds]:
        for key, row in line.cells.items():
            state = row["status"] if row["reason"] is None else f"{row['status']}: {row['reason']}"
            ends = [
                _interval(row[of]) if row[value] is not None else ""
                for of, value in (("ci95", "score"), ("delta_ci95", "delta"))
            ]
            numbers = [row["score"], ends[0], row["n"], row["delta"], ends[1]]
            numbers += [row["p_value"], row["p_holm"], row["unparseable"]]
            lines.append([line.name, TITLES.get(key, key), *numbers, state])
    return lines


def _interval(ends: list[float] | None, sign: str = "") -> str:
    return "needs more seeds" if ends is None else f"{ends[0]:{sign}.1f} to {ends[1]:{sign}.1f}"
