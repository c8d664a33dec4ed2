"""`scores.json`: one row a (checkpoint, benchmark), measured, and the paper's own Table 4 beside it.

Everything downstream (tables, figures, cards) is a function of this file; a cell without a number says why.
"""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from eval.data.benchmarks import BENCHMARKS, EXTRA_BENCHMARKS, Benchmark
from eval.scoring import statistics
from eval.scoring.items import Items


PAPER = Path(__file__).with_name("paper_table4.yaml")


@dataclass
class Row:
    """One cell of Table 4, or of a column beside it. Scores, intervals and deltas in points 0-100, `unparseable` a
    share 0-1; `subtasks` are parts of the benchmark, each {"score", "n"}; `limit` marks a trial on the first rows."""

    backbone: str
    method: str
    seed: int | None
    benchmark: str
    score: float | None = None
    n: int | None = None
    ci95: list[float] | None = None
    delta: float | None = None
    delta_ci95: list[float] | None = None
    p_value: float | None = None
    p_holm: float | None = None
    unparseable: float | None = None
    status: str = "ok"
    reason: str | None = None
    source: str = "measured"
    subtasks: dict[str, dict[str, float]] = field(default_factory=dict)
    limit: int | None = None


@dataclass(frozen=True)
class Arm:
    """A checkpoint as the tables know it: `name` in the run, method and seed in the table."""

    name: str
    backbone: str
    method: str
    seed: int | None


Results = dict[str, dict[str, Any]]  # benchmark -> result.json of one arm, or {"status", "reason"}


def _compared(arm: Arm, results: Results, baseline: Results | None) -> list[Row]:
    """All cells of one arm, against the baseline arm of the same seed: the nine, their average, further ones."""
    scores: dict[str, statistics.Comparison] = {}
    deltas: dict[str, statistics.Comparison] = {}

    def cell(benchmark: Benchmark) -> Row:
        result = results[benchmark.key]
        row = Row(arm.backbone, arm.method, arm.seed, benchmark.key, status=result["status"], reason=result["reason"])
        if result["status"] != "ok":
            return row
        items = Items(**result["items"])
        scores[benchmark.key] = own = statistics.score(items, benchmark.macro, benchmark.key)
        row.score, row.ci95, row.n = result["score"], list(own.ci95), len(items.id)
        row.unparseable, row.subtasks = result["unparseable"], items.breakdown()
        other = {"status": "not run"} if baseline is None else baseline.get(benchmark.key, {"status": "not run"})
        if other["status"] == "ok":
            gap = statistics.difference(Items(**other["items"]), items, benchmark.macro, benchmark.key)
            deltas[benchmark.key] = gap
            row.delta, row.delta_ci95, row.p_value = gap.value, list(gap.ci95), gap.p_value
        return row

    rows = [cell(benchmark) for benchmark in BENCHMARKS]
    tested = [row for row in rows if row.p_value is not None]
    for row, adjusted in zip(tested, statistics.holm([row.p_value or 0.0 for row in tested]), strict=True):
        row.p_holm = adjusted
    average = _average(arm, rows, dict(scores), dict(deltas))
    return [*rows, average, *(cell(benchmark) for benchmark in EXTRA_BENCHMARKS if benchmark.key in results)]


def _average(arm: Arm, rows: list[Row], scores: dict, deltas: dict) -> Row:
    """The mean of the nine, only if all nine are there. One test of its own: no Holm adjustment."""
    row = Row(arm.backbone, arm.method, arm.seed, "avg")
    missing = [cell for cell in rows if cell.status != "ok"]
    if missing:
        row.status = "failed" if any(cell.status == "failed" for cell in missing) else "not run"
        row.reason = "without " + ", ".join(cell.benchmark for cell in missing)
        return row
    mean = statistics.mean(list(scores.values()))
    row.score, row.ci95, row.n = mean.value, list(mean.ci95), len(scores)
    if len(deltas) == len(scores):
        gap = statistics.mean(list(deltas.values()))
        row.delta, row.delta_ci95, row.p_value = gap.value, list(gap.ci95), gap.p_value
    return row


def paper_rows() -> list[Row]:
    """The paper's Table 4 as rows with source "paper": numbers without items, so without intervals."""
    table = yaml.safe_load(PAPER.read_text(encoding="utf-8"))
    sizes = {benchmark.key: benchmark.num_questions for benchmark in BENCHMARKS} | {"avg": len(BENCHMARKS)}
    return [
        Row(line["backbone"], line["method"], None, key, score=value, n=sizes[key], source="paper")
        for line in table["rows"]
        for key, value in zip(table["columns"], line["scores"], strict=True)
    ]


def score_rows(
    arms: list[Arm], results: dict[str, Results], baseline: str, limit: int | None = None
) -> list[dict[str, Any]]:
    """All rows of scores.json.

    Args:
        arms: the checkpoints, in the order of the table.
        results: arm name -> its results.
        baseline: method of the arm that others are compared with, seed by seed.
        limit: rows a task, if the run was a trial.
    """
    rows: list[Row] = []
    for arm in arms:
        reference = None
        if arm.method != baseline:
            same_seed = [other for other in arms if other.method == baseline and other.seed == arm.seed]
            reference = results[same_seed[0].name] if same_seed else None
        rows.extend(_compared(arm, results[arm.name], reference))
    return [_to_json(replace(row, limit=limit)) for row in rows] + [_to_json(row) for row in paper_rows()]


def _to_json(row: Row) -> dict[str, Any]:
    """All fields, but `subtasks` and `limit` only where they say something."""
    return {name: value for name, value in asdict(row).items() if name not in ("subtasks", "limit") or value}
