"""`scores.json`: one row per (model, benchmark), and the rows of the paper's Table 4.

A method with several seeds has, before the rows of its seeds, rows of its mean over them: `seed` is null, and `seeds`
lists them. These have its only p-values, and they are what tables show. A paper's row has a null `seed` and no
`seeds`. Tables, figures and cards are functions of this file alone. A row without a score gives the reason.
"""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from eval.data.benchmarks import BENCHMARKS, EXTRA_BENCHMARKS, Benchmark
from eval.plan.models import Model
from eval.score import seeds, statistics
from eval.score.items import Items


PAPER = Path(__file__).with_name("paper_table4.yaml")


@dataclass
class ScoreRow:
    """One cell of Table 4, or of an extra column.

    Scores, intervals and deltas are in points 0-100, `unparseable` is a share 0-1. `subtasks` has the parts of the
    benchmark and its further numbers, each {"score", "n"}. `limit` marks a trial on the first rows. A row with `seeds`
    is the mean over them, its intervals cover seeds and items, and `n` is the number of items; all others cover items
    only. An interval that so few seeds do not give is null, and so is its p-value.
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
    seeds: list[int] = field(default_factory=list)


Results = dict[str, dict[str, Any]]  # benchmark -> result.json of one model, or {"status", "reason"}
Estimate = statistics.Comparison | seeds.SeedMean
NOT_RUN = {"status": "not run", "reason": "not asked for"}


@dataclass
class Line:
    """A line of the table: one checkpoint, or the seeds of a method, with the baseline's results seed by seed."""

    models: list[Model]
    results: list[Results]
    baselines: list[Results] | None
    tested: bool = True  # whether its differences get p-values

    def rows(self) -> list[ScoreRow]:
        """The nine benchmarks, their average, extra ones."""
        scores: list[Estimate] = []
        deltas: list[Estimate] = []
        rows = [self._row(benchmark, scores, deltas) for benchmark in BENCHMARKS]
        with_p = [row for row in rows if row.p_value is not None]
        for row, adjusted in zip(with_p, statistics.holm([row.p_value or 0.0 for row in with_p]), strict=True):
            row.p_holm = adjusted
        average = self._average(rows, list(scores), list(deltas))
        extra = [b for b in EXTRA_BENCHMARKS if any(b.key in results for results in self.results)]
        return [*rows, average, *(self._row(benchmark, scores, deltas) for benchmark in extra)]

    def _new_row(self, key: str) -> ScoreRow:
        first, several = self.models[0], len(self.models) > 1
        row = ScoreRow(first.backbone, first.method, None if several else first.seed, key)
        row.seeds = [model.seed for model in self.models if model.seed is not None] if several else []
        return row

    def _row(self, benchmark: Benchmark, scores: list[Estimate], deltas: list[Estimate]) -> ScoreRow:
        """A cell; what it estimates is added to `scores` and `deltas`."""
        found = [results.get(benchmark.key, NOT_RUN) for results in self.results]
        row = self._new_row(benchmark.key)
        row.status, row.reason = self._status(found)
        if row.status != "ok":
            return row
        items = [Items(**result["items"]) for result in found]
        own = _score(items, benchmark)
        scores.append(own)
        row.score, row.ci95, row.n = float(np.mean([r["score"] for r in found])), _ends(own), len(items[0].id)
        row.unparseable = float(np.mean([result["unparseable"] for result in found]))
        # results of older versions have no further numbers
        row.subtasks = _mean_breakdown(items, [result.get("further", {}) for result in found])
        others = [results.get(benchmark.key, NOT_RUN) for results in self.baselines or [{}]]
        if all(other["status"] == "ok" for other in others):
            deltas.append(_difference([Items(**other["items"]) for other in others], items, benchmark))
            self._compare(row, deltas[-1])
        return row

    def _status(self, found: list[dict[str, Any]]) -> tuple[str, str | None]:
        """Of all seeds together: ok if each is, else the reasons of the others."""
        bad = [(model, result) for model, result in zip(self.models, found, strict=True) if result["status"] != "ok"]
        if not bad:
            return "ok", None
        status = "failed" if any(result["status"] == "failed" for _, result in bad) else "not run"
        reasons = {result["reason"] for _, result in bad}
        if len(reasons) == 1 and len(bad) == len(found):
            return status, reasons.pop()
        return status, "; ".join(f"seed {model.seed}: {result['reason']}" for model, result in bad)

    def _compare(self, row: ScoreRow, gap: Estimate) -> None:
        row.delta, row.delta_ci95 = gap.value, _ends(gap)
        row.p_value = gap.p_value if self.tested else None

    def _average(self, rows: list[ScoreRow], scores: list[Estimate], deltas: list[Estimate]) -> ScoreRow:
        """The mean of the nine, if all nine have a score. It is a single test, so there is no Holm adjustment."""
        row = self._new_row("avg")
        missing = [each for each in rows if each.status != "ok"]
        if missing:
            row.status = "failed" if any(each.status == "failed" for each in missing) else "not run"
            row.reason = "without " + ", ".join(each.benchmark for each in missing)
            return row
        mean = _mean(scores)
        row.score, row.ci95, row.n = mean.value, _ends(mean), len(scores)
        if len(deltas) == len(scores):
            self._compare(row, _mean(deltas))
        return row


