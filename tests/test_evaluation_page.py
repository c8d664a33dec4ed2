"""The numbers of docs/evaluation.md, read again from the results that it links."""

import json
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from tests import REPOSITORY


PAGE = " ".join((REPOSITORY / "docs/evaluation.md").read_text(encoding="utf-8").split())
SPEED = ("pope", "mmbench", "mmlu_5shot", "hellaswag")


def result(name: str) -> dict[str, Any]:
    return json.loads((REPOSITORY / f"benchmarks/results/{name}.json").read_text(encoding="utf-8"))


def percent(share: float) -> str:
    return f"{(100 * Decimal(str(share))).quantize(Decimal('0.1'), ROUND_HALF_UP)} %"


def test_the_factors_of_speed():
    found, mmstar = result("eval_throughput_amd_epyc_202611"), result("eval_throughput_mmstar_amd_epyc_202611")
    factors = [f"{found['ratios'][key]:.1f}x" for key in SPEED]
    assert f"| {' | '.join(factors)} | {mmstar['ratios']['mmstar']:.2f}x ([three rounds]" in PAGE
    assert [len(each["tasks"]["mmstar"]["rounds"]) for each in (found, mmstar)] == [1, 3]
    assert {each["date"][:10] for each in (found, mmstar)} == {"2026-11-22"} and "AMD EPYC, 22 November 2026" in PAGE
    assert (found["visual_tokens"], found["max_new_tokens"]) == (729, 16) and "16 tokens per answer" in PAGE


def test_the_agreement_of_answers():
    found = result("answer_agreement")
    ways = found["ways"]

    def over(way: str, entry: str) -> list[float]:
        return [task.get(entry, 0) for task in ways[way].values()]

    exact = [way for way in ways if way.startswith("float32, batch ") and "batch 1," not in way]
    assert exact == [f"float32, batch {batch}" for batch in ("4, shared", "16, shared", "16, plain")]
    (answers,) = {sum(over(way, "answers")) for way in ways}
    assert not any(sum(over(way, "differing")) for way in exact) and f"none of {answers:,} differs" in PAGE
    half = "bfloat16, batch 16, shared"
    assert f"{sum(over(half, 'differing'))} of the {answers:,} do" in PAGE
    assert f"off by up to {max(over(half, 'largest_change')):.2f}" in PAGE
    assert found["date"].startswith("2026-11-21") and "21 November 2026" in PAGE


def test_the_coverage_of_intervals():
    found = result("interval_coverage")
    for seeds, shares in found["by_seeds"].items():
        name = f"{seeds} (of this checkpoint, not of its method)" if seeds == "1" else seeds
        assert f"| {name} | {' | '.join(percent(shares[end]) for end in ('lowest', 'mean', 'highest'))} |" in PAGE

    rows = (row for row in found["rows"] if row.get("spread") == 2 and "hierarchical bootstrap" in row["coverage"])
    tried = {row["outcome"]: row["coverage"] for row in rows}
    for way, words in (("hierarchical bootstrap", "covers {} of differences and {} of"), ("items only", "{} and {}.")):
        assert words.format(*(percent(tried[outcome][way]) for outcome in ("difference", "score"))) in PAGE
