"""`scores.json`: one row per (model, benchmark), and the rows of the paper's Table 4.

Tables, figures and cards are functions of this file alone. A row without a score gives the reason.
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
class ScoreRow:
    """One cell of Table 4, or of an extra column.

    Scores, intervals and deltas are in points 0-100, `unparseable` is a share 0-1. `subtasks` has the parts of the
    benchmark, each {"score", "n"}. `limit` marks a trial on the first rows.
    """

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
class EvaluatedModel:
    """A checkpoint in the tables: `name` is that of the run's folders."""

    name: str
    backbone: str
    method: str
    seed: int | None


Results = dict[str, dict[str, Any]]  # benchmark -> result.json of one model, or {"status", "reason"}


def _rows(model: EvaluatedModel, results: Results, baseline: Results | None) -> list[ScoreRow]:
    """The rows of one model: the nine benchmarks, their average, extra ones. `baseline` has the same seed."""
    scores: dict[str, statistics.Comparison] = {}
    deltas: dict[str, statistics.Comparison] = {}

    def row_of(benchmark: Benchmark) -> ScoreRow:
        result = results[benchmark.key]
        row = ScoreRow(model.backbone, model.method, model.seed, benchmark.key)
        row.status, row.reason = result["status"], result["reason"]
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

    rows = [row_of(benchmark) for benchmark in BENCHMARKS]
    tested = [row for row in rows if row.p_value is not None]
    for row, adjusted in zip(tested, statistics.holm([row.p_value or 0.0 for row in tested]), strict=True):
        row.p_holm = adjusted
    average = _average(model, rows, dict(scores), dict(deltas))
    return [*rows, average, *(row_of(benchmark) for benchmark in EXTRA_BENCHMARKS if benchmark.key in results)]


def _average(
    model: EvaluatedModel,
    rows: list[ScoreRow],
    scores: dict[str, statistics.Comparison],
    deltas: dict[str, statistics.Comparison],
) -> ScoreRow:
    """The mean of the nine, if all nine have a score. It is a single test, so there is no Holm adjustment."""
    row = ScoreRow(model.backbone, model.method, model.seed, "avg")
    missing = [each for each in rows if each.status != "ok"]
    if missing:
        row.status = "failed" if any(each.status == "failed" for each in missing) else "not run"
        row.reason = "without " + ", ".join(each.benchmark for each in missing)
        return row
    mean = statistics.mean(list(scores.values()))
    row.score, row.ci95, row.n = mean.value, list(mean.ci95), len(scores)
    if len(deltas) == len(scores):
        gap = statistics.mean(list(deltas.values()))
        row.delta, row.delta_ci95, row.p_value = gap.value, list(gap.ci95), gap.p_value
    return row


def paper_rows() -> list[ScoreRow]:
    """The paper's Table 4 as rows with source "paper": scores without items, so without intervals."""
    table = yaml.safe_load(PAPER.read_text(encoding="utf-8"))
    sizes = {benchmark.key: benchmark.num_questions for benchmark in BENCHMARKS} | {"avg": len(BENCHMARKS)}
    return [
        ScoreRow(line["backbone"], line["method"], None, key, score=value, n=sizes[key], source="paper")
        for line in table["rows"]
        for key, value in zip(table["columns"], line["scores"], strict=True)
    ]


def score_rows(
    models: list[EvaluatedModel], results: dict[str, Results], baseline: str, limit: int | None = None
) -> list[dict[str, Any]]:
    """All rows of scores.json.

    Args:
        models: the models, in the order of the table.
        results: model name -> its results.
        baseline: method that the others are compared with, seed by seed.
        limit: rows per task, if the run was a trial.
    """
    rows: list[ScoreRow] = []
    for model in models:
        reference = None
        if model.method != baseline:
            same_seed = [other for other in models if other.method == baseline and other.seed == model.seed]
            reference = results[same_seed[0].name] if same_seed else None
        rows.extend(_rows(model, results[model.name], reference))
    return [_to_json(replace(row, limit=limit)) for row in rows] + [_to_json(row) for row in paper_rows()]


def _to_json(row: ScoreRow) -> dict[str, Any]:
    """All fields, `subtasks` and `limit` only if they are set."""
    return {name: value for name, value in asdict(row).items() if name not in ("subtasks", "limit") or value}
