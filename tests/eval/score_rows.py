"""Scores of four models on the nine benchmarks, one of them failed and one text-only; and of methods with seeds."""

from typing import Any

from eval.data.benchmarks import BENCHMARKS
from eval.score.items import Items
from eval.score.scores import Model, score_rows


def result(right: int, n: int = 40) -> dict[str, Any]:
    """result.json of a finished task: the first `right` of `n` items are right."""
    items = Items()
    for index in range(n):
        items.add(str(index), index < right, f"group {index % 2}", subtask=("lower & half", "upper")[index // 20])
    score = 100 * right / n
    return {"status": "ok", "reason": None, "score": score, "rows": n, "unparseable": 0.1, "items": vars(items)}


def nine(right: int, **changes: Any) -> dict[str, Any]:
    """Results of one model on the nine benchmarks, all alike but for `changes`."""
    return {benchmark.key: result(right) for benchmark in BENCHMARKS} | changes


def four_models() -> list[dict[str, Any]]:
    """Rows of scores.json: norm beats the baseline, norm-gwc equals it but for a failure, lm is a language model."""
    models = [Model(name, "toy", name, 42) for name in ("baseline", "norm", "norm-gwc", "lm")]
    failed = {"status": "failed", "reason": "ValueError: a | b_c & 100%"}
    absent = {"status": "not run", "reason": "a language model sees no images"}
    results = {
        "baseline": nine(20),
        "norm": nine(36),
        "norm-gwc": nine(20, ocrbench=failed),
        "lm": {b.key: result(22) if b.harness == "lm-eval" else absent for b in BENCHMARKS},
    }
    return score_rows(models, results, "baseline")


def three_seeds() -> list[dict[str, Any]]:
    """Baseline and norm with three seeds, norm better by 10 of 40 items on average, and a method with one seed."""
    right = {"baseline": (10, 12, 14), "norm": (21, 22, 23), "norm-gwc": (12,)}
    answered = {(method, seed): n for method, seeds in right.items() for seed, n in enumerate(seeds, 1)}
    models = [Model(f"{method}-seed{seed}", "toy", method, seed) for method, seed in answered]
    results = {f"{method}-seed{seed}": nine(n) for (method, seed), n in answered.items()}
    return score_rows(models, results, "baseline")


def cell(rows: list[dict[str, Any]], method: str, benchmark: str, source: str = "measured") -> dict[str, Any]:
    return next(r for r in rows if (r["source"], r["method"], r["benchmark"]) == (source, method, benchmark))
