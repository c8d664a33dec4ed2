"""The report's first words: what was compared and what came out, made from the numbers alone.

A difference counts as one if its p-value is below 0.05 after Holm's correction (the mean of the nine is one test of
its own); otherwise it is "not distinguishable from zero", and the smallest difference that could be seen is told.
"""

from typing import Any

from eval.data.benchmarks import BENCHMARKS
from eval.report.card import is_official
from eval.report.finished_run import TITLES, FinishedRun, direction, probability
from eval.report.tables.table4 import Row
from eval.scoring.power import detectable


WIDTH = 2 * 1.96  # standard errors in a 95 % interval
VISIBLE = "visible from"
UNPARSEABLE = 0.01  # share of unreadable answers above which it is said

Part = tuple[str, list[str]]  # a heading, "" for the first part, and sentences


def summary(run: FinishedRun, looks: dict[str, dict[str, Any]]) -> list[Part]:
    """What was compared; for each arm how it differs from the baseline; norms; what limits all this.

    Args:
        looks: arm name -> what `looks.py` measured, or {"error": reason}.
    """
    first = [_compared(run)]
    if run.is_toy:
        first.append(
            "This is a toy result: tinyworld's models are tiny and its benchmarks are its own. It says nothing about "
            "models of real size."
        )
    elif not is_official([cell for cells in run.cells.values() for cell in cells.values()], run.data() or run.folder):
        first.append(
            "The questions are not the official benchmarks', or not all of them: do not compare these scores with "
            "published ones."
        )
    parts = [("", first)]
    for arm in run.arms:
        found = _differences(run.baseline, run.cells[arm.name])
        if found:
            parts.append((f"{arm.name} against {run.baseline}", found))
    norms = [f"{name}: {_times(look['profile']['ratio'])} times." for name, look in looks.items() if "profile" in look]
    if norms:
        parts.append(("Mean norm of visual tokens at the decoder's door, over that of text embeddings", norms))
    limits = [f"{name}: no scores, as its evaluation did not end." for name in run.unscored]
    limits += [sentence for arm in run.arms for sentence in _gaps(arm.name, run.cells[arm.name])]
    limits += [sentence for arm in run.arms for sentence in _unparseable(arm.name, run.cells[arm.name])]
    if any(VISIBLE in sentence for _, sentences in parts for sentence in sentences):
        limits.append(
            f'"{VISIBLE.capitalize()}" is the smallest true difference that a test at p < 0.05, before Holm\'s '
            "correction, finds in 80 % of repetitions."
        )
    if run.baseline is not None and len({arm.seed for arm in run.arms}) == 1:
        limits.append("One training of each arm: the intervals cover the choice of questions, not another training.")
    return [*parts, ("What is missing, and limits", limits)] if limits else parts


def _compared(run: FinishedRun) -> str:
    names = [arm.name for arm in run.arms]
    keys = [b.key for b in BENCHMARKS if any(b.key in run.answered(name) for name in names)]
    if not keys:
        return f"No benchmark has a score for {_listed(names)}."
    asked = [max(run.cells[name][key]["n"] for name in names if key in run.answered(name)) for key in keys]
    where = f"{len(keys)} benchmark{'s' * (len(keys) > 1)} with {sum(asked):,} questions in all"
    if len(names) == 1:
        return f"One arm, {names[0]}, was evaluated on {where}. There is nothing to compare it with."
    if run.baseline is None:
        return f"{_listed(names)} were evaluated on {where}, but no score could be compared with a baseline's."
    others = [arm.name for arm in run.arms if arm.method != run.baseline]
    return f"{_listed(others)} compared with {run.baseline} on {where}."


def _differences(baseline: str | None, cells: dict[str, Row]) -> list[str]:
    """One sentence for the average, one for the benchmarks that are lower, one for higher, one for the rest."""
    found = []
    average = cells.get("avg")
    if average is not None and average["delta"] is not None:
        found.append(f"Mean of the nine: {_average(average)}.")
    tested = [cells[b.key] for b in BENCHMARKS if b.key in cells and cells[b.key]["delta"] is not None]
    for sign, word in ((-1, "lower"), (1, "higher")):
        where = [f"{TITLES[cell['benchmark']]} ({cell['delta']:+.1f})" for cell in tested if direction(cell) == sign]
        if where:
            found.append(f"Significantly {word} than {baseline} (p < 0.05 after Holm's correction): {_listed(where)}.")
    same = [
        f"{TITLES[cell['benchmark']]} ({cell['delta']:+.1f}{_smallest(cell)})"
        for cell in tested
        if direction(cell) == 0
    ]
    if same:
        found.append(f"Difference not distinguishable from zero: {_listed(same)}.")
    return found


def _average(cell: Row) -> str:
    low, high = cell["delta_ci95"]
    numbers = f"{cell['delta']:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}, {probability(cell['p_value'])}"
    if direction(cell) == 0:
        return f"difference not distinguishable from zero ({numbers})"
    return f"{'higher' if cell['delta'] > 0 else 'lower'} ({numbers})"


def _smallest(cell: Row) -> str:
    low, high = cell["delta_ci95"]
    return f"; {VISIBLE} {detectable((high - low) / WIDTH):.1f}" if high > low else ""


def _gaps(name: str, cells: dict[str, Row]) -> list[str]:
    """What failed, with its reason, and what was not run."""
    found = [
        f"{name}: {TITLES.get(key, key)} failed ({cell['reason']})."
        for key, cell in cells.items()
        if cell["status"] == "failed" and key != "avg"
    ]
    absent: dict[str, list[str]] = {}
    for key, cell in cells.items():
        if cell["status"] == "not run" and key != "avg":
            absent.setdefault(cell["reason"] or "no reason recorded", []).append(TITLES.get(key, key))
    found += [f"{name}: not run on {_listed(titles)} ({reason})." for reason, titles in absent.items()]
    average = cells.get("avg")
    if found and average is not None and average["status"] != "ok":
        found.append(f"{name}: there is no mean of the nine, as not all of them have a score.")
    return found


def _unparseable(name: str, cells: dict[str, Row]) -> list[str]:
    where = [
        f"{TITLES.get(key, key)} {cell['unparseable']:.1%}"
        for key, cell in cells.items()
        if (cell["unparseable"] or 0) > UNPARSEABLE
    ]
    return [f"{name}: answers that could not be read, and so count as wrong: {_listed(where)}."] if where else []


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + f" and {words[-1]}"


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"
