"""Table 4 in words: which line and column a row of scores.json belongs to, what its cell says, what stands below.

A cell is a score with its n, 95 % interval and paired difference from the baseline, or `not run`, or `failed: reason`.
A method with several seeds is one line, the mean over them.
"""

from pathlib import Path
from typing import Any

from eval.data.benchmarks import BENCHMARKS, BY_KEY, EXTRA_BENCHMARKS
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.files import read_json


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
TWO_SEEDS = "Two seeds are too few for an interval of 95 %: it covers the truth less often. Train three."


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


def columns(rows: list[ScoreEntry]) -> dict[str, str]:
    """Benchmark -> heading: the nine, their average, and the extra ones in the run."""
    asked = {row["benchmark"] for row in rows}
    extra = {benchmark.key: benchmark.title for benchmark in EXTRA_BENCHMARKS if benchmark.key in asked}
    return HEADINGS | extra


def table_lines(rows: list[ScoreEntry]) -> Lines:
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


def notes(rows: list[ScoreEntry]) -> list[str]:
    """The footnotes of the table, one paragraph each: what its intervals cover, and the metric of every column."""
    seeds = " ".join(about_seeds(table_lines([row for row in rows if row["source"] == "measured"])))
    asked = {row["benchmark"] for row in rows}
    metrics = [f"{b.title}: {b.measures} ({b.task} {b.metric})" for b in BY_KEY.values() if b.key in asked]
    return [*([seeds] if seeds else []), "Metrics. " + "; ".join([*metrics, "Avg: mean of the nine columns."])]


def about_seeds(measured: Lines) -> list[str]:
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
