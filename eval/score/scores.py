"""`scores.json`: one row per (model, benchmark), and the rows of the paper's Table 4.

A method with several seeds has, before the rows of its seeds, rows of its mean over them: `seed` is null, and `seeds`
lists them. These have its only p-values, and they are what tables show. A paper's row has a null `seed` and no
`seeds`. Tables, figures and cards are functions of this file alone. A row without a score gives the reason.
"""

from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
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
NOT_RUN = {"status": "not run", "reason": "not asked for"}


@dataclass
class Line:
    """A line of the table: one checkpoint, or the seeds of a method, with the baseline's results seed by seed.

    Attributes:
        tested: whether its differences get p-values.
    """

    models: list[Model]
    results: list[Results]
    baselines: list[Results] | None
    tested: bool = True

    @cached_property
    def estimates(self) -> dict[str, tuple[Any, Any]]:
        """Benchmark that every checkpoint has -> its score and, if there is a baseline's, its difference.

        They are of class `Comparison`, of several seeds `SeedMean`.
        """
        estimates: dict[str, tuple[Any, Any]] = {}
        for b in (*BENCHMARKS, *EXTRA_BENCHMARKS):
            items, baselines = _items(self.results, b), _items(self.baselines, b)
            if len(items) > 1:
                gap: Any = seeds.difference(baselines, items, b.macro) if baselines else None
                estimates[b.key] = seeds.score(items, b.macro), gap
            elif items:
                gap = statistics.difference(baselines[0], items[0], b.macro, b.key) if baselines else None
                estimates[b.key] = statistics.score(items[0], b.macro, b.key), gap
        return estimates

    def rows(self) -> list[ScoreRow]:
        """The nine benchmarks, their average, extra ones."""
        rows = [self._row(benchmark) for benchmark in BENCHMARKS]
        with_p = [row for row in rows if row.p_value is not None]
        for row, adjusted in zip(with_p, statistics.holm([row.p_value or 0.0 for row in with_p]), strict=True):
            row.p_holm = adjusted
        extra = [b for b in EXTRA_BENCHMARKS if any(b.key in results for results in self.results)]
        return [*rows, self._average(rows), *(self._row(benchmark) for benchmark in extra)]

    def _new_row(self, key: str) -> ScoreRow:
        first, several = self.models[0], len(self.models) > 1
        row = ScoreRow(first.backbone, first.method, None if several else first.seed, key)
        row.seeds = [model.seed for model in self.models if model.seed is not None] if several else []
        return row

    def _row(self, benchmark: Benchmark) -> ScoreRow:
        results = [of_model.get(benchmark.key, NOT_RUN) for of_model in self.results]
        row = self._new_row(benchmark.key)
        row.status, row.reason = self._status(results)
        if row.status != "ok":
            return row
        items = [Items(**result["items"]) for result in results]
        score, delta = self.estimates[benchmark.key]
        row.score, row.ci95 = float(np.mean([result["score"] for result in results])), _ends(score)
        row.n, row.unparseable = len(items[0].id), float(np.mean([result["unparseable"] for result in results]))
        # results of older versions have no further numbers
        row.subtasks = _mean_breakdown(items, [result.get("further", {}) for result in results])
        self._compare(row, delta)
        return row

    def _status(self, results: list[dict[str, Any]]) -> tuple[str, str | None]:
        """Of all seeds together: ok if each is, else the reasons of the others."""
        bad = [(model, result) for model, result in zip(self.models, results, strict=True) if result["status"] != "ok"]
        if not bad:
            return "ok", None
        status = "failed" if any(result["status"] == "failed" for _, result in bad) else "not run"
        reasons = {result["reason"] for _, result in bad}
        if len(reasons) == 1 and len(bad) == len(results):
            return status, reasons.pop()
        return status, "; ".join(f"seed {model.seed}: {result['reason']}" for model, result in bad)

    def _compare(self, row: ScoreRow, delta: Any) -> None:
        if delta is not None:
            row.delta, row.delta_ci95 = delta.value, _ends(delta)
            row.p_value = delta.p_value if self.tested else None

    def _average(self, rows: list[ScoreRow]) -> ScoreRow:
        """The mean of the nine, if all nine have a score. It is a single test, so there is no Holm adjustment."""
        average = self._new_row("avg")
        if missing := [row for row in rows if row.status != "ok"]:
            average.status = "failed" if any(row.status == "failed" for row in missing) else "not run"
            average.reason = "without " + ", ".join(row.benchmark for row in missing)
            return average
        mean: Any = seeds.mean if len(self.models) > 1 else statistics.mean
        scores, deltas = zip(*(self.estimates[row.benchmark] for row in rows), strict=True)
        score = mean(scores)
        average.score, average.ci95, average.n = score.value, _ends(score), len(scores)
        self._compare(average, None if None in deltas else mean(deltas))
        return average