# One checkpoint is resampled, several seeds have variance components: statistics.py and seeds.py.


def _ends(estimate: Estimate) -> list[float] | None:
    return None if estimate.ci95 is None else list(estimate.ci95)


def _score(items: list[Items], benchmark: Benchmark) -> Estimate:
    if len(items) > 1:
        return seeds.score(items, benchmark.macro)
    return statistics.score(items[0], benchmark.macro, benchmark.key)


def _difference(baselines: list[Items], models: list[Items], benchmark: Benchmark) -> Estimate:
    if len(models) > 1:
        return seeds.difference(baselines, models, benchmark.macro)
    return statistics.difference(baselines[0], models[0], benchmark.macro, benchmark.key)


def _mean(parts: list[Estimate]) -> Estimate:
    of_seeds = [part for part in parts if isinstance(part, seeds.SeedMean)]
    return (
        seeds.mean(of_seeds) if of_seeds else statistics.mean([p for p in parts if not isinstance(p, seeds.SeedMean)])
    )


def _mean_breakdown(items: list[Items], further: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """The parts of a benchmark, then its further numbers, each with its mean over seeds."""
    parts = [
        each.breakdown() | {name: {"score": value, "n": len(each.id)} for name, value in numbers.items()}
        for each, numbers in zip(items, further, strict=True)
    ]
    return {
        name: {"score": float(np.mean([part[name]["score"] for part in parts])), "n": first["n"]}
        for name, first in parts[0].items()
    }


def baselines(models: list[Model], wanted: str) -> dict[str, str]:
    """Backbone -> the method that its others are compared with: `wanted` if it has that, else its first."""
    found: dict[str, str] = {}
    for model in models:
        if model.method == wanted:
            found[model.backbone] = wanted
        found.setdefault(model.backbone, model.method)
    return found


def lines(models: list[Model], results: dict[str, Results], baseline: str) -> list[Line]:
    """The lines of the table. A method with several seeds has one for all of them, before those of each."""
    compared = baselines(models, baseline)
    names = {(model.backbone, model.method, model.seed): model.name for model in models}

    def line(own: list[Model], tested: bool) -> Line:
        reference = compared[own[0].backbone]
        others = [names.get((model.backbone, reference, model.seed)) for model in own]
        paired = [results[name] for name in others if name is not None]
        complete = own[0].method != reference and len(paired) == len(own)
        return Line(own, [results[model.name] for model in own], paired if complete else None, tested)

    groups: dict[tuple[str, str], list[Model]] = {}
    for model in models:
        groups.setdefault((model.backbone, model.method), []).append(model)
    found = []
    for group in groups.values():
        trained = [model for model in group if model.seed is not None]
        if len(trained) > 1:
            found.append(line(trained, tested=True))
        found += [line([model], tested=len(trained) < 2) for model in group]
    return found


def pairing(models: list[Model], baseline: str) -> list[str]:
    """Sentences about what is not plain: the baselines of several backbones, and seeds that a baseline lacks."""
    compared = baselines(models, baseline)
    several = compared.items() if len(compared) > 1 else ()
    sentences = [f"models of {backbone} are compared with {method}" for backbone, method in several]
    seeds_of: dict[tuple[str, str], set[int | None]] = {}
    for model in models:
        seeds_of.setdefault((model.backbone, model.method), set()).add(model.seed)
    for (backbone, method), own in seeds_of.items():
        lacking = sorted(map(str, own - seeds_of[backbone, compared[backbone]]))
        if lacking:
            sentences.append(f"{method} is not compared: {compared[backbone]} lacks seed {', '.join(lacking)}")
    return sentences


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
    models: list[Model], results: dict[str, Results], baseline: str, limit: int | None = None
) -> list[dict[str, Any]]:
    """All rows of scores.json.

    Args:
        models: the models, in the order of the table.
        results: model name -> its results.
        baseline: method that the others of its backbone are compared with, seed by seed. Models of a backbone without
            it are compared with the first of their backbone.
        limit: rows per task, if the run was a trial.
    """
    rows = [row for line in lines(models, results, baseline) for row in line.rows()]
    return [_to_json(replace(row, limit=limit)) for row in rows] + [_to_json(row) for row in paper_rows()]


def _to_json(row: ScoreRow) -> dict[str, Any]:
    """All fields; `subtasks`, `limit` and `seeds` only if they are set."""
    return {name: value for name, value in asdict(row).items() if name not in ("subtasks", "limit", "seeds") or value}
