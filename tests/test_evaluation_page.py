"""The numbers of docs/evaluation.md, read again from the results that it links."""

import json
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from tests import REPOSITORY


PAGE = " ".join((REPOSITORY / "docs/evaluation.md").read_text(encoding="utf-8").split())
SPEED = ("pope", "mmbench", "mmstar", "mmlu_5shot", "hellaswag")


def result(name: str) -> dict[str, Any]:
    return json.loads((REPOSITORY / f"benchmarks/results/{name}.json").read_text(encoding="utf-8"))


def percent(share: float) -> str:
    return f"{(100 * Decimal(str(share))).quantize(Decimal('0.1'), ROUND_HALF_UP)} %"


def test_the_factors_of_speed():
    speed = result("eval_throughput")
    tasks = speed["tasks"].values()
    for side, name in (("ours", "transformers"), ("vllm", "[vLLM](#with-vllm) 0.32.0")):
        factors = [f"{speed['tasks'][key]['ratios'][side]:.1f}x" for key in SPEED]
        assert f"| {name} | {' | '.join(factors)} |" in PAGE
        assert all(task["same_answers"][side] == task["answers"] for task in tasks)
    assert {len(task["seconds"]["ours"]) for task in tasks} == {1} and "one round" in PAGE
    assert (speed["visual_tokens"], speed["max_new_tokens"]) == (729, 16) and "16 tokens per answer" in PAGE
    assert speed["engines"]["vllm"].startswith("vllm 0.32.0 ")


def test_the_agreement_of_answers():
    agreement = result("answer_agreement")
    ways = agreement["ways"]

    def over(way: str, entry: str) -> list[float]:
        return [task.get(entry, 0) for task in ways[way].values()]

    exact = [way for way in ways if way.startswith("float32, batch ") and "batch 1," not in way]
    assert exact == [f"float32, batch {batch}" for batch in ("4, shared", "16, shared", "16, plain", "16, vLLM")]
    (answers,) = {sum(over(way, "answers")) for way in ways}
    assert not any(sum(over(way, "differing")) for way in exact) and f"none of {answers:,} differs" in PAGE
    differing, change = "differing", "largest_change"
    half, served = "bfloat16, batch 16, shared", "bfloat16, batch 16, vLLM"
    few, most = sum(over(half, differing)), max(over(half, change))
    assert f"{few} of the {answers:,} do, with log-likelihoods off by up to {most:.2f}" in PAGE
    assert f"and {sum(over(served, differing))} in vLLM ({max(over(served, change)):.2f})" in PAGE


def test_the_coverage_of_intervals():
    coverage = result("interval_coverage")
    for seeds, shares in coverage["by_seeds"].items():
        name = f"{seeds} (of this checkpoint, not of its method)" if seeds == "1" else seeds
        assert f"| {name} | {' | '.join(percent(shares[end]) for end in ('lowest', 'mean', 'highest'))} |" in PAGE

    shared = {}
    for seeds in (2, 3, 5):
        cells = [str(seeds)]
        for way in ("alone", "shared"):
            setting = {"seeds": seeds, "together": 0.3, "outcome": "difference", "way": way}
            (row,) = (row for row in coverage["tables"] if setting.items() <= row.items())
            half, shared[seeds] = row["half_width"], row["coverage"]
            cells += [percent(row["coverage"]["lowest"]), percent(row["coverage"]["mean"])]
            cells += [
                f"{half['mean']:.1f} ({half['5 %']:.1f} to {half['95 %']:.1f})",
                percent(row["mean"]["coverage"]),
            ]
        assert f"| {' | '.join(cells)} |" in PAGE
    two, three = ([percent(shared[seeds][end]) for end in ("mean", "lowest")] for seeds in (2, 3))
    words = "covers {} of differences with two seeds and {} with three, in the worst column {} and {}."
    assert words.format(two[0], three[0], two[1], three[1]) in PAGE

    rows = (row for row in coverage["rows"] if row.get("spread") == 2 and "hierarchical bootstrap" in row["coverage"])
    tried = {row["outcome"]: row["coverage"] for row in rows}
    for way, words in (("hierarchical bootstrap", "covers {} of differences and {} of"), ("items only", "{} and {}.")):
        assert words.format(*(percent(tried[outcome][way]) for outcome in ("difference", "score"))) in PAGE
