"""The numbers of docs/evaluation.md, read again from the results that it links."""

import json
import math
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from tests import REPOSITORY


PAGE = " ".join((REPOSITORY / "docs/evaluation.md").read_text(encoding="utf-8").split())
SPEED = {"POPE": "pope", "MMBench": "mmbench", "MMLU 5-shot": "mmlu_5shot", "HellaSwag": "hellaswag"}


def result(name: str) -> dict[str, Any]:
    return json.loads((REPOSITORY / f"benchmarks/results/{name}.json").read_text(encoding="utf-8"))


def percent(share: float) -> str:
    return f"{(100 * Decimal(str(share))).quantize(Decimal('0.1'), ROUND_HALF_UP)} %"


def test_the_factors_of_speed():
    long, short = result("eval_throughput"), result("eval_throughput_short_answers")
    amd, mmstar = result("eval_throughput_amd_epyc_202611"), result("eval_throughput_mmstar_amd_epyc_202611")
    first, second, third, alone = (each["ratios"] for each in (long, short, amd, mmstar))
    for title, key in SPEED.items():
        assert f"{title} {first[key]:.1f} and {second[key]:.1f}" in PAGE
        assert f"{title} {third[key]:.1f}" in PAGE
    assert f"MM-Star {first['mmstar']:.2f} and {second['mmstar']:.2f}" in PAGE
    assert f"tiles {third['pope_tiles']:.1f}; MM-Star with" in PAGE
    assert f"never stops by itself {third['mmstar_rambling']:.1f}," in PAGE
    assert f"MM-Star {alone['mmstar']:.2f} in [three rounds]" in PAGE
    assert [len(each["tasks"]["mmstar"]["rounds"]) for each in (amd, mmstar)] == [1, 3]
    low, high = sorted(each["prefill"]["share"] for each in (amd, mmstar))
    assert f"Prefill reaches {100 * low:.0f} to {100 * high:.0f} % of" in PAGE
    assert {each["date"][:10] for each in (long, short)} == {"2026-11-21"} and "of 21 November 2026, before" in PAGE
    assert {each["date"][:10] for each in (amd, mmstar)} == {"2026-11-22"} and "of 22 November, one round" in PAGE


def test_the_agreement_of_answers():
    found = result("answer_agreement")
    ways = found["ways"]

    def over(way: str, entry: str) -> list[float]:
        return [task.get(entry, 0) for task in ways[way].values()]

    exact = [way for way in ways if way.startswith("float32, batch ") and "batch 1," not in way]
    assert exact == [f"float32, batch {batch}" for batch in ("4, shared", "16, shared", "16, plain")]
    assert "at batch 4 or 16 with shared prefixes, or at batch 16 without" in PAGE
    (answers,) = {sum(over(way, "answers")) for way in ways}
    assert not any(sum(over(way, "differing")) for way in exact) and f"none of {answers:,} differs" in PAGE
    largest = max(max(over(way, "largest_change")) for way in exact)
    assert f"differ by {math.ceil(1e6 * largest) / 10}e-5 at most" in PAGE
    half = "bfloat16, batch 16, shared"
    assert f"{sum(over(half, 'differing'))} of the {answers:,} at batch 16 against batch 1" in PAGE
    assert f"off by up to {max(over(half, 'largest_change')):.2f}" in PAGE
    assert found["date"].startswith("2026-11-21") and "also of 21 November" in PAGE


def test_the_coverage_of_intervals():
    found = result("interval_coverage")
    again = found["again"]
    for seeds, shares in found["by_seeds"].items():
        name = f"{seeds} (of this checkpoint, not of its method)" if seeds == "1" else seeds
        assert f"| {name} | {' | '.join(percent(shares[end]) for end in ('lowest', 'mean', 'highest'))} |" in PAGE

    (wide,) = (row for row in found["rows"] if row["seeds"] > 2 and row["coverage"]["ours"] > 0.97)
    cell = {row["outcome"]: row for row in again["rows"]}
    gap = cell["difference"]
    assert all(wide[name] == gap[name] for name in ("benchmark", "seeds", "outcome", "spread"))
    assert f"In {again['repetitions']:,} other repetitions it is {percent(gap['coverage']['ours'])}" in PAGE
    assert f"a standard error of {100 * gap['standard_error']:.1f}," in PAGE
    assert f"that of the score {percent(cell['score']['coverage']['ours'])}" in PAGE

    rows = (row for row in found["rows"] if row.get("spread") == 2 and "hierarchical bootstrap" in row["coverage"])
    tried = {row["outcome"]: row["coverage"] for row in rows}
    for way, words in (("hierarchical bootstrap", "covers {} of differences and {} of"), ("items only", "{} and {}.")):
        assert words.format(*(percent(tried[outcome][way]) for outcome in ("difference", "score"))) in PAGE
