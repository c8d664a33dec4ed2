"""What stands below Table 4: what a cell is, what its intervals cover, which metric a column is."""

from typing import Any

from eval.data.benchmarks import BY_KEY


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

Lines = list[tuple[str, dict[str, dict[str, Any]]]]  # label and benchmark -> row of scores.json


def footnotes(measured: Lines, keys: set[str]) -> list[str]:
    """The notes on a table with these lines and columns, one paragraph each."""
    seeds = " ".join(about_seeds(measured))
    return [*([seeds] if seeds else []), metrics([key for key in BY_KEY if key in keys])]


def about_seeds(measured: Lines) -> list[str]:
    """What the intervals of these lines cover."""
    numbers = {len(row.get("seeds", ())) for _, cells in measured for row in cells.values()}
    said = [SEVERAL_SEEDS] if max(numbers, default=0) > 1 else []
    return said + ([ONE_SEED] if 0 in numbers else []) + ([TWO_SEEDS] if 2 in numbers else [])


def metrics(keys: list[str]) -> str:
    """The metric of every column: the harness's task and number, and what it is."""
    named = [f"{b.title}: {b.measures} ({b.task} {b.metric})" for b in map(BY_KEY.get, keys) if b is not None]
    return "Metrics. " + "; ".join([*named, "Avg: mean of the nine columns."])


def departures(record: dict[str, Any]) -> list[str]:
    """Where answers were not made as lmms-eval makes them, from a run.json: one paragraph, or none."""
    found = {name: model["deviations"] for name, model in record.get("models", {}).items() if "deviations" in model}
    sentences = dict.fromkeys(sentence for own in found.values() for sentence in own)
    parts = []
    for sentence in sentences:
        names = [name for name, own in found.items() if sentence in own]
        parts.append(sentence if len(names) == len(found) else f"({', '.join(names)}) {sentence}")
    if "engine" in record:
        parts.append(f"Answered by {record['engine']}.")
    if (limit := record.get("settings", {}).get("max_new_tokens")) is not None:
        parts.append(f"Answers end after {limit} tokens.")
    return [" ".join(["Not as lmms-eval does it.", *parts])] if parts else []