def _items(results: list[Results] | None, benchmark: Benchmark) -> list[Items]:
    """Of each seed; none if one of them has no score."""
    of_seeds = [of_model.get(benchmark.key, NOT_RUN) for of_model in results or []]
    return [Items(**result["items"]) for result in of_seeds] if all(r["status"] == "ok" for r in of_seeds) else []


def _ends(estimate: Any) -> list[float] | None:
    return None if estimate.ci95 is None else list(estimate.ci95)


def _mean_breakdown(items: list[Items], further: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """The parts of a benchmark, then its further numbers, each with its mean over seeds."""
    breakdowns = [
        of_seed.breakdown() | {name: {"score": value, "n": len(of_seed.id)} for name, value in numbers.items()}
        for of_seed, numbers in zip(items, further, strict=True)
    ]
    return {
        part: {"score": float(np.mean([breakdown[part]["score"] for breakdown in breakdowns])), "n": first["n"]}
        for part, first in breakdowns[0].items()
    }


def baselines(models: list[Model], wanted: str) -> dict[str, str]:
    """Backbone -> the method that its others are compared with: `wanted` if it has that, else its first."""
    firsts: dict[str, str] = {}
    for model in models:
        firsts.setdefault(model.backbone, model.method)
    return firsts | {model.backbone: wanted for model in models if model.method == wanted}


def lines(models: list[Model], results: dict[str, Results], baseline: str) -> list[Line]:
    """The lines of the table. A method with several seeds has one for all of them, before those of each."""
    compared = baselines(models, baseline)
    names = {(model.backbone, model.method, model.seed): model.name for model in models}

    def line(seeds: list[Model], tested: bool) -> Line:
        reference = compared[seeds[0].backbone]
        others = [names.get((model.backbone, reference, model.seed)) for model in seeds]
        paired = [results[name] for name in others if name is not None]
        complete = seeds[0].method != reference and len(paired) == len(seeds)
        return Line(seeds, [results[model.name] for model in seeds], paired if complete else None, tested)

    table = []
    for backbone, method in dict.fromkeys((model.backbone, model.method) for model in models):
        group = [model for model in models if (model.backbone, model.method) == (backbone, method)]
        trained = [model for model in group if model.seed is not None]
        if len(trained) > 1:
            table.append(line(trained, tested=True))
        table += [line([model], tested=len(trained) < 2) for model in group]
    return table


def share_variances(table: list[Line]) -> None:
    """Give the lines of several seeds what the nine columns of all such lines of their backbone tell of trainings."""
    several = [line for line in table if len(line.models) > 1]
    for backbone in {line.models[0].backbone for line in several}:
        group = [line for line in several if line.models[0].backbone == backbone]
        pairs = [line.estimates[b.key] for line in group for b in BENCHMARKS if b.key in line.estimates]
        of_scores = seeds.prior([score for score, _ in pairs])
        of_deltas = seeds.prior([delta for _, delta in pairs if delta is not None])
        for line in group:
            for key, (score, delta) in line.estimates.items():
                line.estimates[key] = replace(score, prior=of_scores), delta and replace(delta, prior=of_deltas)


def pairing(models: list[Model], baseline: str) -> list[str]:
    """Sentences about what is not plain: the baselines of several backbones, and seeds that a baseline lacks."""
    compared = baselines(models, baseline)
    several = compared.items() if len(compared) > 1 else ()
    sentences = [f"models of {backbone} are compared with {method}" for backbone, method in several]
    seeds_of: dict[tuple[str, str], set[int | None]] = {}
    for model in models:
        seeds_of.setdefault((model.backbone, model.method), set()).add(model.seed)
    for (backbone, method), trained in seeds_of.items():
        if lacking := sorted(map(str, trained - seeds_of[backbone, compared[backbone]])):
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
    table = lines(models, results, baseline)
    share_variances(table)
    rows = [replace(row, limit=limit) for line in table for row in line.rows()]
    return [
        {name: value for name, value in asdict(row).items() if name not in ("subtasks", "limit", "seeds") or value}
        for row in [*rows, *paper_rows()]
    ]
